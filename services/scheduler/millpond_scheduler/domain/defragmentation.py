"""Moves that would let something start that waits though enough is free in sum: which tasks go where, and its worth.

A plan serves one waiting task or gang. Its place is taken first; then each task that stands there must find another
one. Only tasks whose jobs allow a restart are moved, none alone out of a gang, none that started a moment ago, and not
more than the budget. Everything is tried on the snapshot and undone; `moving.py` is about what is carried out.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from millpond_contracts.ids import NodeId, TaskId
from millpond_scheduler.domain.apart import find_apart, rows_of
from millpond_scheduler.domain.candidates import CandidateCache, Candidates
from millpond_scheduler.domain.gangs import list_runs
from millpond_scheduler.domain.grounds import Ground, list_grounds
from millpond_scheduler.domain.lack import rank_by_lack
from millpond_scheduler.domain.plans import Holding
from millpond_scheduler.domain.requests import Kin, PlacementRules, QueuedTask, RequestClass
from millpond_scheduler.domain.running import Running
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.views import RowView

# So many nodes are tried for each task at most, those that lack least first.
MAX_NODES = 64


class MoveOutcome(StrEnum):
    """What came of the search for moves, in the order in which it is asked."""

    STARTS_NOW = "starts_now"
    BELOW_THRESHOLD = "below_threshold"
    NO_WAY = "no_way"
    NOT_WORTH = "not_worth"
    MOVES = "moves"


@dataclass(frozen=True, slots=True)
class MoveRules:
    """When moves are worth it.

    `threshold_permille`: below this fragmentation nothing is moved. `max_moves`: the budget of one plan.
    `cool_down_seconds`: a task that started later stays. `restart_seconds` are lost by each move beside what it has
    done. `wait_seconds`: how long whoever is served would wait otherwise, where no time limit tells.
    """

    threshold_permille: int = 300
    max_moves: int = 8
    cool_down_seconds: int = 600
    restart_seconds: int = 60
    wait_seconds: int = 3600


@dataclass(frozen=True, slots=True)
class Movable:
    """A running task that may be restarted elsewhere, with what it asked for and beside which tasks it may stand."""

    running: Running
    request: RequestClass
    rules: PlacementRules | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A task that would go from one node to another; `cost` in device milli-seconds (CPU milli-seconds without)."""

    before: Holding
    after: Holding
    lost_seconds: int
    cost: int


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The moves that serve one task or gang, and the nodes on which its tasks would start, in their order.

    `gain` and `cost` are device milli-seconds (CPU milli-seconds if it asks for no device): what it would get of the
    time that it need not wait, and what the moved tasks lose.
    """

    outcome: MoveOutcome
    fragmentation_permille: int
    moves: tuple[Move, ...] = ()
    nodes: tuple[NodeId, ...] = ()
    gain: int = 0
    cost: int = 0


def measure_fragmentation(snapshot: Snapshot, candidates: Candidates) -> int:
    """Of what is free of the right devices (else of CPU) on open nodes, the thousandths that the request cannot use.

    1000 = there is some, but all of it in pieces that are too small; 0 = nothing is free, or all of it can be used.
    """
    columns = snapshot.columns
    rows = np.flatnonzero((columns.ready & ~columns.cordoned)[: columns.rows])
    rows = rows[columns.pool[rows] == snapshot.pools.find(candidates.request.pool)]
    is_useless = candidates.codes[rows] != 0
    view = RowView(snapshot, candidates.fits, rows)
    if candidates.request.devices is None:
        free = view.cpu_free
    else:
        free = np.where(view.eligible, view.device_milli_free, 0).sum(axis=1)
    total = int(free.sum())
    useless = int(free[is_useless].sum())
    return 1000 * useless // total if total else 0


def plan_moves(
    snapshot: Snapshot,
    cache: CandidateCache,
    unit: Sequence[QueuedTask],
    movable: Mapping[TaskId, Movable],
    now_us: int,
    wait_us: int | None,
    rules: MoveRules,
    kept_rows: Collection[int] = (),
) -> MovePlan:
    """Moves that let a task or gang start, as cheap as a search node by node finds them; the snapshot stays as it is.

    Args:
        unit: the task, or all tasks of the gang, hardest first.
        movable: the tasks that may be moved, by id.
        wait_us: how long the unit would have to wait by the time limits of what runs, None = nobody can tell.
        kept_rows: rows that are kept for others: nothing goes there.
    """
    fragmentation = max(measure_fragmentation(snapshot, cache.get(task.request)) for task in unit)
    best: tuple[int, tuple[Move, ...], tuple[NodeId, ...]] | None = None
    for ground in list_grounds(cache, list_runs(tuple(unit)), kept_rows, by_empty=True):
        search = _Search(snapshot, cache, movable, now_us, rules, frozenset(kept_rows), ground)
        try:
            if all(search.place(task) for task in unit):
                found = (sum(move.cost for move in search.moves), tuple(search.moves), tuple(search.nodes))
                best = found if best is None or found[0] < best[0] else best
        finally:
            search.undo()
    is_whole = best is not None
    cost, moves, nodes = best or (0, (), ())
    seconds = rules.wait_seconds if wait_us is None else wait_us // 1_000_000
    gain = seconds * sum(_amount(task.request) for task in unit)
    outcome = MoveOutcome.MOVES
    if is_whole and not moves:
        outcome = MoveOutcome.STARTS_NOW
    elif fragmentation < rules.threshold_permille:
        outcome = MoveOutcome.BELOW_THRESHOLD
    elif not is_whole:
        outcome = MoveOutcome.NO_WAY
    elif cost >= gain:
        outcome = MoveOutcome.NOT_WORTH
    if outcome in (MoveOutcome.BELOW_THRESHOLD, MoveOutcome.NO_WAY):
        return MovePlan(outcome, fragmentation)
    return MovePlan(outcome, fragmentation, moves, nodes, gain, cost)


def _amount(request: RequestClass) -> int:
    """Device milli that a task would hold, as far as it says so; CPU milli of one without devices."""
    demand = request.devices
    return request.cpu_milli if demand is None else demand.count * (demand.milli or 1)


class _Search:
    """One search: what was placed and moved on the snapshot, to be undone."""

    def __init__(
        self,
        snapshot: Snapshot,
        cache: CandidateCache,
        movable: Mapping[TaskId, Movable],
        now_us: int,
        rules: MoveRules,
        kept: frozenset[int],
        ground: Ground,
    ) -> None:
        self.moves: list[Move] = []
        self.nodes: list[NodeId] = []
        self._snapshot = snapshot
        self._cache = cache
        self._movable = movable
        self._now_us = now_us
        self._rules = rules
        self._kept = kept
        self._ground = ground
        self._places: set[int] = set()  # the rows of the unit: nobody is moved there
        self._mark = snapshot.mark()

    def place(self, task: QueuedTask) -> bool:
        """Give one task of the unit a place, if need be one that is made by moves."""
        candidates = self._cache.get(task.request)
        closed = self._closed_to(task.kin, task.rules, candidates) | self._ground.closed_to(task.rules)
        row = candidates.find_best(closed)
        if row is not None:
            self._occupy(candidates, task, row)
            return True
        found = self._find_cheapest(candidates, task, closed)
        if found is None:
            return False
        row, moves = found
        for move in moves:
            self._snapshot.release_allocation(move.before.task)
        self._occupy(candidates, task, row)
        for move in moves:
            self._snapshot.place(move.after)
        self.moves += moves
        return True

    def undo(self) -> None:
        """Everything as it was."""
        self._snapshot.undo_to(self._mark)
        for move in self.moves:
            self._snapshot.apply_allocation(move.before)

    def _closed_to(self, kin: Kin | None, rules: PlacementRules | None, candidates: Candidates) -> frozenset[int]:
        """The rows that a task may not use: they are kept, or other tasks stand there as its rules do not allow."""
        apart = None if kin is None else find_apart(self._snapshot, kin, rules, candidates, self._kept)
        return self._kept if apart is None else self._kept | rows_of(apart.barred())

    def _find_cheapest(
        self, candidates: Candidates, task: QueuedTask, closed: Collection[int]
    ) -> tuple[int, list[Move]] | None:
        rows = candidates.view_empty()[1]
        rows = rows[~np.isin(rows, list(closed))]
        rows = rows[rank_by_lack(self._snapshot, candidates, rows)]
        tried = ((row, self._try_row(candidates, task, row)) for row in rows.tolist()[:MAX_NODES])
        found = [(row, moves) for row, moves in tried if moves is not None]
        if not found:
            return None
        return min(
            found,
            key=lambda each: (sum(self._weigh(self._movable[move.before.task]) for move in each[1]), len(each[1])),
        )

    def _try_row(self, candidates: Candidates, task: QueuedTask, row: int) -> list[Move] | None:
        """The moves that free a row for the task and where they lead; the snapshot is as before."""
        victims = self._free_row(candidates, row)
        if victims is None or len(self.moves) + len(victims) > self._rules.max_moves:
            return None
        mark, places = self._snapshot.mark(), set(self._places)
        for victim in victims:
            self._snapshot.release_allocation(victim.running.id)
        self._occupy(candidates, task, row)  # the target first: what makes room for it cannot take it
        found = [self._rehouse(each) for each in sorted(victims, key=_largest_first)]
        moves = [move for move in found if move is not None]
        self._snapshot.undo_to(mark)
        self.nodes.pop()
        self._places = places
        for victim in victims:
            self._snapshot.apply_allocation(victim.running.holding)
        return moves if len(moves) == len(victims) else None

    def _free_row(self, candidates: Candidates, row: int) -> list[Movable] | None:
        """As few tasks as make room on the row, the cheapest; the snapshot is as before."""
        node = self._snapshot.record_at(row).id
        here = [self._movable[one.task] for one in self._snapshot.list_holdings(node) if one.task in self._movable]
        here = [one for one in here if one.running.holding.node == node]  # not one that this plan has moved here
        picked: list[Movable] = []
        for victim in sorted(here, key=lambda one: (self._weigh(one), one.running.id.int)):
            if candidates.codes[row] == 0:
                break
            self._snapshot.release_allocation(victim.running.id)
            picked.append(victim)
        is_free = candidates.codes[row] == 0
        needed = []
        for victim in reversed(picked):
            self._snapshot.apply_allocation(victim.running.holding)
            if is_free and candidates.codes[row] != 0:
                self._snapshot.release_allocation(victim.running.id)
                needed.append(victim)
        for victim in needed:
            self._snapshot.apply_allocation(victim.running.holding)
        return needed if is_free else None

    def _occupy(self, candidates: Candidates, task: QueuedTask, row: int) -> None:
        request, node = candidates.request, self._snapshot.record_at(row).id
        picks = candidates.pick_devices(row)
        held = (request.tenant, request.cpu_milli, request.memory_mib)
        self._snapshot.place(Holding(task.id, node, *held, picks, task.kin))
        self._places.add(row)
        self.nodes.append(node)

    def _rehouse(self, victim: Movable) -> Move | None:
        """Another place for a task, on devices of the flavor that it has: its limits and price stay as they are."""
        request, before = victim.request, victim.running.holding
        if request.devices is not None and victim.running.flavor is not None:
            flavors = frozenset({victim.running.flavor})
            request = replace(request, devices=replace(request.devices, flavors=flavors))
        candidates = self._cache.get(request)
        home = self._snapshot.find_row(before.node)
        closed = self._closed_to(before.kin, victim.rules, candidates)
        row = candidates.find_best(closed | self._places | ({home} if home is not None else set()))
        if row is None:
            return None
        after = replace(before, node=self._snapshot.record_at(row).id, devices=candidates.pick_devices(row))
        self._snapshot.place(after)
        return Move(before, after, self._lost_seconds(victim), self._cost(victim))

    def _weigh(self, one: Movable) -> int:
        """Its cost to the microsecond: which of two is cheaper changes in no second, so a plan that was seen stays."""
        lost_us = max(0, self._now_us - one.running.started_us) + self._rules.restart_seconds * 1_000_000
        return lost_us * _amount(one.request)

    def _cost(self, one: Movable) -> int:
        return self._lost_seconds(one) * _amount(one.request)

    def _lost_seconds(self, one: Movable) -> int:
        """What it has done so far, and a restart."""
        return max(0, self._now_us - one.running.started_us) // 1_000_000 + self._rules.restart_seconds


def _largest_first(one: Movable) -> tuple[int, int, int]:
    holding = one.running.holding
    return (-holding.device_milli, -holding.cpu_milli, one.running.id.int)
