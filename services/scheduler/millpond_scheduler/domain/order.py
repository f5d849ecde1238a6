"""The order of decision: whoever was promised room, then whichever virtual pool stands first with its queue's head.

Each virtual pool has a queue of its own, in the order of its policy; priorities mean nothing to other virtual pools.
After each decision the virtual pool stands as it then does, so that one batch serves them in turns. A head that finds
no place holds nobody up: what is behind it, and every other queue, has its turn all the same.
"""

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence

from millpond_contracts.bodies.tenants import QueuePolicy
from millpond_contracts.ids import ProjectId, TaskId, VirtualPoolId
from millpond_scheduler.domain.admission import (
    CPU,
    MEMORY,
    Balance,
    Ledger,
    Resource,
    add_amounts,
    demand_of,
    device,
)
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.fair_share import NOTHING, FairShares, Standing
from millpond_scheduler.domain.plans import Placement
from millpond_scheduler.domain.queues import Queues, Unit
from millpond_scheduler.domain.requests import RequestClass


class _Line:
    """Units in order, read one by one: a virtual pool's, or with fair share those of one project."""

    def __init__(self, units: Iterator[Unit], held: dict[Resource, int]) -> None:
        self.held = held
        self.decided = 0
        self._units = units
        self._head = next(units, None)

    @property
    def is_over(self) -> bool:
        return self._head is None

    def head(self) -> Unit:
        assert self._head is not None, "it is over"
        return self._head

    def advance(self) -> None:
        """The head was decided."""
        self.decided += 1
        self._head = next(self._units, None)


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

    def take(self, queues: Queues) -> Iterator[Unit]:
        """Every unit once."""
        first = [unit for unit in map(queues.find_unit, self._promised) if unit is not None]
        yield from sorted(first, key=lambda unit: unit[0].order_key)
        lines = {
            key: {project: self._without_promised(line) for project, line in of_projects.items()}
            for key, of_projects in queues.list_units(self._policy_of).items()
        }
        if len(lines) == 1:
            ((_, of_projects),) = lines.items()
            if len(of_projects) == 1:
                yield from of_projects.popitem()[1]  # nobody to be compared with
                return
        yield from self._take_in_turns(lines)

    def _without_promised(self, units: Iterator[Unit]) -> Iterator[Unit]:
        return (unit for unit in units if unit[0].id not in self._promised)

    def stand(self, balance: Balance, request: RequestClass, tasks: int = 1) -> Standing:
        """How a virtual pool stands with so many more tasks."""
        base, any_of = self._wanted(request)
        return Standing(not balance.is_own(base, any_of, tasks), self._shares.weigh(balance.state, balance.used))

    def _take_in_turns(
        self, queues: Mapping[VirtualPoolId, Mapping[ProjectId | None, Iterator[Unit]]]
    ) -> Iterator[Unit]:
        heap = []
        for number, (key, of_projects) in enumerate(queues.items()):
            lines = [_Line(units, self._held_by(key, project)) for project, units in of_projects.items()]
            if (head := self._choose(key, lines)) is not None:
                heap.append((*self._place(key, head), number, key, lines, head))
        heapq.heapify(heap)
        while heap:
            *_, number, key, lines, line = heap[0]
            seen = len(self._placements)
            yield line.head()
            line.advance()
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

    def _held_by(self, key: VirtualPoolId, project: ProjectId | None) -> dict[Resource, int]:
        balance = self._ledger.find_balance(key)
        return {} if balance is None else dict(balance.state.used_by.get(project, {}))

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

    def _policy_of(self, key: VirtualPoolId) -> QueuePolicy:
        balance = self._ledger.find_balance(key)
        return QueuePolicy.PRIORITY if balance is None else balance.state.policy
