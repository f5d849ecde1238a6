"""When running work makes room, as far as its time limits tell: the longest that each task may hold what it has.

A task without a limit, or one whose limit has no known end, is never seen to end.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from millpond_contracts.ids import NodeId, TaskId
from millpond_scheduler.domain.apart import Apart
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.columns import IntArray
from millpond_scheduler.domain.gangs import count_fitting
from millpond_scheduler.domain.lack import rank_by_lack
from millpond_scheduler.domain.plans import Holding
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.views import Free, RowView

# So many nodes are looked at most, or as many as could hold four such gangs; those that lack least come first.
MAX_ROWS = 1024
# So many requests and choices are remembered: those of the heads of each flavor, and of whom nodes are kept for.
MAX_REMEMBERED = 128
# A choice stands for so long, so that a stream of small batches does not weigh every node anew in each.
CHOICE_US = 1_000_000

Owner: TypeAlias = tuple[TaskId, str]
"""The first of the tasks, and the domain in which they would stand, "" = anywhere."""

Steps: TypeAlias = list[tuple[int, int]]
"""Of one row: from this instant on so many tasks find room; the first is (0, now), the others rise."""


@dataclass(frozen=True, slots=True)
class Room:
    """Where tasks that start together find room: a node for each, and when all have it; None = nobody can tell.

    `able` = how many nodes could take one of them when empty.
    """

    nodes: tuple[NodeId, ...]
    starts_us: int | None
    able: int


@dataclass(frozen=True, slots=True)
class Awaited:
    """What nodes are kept for: so many devices together, for which so many nodes could serve when empty."""

    devices: int
    able: int


def narrowness(able: int) -> int:
    """Of whom only half as many nodes could take is the narrower: the smaller value."""
    return able.bit_length()


@dataclass(slots=True)
class _Memory:
    """The steps of some rows for one request, as of a tick of the snapshot.

    `ranked` are the rows in the order in which they would be chosen for one task, with when it could start there, as of
    the tick `ranked_at`; `able` = how many could take it when empty.
    """

    seen: int = -1
    steps: dict[int, Steps] = field(default_factory=dict)
    ranked_at: int = -1
    ranked: list[tuple[int, int | None]] = field(default_factory=list)
    able: int = 0


class Horizon:
    """The ends of what runs, and what was found from them; kept by the caller between batches.

    Args:
        find_end: the instant by which a task has surely ended, in microseconds; None = not known.

    Attributes:
        awaited: for whom the last batches kept nodes, by the first task.
    """

    def __init__(self, snapshot: Snapshot, find_end: Callable[[TaskId], int | None] = lambda _: None) -> None:
        self.awaited: Mapping[TaskId, Awaited] = {}
        self._snapshot = snapshot
        self._find_end = find_end
        self._expected: dict[TaskId, int] = {}
        self._memory: dict[RequestClass, _Memory] = {}
        self._choices: dict[tuple[Owner, RequestClass, int], tuple[int, Room | None]] = {}

    def begin(self) -> None:
        """A batch begins: what former ones expected is known by now, was taken back, or is still being written."""
        self._expected = {
            task: end
            for task, end in self._expected.items()
            if self._snapshot.find_holding(task) is not None and self._find_end(task) is None
        }

    def expect(self, task: TaskId, end_us: int) -> None:
        """A task that is only planned ends by then."""
        self._expected[task] = end_us

    def find_room(
        self,
        owner: Owner,
        candidates: Candidates,
        size: int,
        now_us: int,
        taken: Collection[int] = (),
        apart: Apart | None = None,
    ) -> Room | None:
        """The nodes where so many equal tasks can start first, together; None when not even empty ones could hold them.

        A choice is held for a second. Whatever was chosen before is weighed again, so that the instant of one owner
        only becomes earlier while no task outlives its limit.

        Args:
            owner: whose choice is held.
            taken: rows that they may not use, as they are kept free for somebody else.
            apart: what the rules on other tasks' places leave; it is used up.
        """
        key = (owner, candidates.request, size)
        chosen_us, room = self._choices.get(key, (None, None))
        former = [] if room is None else [self._snapshot.find_row(node) for node in room.nodes]
        is_here = all(row is not None and row not in taken for row in former)
        if chosen_us is None or not 0 <= now_us - chosen_us < CHOICE_US or not is_here:
            room = self._choose(candidates, size, now_us, taken, {row for row in former if row is not None}, apart)
            self._choices[key] = (now_us, room)
            while len(self._choices) > MAX_REMEMBERED:
                del self._choices[next(iter(self._choices))]
        return room

    def _choose(
        self,
        candidates: Candidates,
        size: int,
        now_us: int,
        taken: Collection[int],
        former: Collection[int],
        apart: Apart | None,
    ) -> Room | None:
        if size == 1 and apart is None:
            one = self._choose_one(candidates, now_us, taken)
            if one is not None:
                return one
        view, rows = candidates.view_empty()
        able = len(rows)
        rows = rows[~np.isin(rows, list(taken))]
        empty = count_fitting(view)[rows]
        order = rank_by_lack(self._snapshot, candidates, rows)
        if apart is not None:
            empty[order] = apart.share(rows[order], empty[order])
        if empty.sum() < size:
            return None
        needed = int(np.searchsorted(empty[order].cumsum(), min(4 * size, empty.sum()))) + 1
        first = order[: max(MAX_ROWS, needed)]
        first = np.concatenate((first, np.array([i for i in order[len(first) :] if rows[i] in former], dtype=np.int64)))
        rows, empty = rows[first], empty[first]
        steps = self._list_steps(candidates, rows)
        if apart is not None:
            steps = [
                [(at, min(count, most)) for at, count in each] for each, most in zip(steps, empty.tolist(), strict=True)
            ]
        now = np.array([each[0][1] for each in steps], dtype=np.int64)
        starts, fitting = _when(steps, size)
        if starts is None:
            fitting = empty
        # Those with most room now, then those that lack least: little has to end.
        nodes: list[NodeId] = []
        for place in np.argsort(-now, kind="stable").tolist():
            tasks = min(int(fitting[place]), size - len(nodes))
            nodes += [self._snapshot.record_at(int(rows[place])).id] * tasks
        return Room(tuple(nodes), None if starts is None else max(starts, now_us), able)

    def _choose_one(self, candidates: Candidates, now_us: int, taken: Collection[int]) -> Room | None:
        """The same for one task: of equal ones in a batch each takes the next of one order of the rows."""
        memory = self._remember(candidates.request)
        if memory.ranked_at != self._snapshot.changes.tick:
            rows = candidates.view_empty()[1]
            memory.able = len(rows)
            order = rank_by_lack(self._snapshot, candidates, rows)
            former = self._list_chosen(candidates.request)
            far = [place for place in order[MAX_ROWS:].tolist() if int(rows[place]) in former]
            rows = rows[[*order[:MAX_ROWS].tolist(), *far]]
            ranked = []
            for place, (row, steps) in enumerate(zip(rows.tolist(), self._list_steps(candidates, rows), strict=True)):
                starts = next((instant for instant, count in steps if count), None)
                ranked.append((starts is None, starts or 0, -steps[0][1], place, row, starts))
            memory.ranked = [(row, starts) for *_, row, starts in sorted(ranked)]
            memory.ranked_at = self._snapshot.changes.tick
        for row, starts in memory.ranked:
            if row not in taken:
                starts_us = None if starts is None else max(starts, now_us)
                return Room((self._snapshot.record_at(row).id,), starts_us, memory.able)
        return None

    def _list_chosen(self, request: RequestClass) -> set[int]:
        """The rows that were chosen for such a request."""
        nodes = [room.nodes for (_, of, _), (_, room) in self._choices.items() if of == request and room is not None]
        found = (self._snapshot.find_row(node) for each in nodes for node in each)
        return {row for row in found if row is not None}

    def _remember(self, request: RequestClass) -> _Memory:
        memory = self._memory.pop(request, None) or _Memory()
        self._memory[request] = memory  # the latest in use is the last to be forgotten
        while len(self._memory) > MAX_REMEMBERED:
            del self._memory[next(iter(self._memory))]
        return memory

    def _list_steps(self, candidates: Candidates, rows: IntArray) -> list[Steps]:
        """The steps of each row; those that did not change since are remembered."""
        memory = self._remember(candidates.request)
        stamps = self._snapshot.columns.stamp[rows]
        known = np.array([row in memory.steps for row in rows.tolist()], dtype=np.bool_)
        stale = rows[(stamps > memory.seen) | ~known]
        if memory.seen != self._snapshot.changes.tick:
            changed = np.flatnonzero(self._snapshot.columns.stamp[: self._snapshot.columns.rows] > memory.seen)
            for row in changed.tolist():
                memory.steps.pop(row, None)
        if len(stale):
            memory.steps |= zip(stale.tolist(), self._measure(candidates, stale), strict=True)
        memory.seen = self._snapshot.changes.tick
        return [memory.steps[row] for row in rows.tolist()]

    def _measure(self, candidates: Candidates, rows: IntArray) -> list[Steps]:
        """Ends one task of every row after the other, by their latest ends, and counts what then fits."""
        endings = [self._list_endings(row) for row in rows.tolist()]
        free = Free.of(self._snapshot.columns, rows)
        steps: list[Steps] = [[] for _ in endings]
        for turn in range(max(map(len, endings)) + 1):
            places = [place for place, ends in enumerate(endings) if len(ends) >= turn]
            if turn:
                for place in places:
                    self._release(free, place, endings[place][turn - 1][1])
            view = RowView(self._snapshot, candidates.fits, rows[places], free=free.of_places(places))
            for place, count in zip(places, count_fitting(view).tolist(), strict=True):
                if not steps[place] or count > steps[place][-1][1]:
                    steps[place].append((endings[place][turn - 1][0] if turn else 0, count))
        return steps

    def _list_endings(self, row: int) -> list[tuple[int, Holding]]:
        holdings = self._snapshot.list_holdings(self._snapshot.record_at(row).id)
        found = [(end, one) for one in holdings if (end := self._end_of(one.task)) is not None]
        return sorted(found, key=lambda each: (each[0], each[1].task.int))

    def _end_of(self, task: TaskId) -> int | None:
        known = self._find_end(task)
        return self._expected.get(task) if known is None else known

    def _release(self, free: Free, place: int, holding: Holding) -> None:
        free.cpu[place] += holding.cpu_milli
        free.memory[place] += holding.memory_mib
        for pick in holding.devices:
            slot = self._snapshot.find_slot(pick.device)
            if slot is not None:
                free.device_milli[place, slot] += pick.milli
                free.device_memory[place, slot] += pick.memory_mib
                free.device_slots[place, slot] -= pick.slots


def _when(steps: list[Steps], size: int) -> tuple[int | None, IntArray]:
    """The first instant at which so many tasks have room on the rows together, and how many each row then takes."""
    rises = sorted(
        (instant, count - (0 if turn == 0 else each[turn - 1][1]))
        for each in steps
        for turn, (instant, count) in enumerate(each)
    )
    total = 0
    for instant, more in rises:
        total += more
        if total >= size:
            at = [max((count for since, count in each if since <= instant), default=0) for each in steps]
            return instant, np.array(at, dtype=np.int64)
    return None, np.zeros(len(steps), dtype=np.int64)
