"""The order of decision: whoever was promised room, then whichever virtual pool stands first with its queue's head.

Each virtual pool has a queue of its own, in the order of its policy; priorities mean nothing to other virtual pools.
After each decision the virtual pool stands as it then does, so that one batch serves them in turns. A head that finds
no place holds nobody up: what is behind it, and every other queue, has its turn all the same.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from millpond_contracts.bodies.tenants import QueuePolicy
from millpond_contracts.ids import ProjectId, TaskId, VirtualPoolId
from millpond_scheduler.domain.admission import (
    CPU,
    MEMORY,
    Balance,
    Ledger,
    Resource,
    VirtualPoolState,
    add_amounts,
    demand_of,
    device,
)
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.fair_share import NOTHING, FairShares, Standing
from millpond_scheduler.domain.gangs import list_units
from millpond_scheduler.domain.plans import Placement
from millpond_scheduler.domain.requests import QueuedTask, RequestClass

Unit: TypeAlias = tuple[QueuedTask, ...]
Key: TypeAlias = tuple[int, int, int]

# Behind everything that says how long it takes at most.
_UNBOUNDED = 1 << 62


def key_of(policy: QueuePolicy) -> Callable[[QueuedTask], Key]:
    """The place of a task in the queue of its virtual pool; with fair share, among the tasks of its project."""
    if policy is QueuePolicy.FIFO:
        return lambda task: (0, task.queued_at_us, task.id.int)
    if policy is QueuePolicy.SHORTEST_JOB_FIRST:
        return lambda task: (_UNBOUNDED if task.work is None else task.work, task.queued_at_us, task.id.int)
    return lambda task: task.order_key


def order_queue(
    queue: Iterable[QueuedTask], virtual_pools: Mapping[VirtualPoolId, VirtualPoolState]
) -> dict[VirtualPoolId, list[QueuedTask]]:
    """The waiting tasks of each virtual pool in the order of its policy, however they were read."""
    queues: dict[VirtualPoolId, list[QueuedTask]] = {}
    for task in queue:
        queues.setdefault(task.virtual_pool, []).append(task)
    for key, tasks in queues.items():
        state = virtual_pools.get(key)
        tasks.sort(key=key_of(QueuePolicy.PRIORITY if state is None else state.policy))
    return dict(sorted(queues.items()))


@dataclass(slots=True)
class _Line:
    """Units in order, of which so many were decided: a virtual pool's, or with fair share those of one project."""

    units: Sequence[Unit]
    held: dict[Resource, int]
    decided: int = 0

    @property
    def is_over(self) -> bool:
        return self.decided == len(self.units)

    def head(self) -> Unit:
        return self.units[self.decided]


