"""The order of decision: whoever was promised room, then whichever virtual pool stands first with its queue's head.

Each virtual pool has a queue of its own, in the order of its policy; priorities mean nothing to other virtual pools.
Whoever needs many devices together and has nodes kept for it waits for what comes seldom: within its priority it goes
before tasks that are older than it, but not before those that have waited so many times as long (decision 166).
After each decision the virtual pool stands as it then does, so that one batch serves them in turns. A head that finds
no place holds nobody up: what is behind it, and every other queue, has its turn all the same.
"""

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from millpond_contracts.bodies.tenants import QueuePolicy
from millpond_contracts.ids import ProjectId, TaskId, VirtualPoolId
from millpond_scheduler.domain.admission import Balance, Ledger, Resource, add_amounts, demand_of
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.fair_share import NOTHING, FairShares, Standing
from millpond_scheduler.domain.horizon import Awaited, narrowness
from millpond_scheduler.domain.plans import Placement
from millpond_scheduler.domain.queues import Queues, Unit
from millpond_scheduler.domain.requests import QueuedTask, RequestClass

# The wait of whom nodes are kept for counts as often as it needs devices together, and so often at most.
MOST_WEIGHT = 8

_BY_PRIORITY = (QueuePolicy.PRIORITY, QueuePolicy.FAIR_SHARE)


class _Line:
    """Units in order, read one by one: a virtual pool's, or with fair share those of one project.

    Attributes:
        head: the next one; () = it is over.
    """

    def __init__(self, units: Iterator[Unit], held: dict[Resource, int]) -> None:
        self.held = held
        self.decided = 0
        self._units = units
        self.head: Unit = next(units, ())

    def advance(self) -> None:
        """The head was decided."""
        self.decided += 1
        self.head = next(self._units, ())


@dataclass(slots=True)
class _Waiting:
    """What waits in a virtual pool; `balance` None = nobody knows it."""

    balance: Balance | None
    lines: Sequence[_Line]


