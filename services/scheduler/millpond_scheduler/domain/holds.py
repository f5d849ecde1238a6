"""Nodes that are kept free for whoever has waited too long, and what may still use them until it starts.

Whom capacity alone has blocked for long gets the nodes that make room first kept free of everybody behind it. A task
whose time limit ends it before the expected start may use them meanwhile: it cannot delay whom they are kept for. So
the nodes are kept until then, and for several at a time as long as they are few of those that could serve. Where no
limit tells when they are free, nothing may use them: they are kept for one task or gang per pool and flavor at a time,
and not for ever.
"""

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from millpond_contracts.ids import NodeId, PoolId, TaskId
from millpond_scheduler.domain.apart import find_apart
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.grounds import ANYWHERE, Ground, Runs
from millpond_scheduler.domain.horizon import Awaited, Horizon, Room, narrowness
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.domain.requests import QueuedTask
from millpond_scheduler.domain.snapshot import Snapshot

# Of the nodes that could take a task, one in so many is kept at most; but always enough for one task or gang.
KEPT_SHARE = 8
# So much is weighed beside the first on each flavor: a task of several devices counts 1, a gang GANG_COST, since its
# nodes are searched anew. Whoever needs one device has the next that is given back, in its order.
MAX_WEIGHED, GANG_COST = 64, 8

# Before any instant: nobody has ended by then. Behind every one: whoever ends then never does.
_NEVER, _UNENDING = -1, 1 << 62

Line: TypeAlias = tuple[PoolId, str | None]
"""Tasks that compete for the same: of one pool and flavor, or of one pool without devices."""


@dataclass(frozen=True, slots=True)
class _Kept:
    owner: TaskId
    rows: frozenset[int]
    starts_us: int


