"""What waits and only capacity holds back, by pool: what more nodes would let start, and nothing else.

Work that a limit holds back is not demand, however many nodes there were; so what waits is charged against its virtual
pool's limits in the order of the queue, and what exceeds them is left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from millpond_contracts.bodies.scaling import DemandShape
from millpond_contracts.ids import PoolId, TaskId, VirtualPoolId
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.admission import CPU, MEMORY, Resource, VirtualPoolState, device
from millpond_scheduler.domain.cycle import VirtualPools
from millpond_scheduler.domain.plans import Rejection
from millpond_scheduler.domain.queues import Queues
from millpond_scheduler.domain.requests import QueuedTask, RequestClass
from millpond_scheduler.domain.verdicts import CAPACITY_REASONS, Reason

# Held back by a limit, or by room that is on its way already: more nodes would change nothing.
_BY_OTHERS = frozenset(
    {
        Reason.PLACEABLE,
        Reason.NO_VIRTUAL_POOL,
        Reason.LIMIT_REACHED,
        Reason.GUARANTEE_OF_OTHERS,
        Reason.GANG_STOPPING,
        Reason.RECLAIMING,
        Reason.PREEMPTING,
        Reason.MOVING,
    }
)


@dataclass(slots=True)
class _Headroom:
    """What the limits of one virtual pool still leave, charged task by task."""

    state: VirtualPoolState
    charged: dict[Resource, int]

    def list_flavors(self, request: RequestClass) -> tuple[str, ...] | None:
        """The flavors with room for one more such task, () for a task without devices; None when a limit is full."""
        if not (self._has_room(CPU, request.cpu_milli) and self._has_room(MEMORY, request.memory_mib)):
            return None
        if request.devices is None:
            return ()
        named = request.devices.flavors or self.state.limits.devices.keys()
        milli = _device_milli(request)
        found = tuple(sorted(name for name in named if self._has_room(device(name), milli)))
        return found or None

    def charge(self, request: RequestClass, flavor: str | None) -> None:
        """Counts one task, on one of its flavors."""
        amounts = {CPU: request.cpu_milli, MEMORY: request.memory_mib}
        if flavor is not None:
            amounts[device(flavor)] = _device_milli(request)
        for resource, amount in amounts.items():
            self.charged[resource] = self.charged.get(resource, 0) + amount

    def _has_room(self, resource: Resource, amount: int) -> bool:
        used = self.state.used.get(resource, 0) + self.charged.get(resource, 0)
        return used + amount <= self.state.limit_of(resource).cap


def sum_demand(
    waiting: Iterable[QueuedTask], rejections: Mapping[TaskId, Rejection], virtual_pools: VirtualPools
) -> dict[PoolId, tuple[DemandShape, ...]]:
    """The demand of each pool that has any: equal tasks as one shape, in an order that never depends on the reading.

    Args:
        waiting: the tasks that wait.
        rejections: why the last cycle did not place them; a task that it did not look at is not demand yet.
    """
    rooms: dict[VirtualPoolId, _Headroom] = {}
    counts: dict[tuple[PoolId, RequestClass, tuple[str, ...], int], int] = {}
    wanted = [task for task in waiting if task.id in rejections and _is_wanted(task.request, rejections[task.id])]
    known = (task for task in wanted if task.virtual_pool in virtual_pools)
    for task in chain.from_iterable(Queues(known).read_units(lambda key: virtual_pools[key].policy)):
        state = virtual_pools[task.virtual_pool]
        room = rooms.setdefault(task.virtual_pool, _Headroom(state, {}))
        flavors = room.list_flavors(task.request)
        if flavors is None:
            continue
        room.charge(task.request, flavors[0] if flavors else None)
        key = (task.request.pool, task.request, flavors, 1 if task.gang is None else task.gang.size_of(task.group))
        counts[key] = counts.get(key, 0) + 1
    found: dict[PoolId, list[DemandShape]] = {}
    for (pool, request, flavors, gang_size), tasks in counts.items():
        found.setdefault(pool, []).append(_shape(request, flavors, tasks, gang_size))
    return {pool: tuple(sorted(listed, key=lambda shape: shape.model_dump_json())) for pool, listed in found.items()}


def _is_wanted(request: RequestClass, rejection: Rejection) -> bool:
    """Whether more of the right nodes would let it start.

    Where nodes were seen that fit but are full, yes. Else, as in an empty pool, only what can be told of a node that is
    not there: a demand on software or rates might not be met by it, and it would be made again and again. So it is in
    any case with where a new node would stand.
    """
    if request.affinity or request.levels:
        return False
    if request.devices is not None and request.devices.profile is not None:
        return False  # a new node's devices are whole until its operator says otherwise
    if rejection.reason in CAPACITY_REASONS:
        return True
    if rejection.reason in _BY_OTHERS:
        return False
    has_minima = request.devices is not None and bool(request.devices.minima)
    return not has_minima and request.ecosystem == type(request.ecosystem)()


def _device_milli(request: RequestClass) -> int:
    demand = request.devices
    if demand is None:
        return 0
    # A slice by memory alone is counted as a whole device: what it takes depends on the device that it gets.
    return demand.count * (demand.milli or WHOLE_DEVICE_MILLI)


def _shape(request: RequestClass, flavors: tuple[str, ...], tasks: int, gang_size: int) -> DemandShape:
    demand = request.devices
    return DemandShape(
        tasks=tasks,
        gang_size=gang_size,
        cpu_milli=request.cpu_milli,
        memory_mib=request.memory_mib,
        device_count=0 if demand is None else demand.count,
        device_milli=0 if demand is None else demand.milli or WHOLE_DEVICE_MILLI,
        device_memory_mib=None if demand is None else demand.memory_mib,
        device_kind=None if demand is None else demand.kind,
        flavors=flavors,
        architectures=tuple(sorted(request.architectures)),
        labels=dict(request.labels),
        tolerations=tuple(sorted(request.tolerations)),
        needs_image=request.needs_image,
        simulated=request.simulated,
    )
