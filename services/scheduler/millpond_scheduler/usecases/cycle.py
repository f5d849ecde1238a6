"""One batch made durable: the plan's placements become allocations in a single guarded transaction."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from millpond_contracts.ids import AllocationId, NodeId, PriceVersionId, TenantId
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.uow import UnitOfWork, WrittenEvent
from millpond_scheduler.domain.plans import Placement
from millpond_scheduler.domain.running import Running
from millpond_scheduler.store import allocations, jobs
from millpond_scheduler.store.allocations import NewAllocation
from millpond_scheduler.store.guards import GuardFailed, NodeDelta, UsageDeltas, change_usage, take_from_nodes
from millpond_scheduler.store.reservations import list_open
from millpond_scheduler.usecases.binding import make_allocation, write_bound, write_share
from millpond_scheduler.usecases.records import microseconds_of
from millpond_scheduler.usecases.shard import Shard, WaitingTask


class Batch:
    """What is written of a plan's placements, and what is remembered of them.

    Made at once after the plan, from the memory that it was made on: later plans may be made while it is written.

    Args:
        now: the instant of the plan, at which everything is bound.

    Raises:
        GuardFailed: a gang is not whole.
    """

    def __init__(self, shard: Shard, epoch: int, placements: Sequence[Placement], now: datetime) -> None:
        self.new: list[NewAllocation] = []
        self.events: list[WrittenEvent] = []
        self.nodes: dict[NodeId, NodeDelta] = {}
        self.usage: UsageDeltas = {}
        self.running: dict[AllocationId, Running] = {}
        self.waited = [shard.waiting[placement.holding.task] for placement in placements]
        self.open_windows = shard.open_windows
        self._shard = shard
        self.epoch = epoch
        self.now = now
        self._now_us = microseconds_of(now)
        self._prices: dict[TenantId, PriceVersionId | None] = {}
        _check_gangs(self.waited)
        keys = AllocationId.new_many(len(placements))
        for key, placement, task in zip(keys, placements, self.waited, strict=True):
            self._add(key, placement, task)

    def hold(self) -> None:
        """Counts everything in the leader's memory, before it is durable, so that the next plan sees it."""
        for allocation, running in self.running.items():
            self._shard.hold(allocation, running)

    def give_back(self) -> None:
        """Takes that back: the tasks wait again."""
        for allocation, task in zip(self.running, self.waited, strict=True):
            self._shard.release(allocation)
            self._shard.waiting[task.queued.id] = task

    def _add(self, key: AllocationId, placement: Placement, task: WaitingTask) -> None:
        holding = placement.holding
        node = self._node_of(placement)
        node.cpu_milli += holding.cpu_milli
        node.memory_mib += holding.memory_mib
        shares = []
        for pick in holding.devices:
            device = str(pick.device)
            node.add_device(device, pick.milli, pick.memory_mib, pick.slots)
            shares.append(write_share(device, pick, self._shard.devices))
        new = make_allocation(key, placement, task, f"[{','.join(shares)}]", self._price_for(holding.tenant))
        self.new.append(new)
        self.events.append(write_bound(new, self.epoch, self.now))
        running = self.running[key] = Running(
            holding=holding,
            virtual_pool=placement.virtual_pool,
            flavor=placement.flavor,
            priority=new.priority,
            started_us=self._now_us,
            gang=new.job if new.gang else None,
            project=new.project,
            stop_grace_seconds=new.stop_grace_seconds,
            ends_us=None if task.queued.lasts_us is None else self._now_us + task.queued.lasts_us,
        )
        for resource, amount in running.demand().items():
            self.usage[new.virtual_pool, resource] = self.usage.get((new.virtual_pool, resource), 0) + amount

    def _node_of(self, placement: Placement) -> NodeDelta:
        node = placement.holding.node
        delta = self.nodes.get(node)
        if delta is None:
            delta = self.nodes[node] = NodeDelta(node, placement.incarnation, self._shard.layouts.get(node, 0))
        return delta

    def _price_for(self, tenant: TenantId) -> PriceVersionId | None:
        if tenant not in self._prices:
            self._prices[tenant] = self._shard.price_for(tenant, self.now)
        return self._prices[tenant]


def _check_gangs(tasks: Iterable[WaitingTask]) -> None:
    """Refuses a part of a gang. That each of its tasks still waits is then checked with all others."""
    gangs = Counter(task.queued.gang for task in tasks)
    parts = [gang for gang, placed in gangs.items() if gang is not None and placed != gang.size]
    if parts:
        raise GuardFailed(f"{len(parts)} gangs of the plan are not whole")


async def commit_batch(unit: UnitOfWork, lease: Lease, batch: Batch) -> None:
    """Binds every placement or none.

    The order of locks is that of every other writer: the leader's epoch, jobs, nodes, usage.

    Raises:
        LeaseLost: another leader took over.
        GuardFailed: a task no longer waits, or a node, a counter or a reservation is not as planned.
        asyncpg.CheckViolationError: a node has not so much room, or a hard limit would be passed.
    """
    await check_epoch(unit, lease)
    if await list_open(unit, await unit.fetchval("SELECT clock_timestamp()")) != batch.open_windows:
        raise GuardFailed("reservations began, ended or changed since the plan")
    new = batch.new
    await unit.execute(
        "SELECT id FROM job WHERE id = ANY($1) ORDER BY id FOR NO KEY UPDATE", list({each.job for each in new})
    )
    bound = await jobs.bind_tasks(
        unit, [each.task for each in new], [each.attempt for each in new], [each.id for each in new], batch.now
    )
    if bound != len(new):
        raise GuardFailed(f"{len(new) - bound} of {len(new)} tasks no longer wait")
    await allocations.insert_allocations(unit, new, batch.epoch, batch.now)
    await take_from_nodes(unit, batch.nodes)
    await change_usage(unit, batch.usage, 1)
    unit.emit_written(batch.events)