class Turns:
    """The waiting units in the order of decision; each is asked for when the one before it was decided.

    Args:
        cache: what the hardware of a pool allows each request.
        shares: how virtual pools are compared.
        promised: first tasks of the units that come first.
        placements: the batch's, to which whoever decides adds.
        awaited: whom nodes are kept for, by the first task.
        now_us: the instant of the decision.
    """

    def __init__(
        self,
        ledger: Ledger,
        cache: CandidateCache,
        shares: FairShares,
        promised: Collection[TaskId],
        placements: Sequence[Placement],
        awaited: Mapping[TaskId, Awaited] = MappingProxyType({}),
        now_us: int = 0,
    ) -> None:
        self._ledger = ledger
        self._cache = cache
        self._shares = shares
        self._promised = promised
        self._placements = placements
        self._awaited = awaited
        self._now_us = now_us

    def take(self, queues: Queues) -> Iterator[Unit]:
        """Every unit once."""
        first = [unit for unit in map(queues.find_unit, self._promised) if unit is not None]
        yield from sorted(first, key=lambda unit: unit[0].order_key)
        awaited = self._list_awaited(queues)
        lines = {
            key: {
                project: self._with_awaited(self._without_promised(line), awaited[key, project])
                if (key, project) in awaited
                else self._without_promised(line)
                for project, line in of_projects.items()
            }
            for key, of_projects in queues.list_units(self._policy_of).items()
        }
        if len(lines) == 1:
            ((_, of_projects),) = lines.items()
            if len(of_projects) == 1:
                yield from of_projects.popitem()[1]  # nobody to be compared with
                return
        yield from self._take_in_turns(lines)

    def _without_promised(self, units: Iterator[Unit]) -> Iterator[Unit]:
        return (unit for unit in units if unit[0].id not in self._promised) if self._promised else units

    def _list_awaited(self, queues: Queues) -> dict[tuple[VirtualPoolId, ProjectId | None], list[Unit]]:
        """The units that nodes are kept for, by line."""
        found: dict[tuple[VirtualPoolId, ProjectId | None], list[Unit]] = {}
        for task in self._awaited:
            unit = None if task in self._promised else queues.find_unit(task)
            if unit is not None:
                key = unit[0].virtual_pool
                project = unit[0].project if self._policy_of(key) is QueuePolicy.FAIR_SHARE else None
                found.setdefault((key, project), []).append(unit)
        return found

    def _with_awaited(self, units: Iterator[Unit], awaited: list[Unit]) -> Iterator[Unit]:
        """A line in which units that nodes are kept for stand where their weighed wait puts them.

        Of several that stand side by side those go first that have fewer nodes to go to.
        """
        left = sorted(awaited, key=lambda unit: (self._stand_at(unit[0]), unit[0].id.int), reverse=True)
        moved = {unit[0].id for unit in awaited}
        for unit in units:
            ready = []
            while left and self._stand_at(left[-1][0]) <= self._stand_at(unit[0]):
                ready.append(left.pop())
            yield from sorted(ready, key=self._narrowest_first)
            if unit[0].id not in moved:
                yield unit

    def _stand_at(self, task: QueuedTask) -> tuple[int, int]:
        """Its priority, where that counts, and since when it waits, or would if its wait counted once."""
        awaited = self._awaited.get(task.id)
        weight = 1 if awaited is None else min(awaited.devices, MOST_WEIGHT)
        return self._rank(task), self._now_us - weight * (self._now_us - task.queued_at_us)

    def _narrowest_first(self, unit: Unit) -> tuple[int, int, tuple[int, int, int]]:
        first = unit[0]
        return self._rank(first), narrowness(self._awaited[first.id].able), first.order_key

    def _rank(self, task: QueuedTask) -> int:
        return -task.priority if self._policy_of(task.virtual_pool) in _BY_PRIORITY else 0

    def stand(self, balance: Balance, request: RequestClass, tasks: int = 1) -> Standing:
        """How a virtual pool stands with so many more tasks."""
        is_own = balance.is_own(self._cache.get(request).wants, tasks)
        return Standing.of(self._shares.weigh(balance.state, balance.used), borrows=not is_own)

    def _take_in_turns(
        self, queues: Mapping[VirtualPoolId, Mapping[ProjectId | None, Iterator[Unit]]]
    ) -> Iterator[Unit]:
        heap = []
        for number, (key, of_projects) in enumerate(queues.items()):
            balance = self._ledger.find_balance(key)
            lines = [_Line(units, _held_by(balance, project)) for project, units in of_projects.items()]
            waiting = _Waiting(balance, lines)
            if (line := self._choose(waiting)) is not None:
                heap.append((*self._place(balance, line.head), number, waiting, line))
        heapq.heapify(heap)
        while heap:
            *_, number, waiting, line = heap[0]
            seen = len(self._placements)
            yield line.head
            line.advance()
            if len(waiting.lines) > 1:
                for placement in self._placements[seen:]:
                    add_amounts(line.held, demand_of(placement))
            if (head := self._choose(waiting)) is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (*self._place(waiting.balance, head.head), number, waiting, head))

    def _place(self, balance: Balance | None, unit: Unit) -> tuple[Standing, int]:
        if balance is None:  # an unknown virtual pool gets nothing whenever its turn comes
            return Standing.of(NOTHING, borrows=True), unit[0].queued_at_us
        return self.stand(balance, unit[0].request, len(unit)), unit[0].queued_at_us

    def _choose(self, waiting: _Waiting) -> _Line | None:
        """The line that is next: of several projects the one that holds least, then the one less often looked at."""
        lines, balance = [line for line in waiting.lines if line.head], waiting.balance
        if len(lines) < 2 or balance is None:
            return lines[0] if lines else None
        pool = balance.state.pool
        return min(lines, key=lambda one: (self._shares.dominant(pool, one.held), one.decided, one.head[0].order_key))

    def _policy_of(self, key: VirtualPoolId) -> QueuePolicy:
        balance = self._ledger.find_balance(key)
        return QueuePolicy.PRIORITY if balance is None else balance.state.policy


def _held_by(balance: Balance | None, project: ProjectId | None) -> dict[Resource, int]:
    return {} if balance is None else dict(balance.state.used_by.get(project, {}))