class Turns:
    """The waiting units in the order of decision; each is asked for when the one before it was decided.

    Args:
        cache: what the hardware of a pool allows each request.
        shares: how virtual pools are compared.
        promised: first tasks of the units that come first.
        placements: the batch's, to which whoever decides adds.
    """

    def __init__(
        self,
        ledger: Ledger,
        cache: CandidateCache,
        shares: FairShares,
        promised: Collection[TaskId],
        placements: Sequence[Placement],
    ) -> None:
        self._ledger = ledger
        self._cache = cache
        self._shares = shares
        self._promised = promised
        self._placements = placements
        self._wants: dict[RequestClass, tuple[Mapping[Resource, int], Mapping[Resource, int]]] = {}

    def take(self, queue: Iterable[QueuedTask]) -> Iterator[Unit]:
        """Every unit once."""
        queues = order_queue(queue, self._ledger.states())
        units = {key: list(list_units(tasks)) for key, tasks in queues.items()}
        if self._promised:
            first = [unit for listed in units.values() for unit in listed if unit[0].id in self._promised]
            yield from sorted(first, key=lambda unit: unit[0].order_key)
            units = {key: [one for one in listed if one[0].id not in self._promised] for key, listed in units.items()}
        if len(units) == 1:
            ((key, listed),) = units.items()
            if self._policy_of(key) is not QueuePolicy.FAIR_SHARE:
                yield from listed  # nobody to be compared with
                return
        yield from self._take_in_turns(units)

    def stand(self, balance: Balance, request: RequestClass, tasks: int = 1) -> Standing:
        """How a virtual pool stands with so many more tasks."""
        base, any_of = self._wanted(request)
        return Standing(not balance.is_own(base, any_of, tasks), self._shares.weigh(balance.state, balance.used))

    def _take_in_turns(self, units: Mapping[VirtualPoolId, list[Unit]]) -> Iterator[Unit]:
        heap = []
        for number, (key, listed) in enumerate(units.items()):
            lines = self._split(key, listed)
            if (head := self._choose(key, lines)) is not None:
                heap.append((*self._place(key, head), number, key, lines, head))
        heapq.heapify(heap)
        while heap:
            *_, number, key, lines, line = heap[0]
            seen, used = len(self._placements), self._used(key)
            while True:
                unit = line.head()
                yield unit
                line.decided += 1
                # What found no place left everything as it was: its like behind it stands as it stood.
                if line.is_over or len(lines) > 1 or len(self._placements) > seen or self._used(key) != used:
                    break
                if line.head()[0].request is not unit[0].request or len(line.head()) != len(unit):
                    break
            for placement in self._placements[seen:]:
                add_amounts(line.held, demand_of(placement))
            if (head := self._choose(key, lines)) is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (*self._place(key, head), number, key, lines, head))

    def _place(self, key: VirtualPoolId, line: _Line) -> tuple[Standing, int]:
        unit, balance = line.head(), self._ledger.find_balance(key)
        # An unknown virtual pool gets nothing whenever its turn comes.
        standing = Standing(True, NOTHING) if balance is None else self.stand(balance, unit[0].request, len(unit))
        return standing, unit[0].queued_at_us

    def _split(self, key: VirtualPoolId, units: Sequence[Unit]) -> list[_Line]:
        balance = self._ledger.find_balance(key)
        if balance is None or balance.state.policy is not QueuePolicy.FAIR_SHARE:
            return [_Line(units, {})]
        found: dict[ProjectId | None, list[Unit]] = {}
        for unit in units:
            found.setdefault(unit[0].project, []).append(unit)
        return [_Line(listed, dict(balance.state.used_by.get(project, {}))) for project, listed in found.items()]

    def _choose(self, key: VirtualPoolId, lines: Sequence[_Line]) -> _Line | None:
        """The line that is next: of several projects the one that holds least, then the one less often looked at."""
        waiting = [line for line in lines if not line.is_over]
        balance = self._ledger.find_balance(key)
        if len(waiting) < 2 or balance is None:
            return waiting[0] if waiting else None
        pool = balance.state.pool
        return min(
            waiting, key=lambda one: (self._shares.dominant(pool, one.held), one.decided, one.head()[0].order_key)
        )

    def _wanted(self, request: RequestClass) -> tuple[Mapping[Resource, int], Mapping[Resource, int]]:
        """What one task asks for: CPU and memory, and devices of one of these flavors."""
        found = self._wants.get(request)
        if found is None:
            flavors: Mapping[Resource, int] = {}
            if request.devices is not None:
                candidates = self._cache.get(request)
                flavors = {device(flavor): candidates.milli_of(flavor) for flavor in candidates.flavors}
            found = self._wants[request] = ({CPU: request.cpu_milli, MEMORY: request.memory_mib}, flavors)
        return found

    def _used(self, key: VirtualPoolId) -> Mapping[Resource, int]:
        balance = self._ledger.find_balance(key)
        return {} if balance is None else dict(balance.used)

    def _policy_of(self, key: VirtualPoolId) -> QueuePolicy:
        balance = self._ledger.find_balance(key)
        return QueuePolicy.PRIORITY if balance is None else balance.state.policy