class Holds:
    """The rows that one batch keeps free.

    Attributes:
        earmarks: the node that is kept for each task of whoever has waited too long.
        awaited: the first task of each such unit that needs several devices together.
    """

    def __init__(self, snapshot: Snapshot, horizon: Horizon, policy: Policy, now_us: int) -> None:
        self.earmarks: dict[TaskId, NodeId] = {}
        self.awaited: dict[TaskId, Awaited] = {}
        self._snapshot = snapshot
        self._horizon = horizon
        self._policy = policy
        self._now_us = now_us
        self._kept: list[_Kept] = []
        self._rows: frozenset[int] = frozenset()
        self._starts: list[int] = []
        self._owners: set[TaskId] = set()
        self._closed: dict[tuple[int, TaskId | None], frozenset[int]] = {}
        self._kept_lines: defaultdict[Line, list[tuple[int, int | None]]] = defaultdict(list)
        self._told_lines: set[Line] = set()
        self._weighed = 0
        horizon.begin()

    def keep(self, owner: TaskId, nodes: Iterable[NodeId], starts_us: int | None = None) -> None:
        """Keeps nodes for a task or a gang's first task; until `starts_us` others may use them, None = nobody may."""
        rows = frozenset(row for row in map(self._snapshot.find_row, nodes) if row is not None)
        kept = _Kept(owner, rows, _NEVER if starts_us is None else starts_us)
        self._kept.append(kept)
        insort(self._starts, kept.starts_us)
        self._owners.add(owner)
        self._closed.clear()
        self._rows |= rows

    def closed_to(self, unit: tuple[QueuedTask, ...]) -> frozenset[int]:
        """The rows that a task or gang may not use: they are kept for others, and it might still run at their start.

        Units that may use the same rows get the same value.
        """
        if not self._kept:
            return frozenset()
        lasting = [task.lasts_us for task in unit]
        ends = _UNENDING if None in lasting else self._now_us + max(each for each in lasting if each is not None)
        own = unit[0].id if unit[0].id in self._owners else None
        key = (bisect_left(self._starts, ends), own)
        found = self._closed.get(key)
        if found is None:
            closed = [kept.rows for kept in self._kept if kept.owner != own and kept.starts_us < ends]
            mine = [kept.rows for kept in self._kept if kept.owner == own]
            found = self._closed[key] = frozenset().union(*closed) - frozenset().union(*mine)
        return found

    def note(self, task: QueuedTask) -> None:
        """A task of this batch has got a place: when it ends is told by its own limit."""
        if task.lasts_us is not None:
            self._horizon.expect(task.id, self._now_us + task.lasts_us)

    @property
    def rows(self) -> frozenset[int]:
        """All rows that are kept for anybody."""
        return self._rows

    def decide(self, wanted: Runs, grounds: Sequence[Ground] = (ANYWHERE,)) -> int | None:
        """Keeps nodes for a task or gang that capacity has blocked, where it is its turn.

        Args:
            wanted: its equal tasks side by side, with their candidates, narrowed to the flavors that the limits leave.
            grounds: where it may stand; the one where it can start first is kept.

        Returns:
            When it can start by the limits of what runs, if nodes are kept for it or it is next on one of its flavors.
        """
        first = wanted[0][0][0]
        waited_us = self._now_us - first.queued_at_us
        is_late = waited_us >= self._policy.hold_after_seconds * 1_000_000
        lines = {(each.request.pool, flavor) for _, each in wanted for flavor in _list_flavors(each)}
        is_next = not lines & self._told_lines
        self._told_lines |= lines
        if not is_next and not (is_late and _count_devices(wanted) > 1 and self._weighed < MAX_WEIGHED):
            return None
        found = [rooms for ground in grounds if (rooms := self._find_rooms(wanted, ground)) is not None]
        if not found:
            return None
        rooms = min(found, key=_latest_start)
        self._weighed += 0 if is_next else 1 if len(wanted[0][0]) == 1 else GANG_COST
        starts = [room.starts_us for room in rooms]
        starts_us = None if None in starts else max(each for each in starts if each is not None)
        if not (is_late and self._take_lines(wanted, rooms, starts_us, waited_us)):
            return starts_us if is_next else None
        for (run, _), room in zip(wanted, rooms, strict=True):
            self.keep(first.id, room.nodes, starts_us)
            self.earmarks |= {task.id: node for task, node in zip(run, room.nodes, strict=True)}
        if (devices := _count_devices(wanted)) > 1:
            self.awaited[first.id] = Awaited(devices, min(room.able for room in rooms))
        return starts_us

    def _take_lines(
        self,
        wanted: Runs,
        rooms: Sequence[Room],
        starts_us: int | None,
        waited_us: int,
    ) -> bool:
        """Whether these nodes may be kept beside what is kept already; then they count."""
        counts: Counter[Line] = Counter()
        for (_, candidates), room in zip(wanted, rooms, strict=True):
            for node in set(room.nodes):
                counts.update(self._list_lines(candidates, node))
        fewest = min(room.able for room in rooms)
        for line, count in counts.items():
            # What is kept for those that have many more nodes to go to takes nothing from whoever has only these.
            kept = [each for able, each in self._kept_lines[line] if narrowness(able) <= narrowness(fewest)]
            known = [each for each in kept if each is not None]
            if kept and (starts_us is None or len(known) < len(kept) or (sum(known) + count) * KEPT_SHARE > fewest):
                return False
        if starts_us is None and not self._policy.is_holding(waited_us):
            return False
        for line, count in counts.items():
            self._kept_lines[line].append((fewest, None if starts_us is None else count))
        return True

    def _list_lines(self, candidates: Candidates, node: NodeId) -> set[Line]:
        """What of a node the tasks compete for."""
        row = self._snapshot.find_row(node)
        devices = () if row is None else self._snapshot.record_at(row).devices
        found = {device.profile.flavor for device in devices}
        return {(candidates.request.pool, flavor) for flavor in _list_flavors(candidates) if flavor in (None, *found)}

    def _find_rooms(self, wanted: Runs, ground: Ground) -> list[Room] | None:
        """Room for every group of a gang, on nodes of their own; where there are too few, perhaps on the same ones."""
        for is_apart in (True, False):
            rooms: list[Room] = []
            taken = set(self._rows)
            for run, candidates in wanted:
                closed = taken | ground.closed_to(run[0].rules)
                apart = find_apart(self._snapshot, run[0].kin, run[0].rules, candidates, closed)
                key = (run[0].id, ground.name)
                room = self._horizon.find_room(key, candidates, len(run), self._now_us, closed, apart)
                if room is None:
                    break
                rooms.append(room if is_apart else replace(room, starts_us=None))
                if is_apart:
                    taken |= {row for row in map(self._snapshot.find_row, room.nodes) if row is not None}
            else:
                return rooms
            if len(wanted) == 1:
                break
        return None


def _latest_start(rooms: Sequence[Room]) -> tuple[bool, int]:
    """When all of them are free; what nobody can tell comes last."""
    starts = [room.starts_us for room in rooms]
    return None in starts, max((each for each in starts if each is not None), default=0)


def _count_devices(wanted: Runs) -> int:
    return sum(len(run) * (each.request.devices.count if each.request.devices else 1) for run, each in wanted)


def _list_flavors(candidates: Candidates) -> tuple[str | None, ...]:
    return candidates.flavors if candidates.request.devices else (None,)
