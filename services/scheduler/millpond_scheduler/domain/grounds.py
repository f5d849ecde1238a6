"""Where the packed tasks of a gang may stand together: domains of a level that have room, the tightest first.

Room is counted group by group, which no placement can exceed; whether all groups find it side by side is then tried.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from millpond_contracts.resources import TopologyLevel
from millpond_scheduler.domain.apart import find_apart
from millpond_scheduler.domain.candidates import CandidateCache, Candidates
from millpond_scheduler.domain.columns import ABSENT, IntArray
from millpond_scheduler.domain.gangs import count_fitting
from millpond_scheduler.domain.requests import PlacementRules, QueuedTask
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.topology import LEVELS
from millpond_scheduler.domain.views import RowView

# So many domains of a level are tried at most.
MAX_GROUNDS = 8

Runs: TypeAlias = Sequence[tuple[tuple[QueuedTask, ...], Candidates]]
"""The equal tasks of a gang side by side, with the nodes as they see them."""


@dataclass(frozen=True, slots=True)
class Ground:
    """One domain; `outside` are the rows that are not in it. Without a level everything is inside.

    `is_preferred`: it also binds tasks that only prefer to be packed. `is_short`: it has too little room, as every
    domain has, though together they would have enough.
    """

    level: TopologyLevel | None = None
    name: str = ""
    outside: frozenset[int] = frozenset()
    is_preferred: bool = False
    is_short: bool = False

    def closed_to(self, rules: PlacementRules | None) -> frozenset[int]:
        """The rows that a task with these rules may not use, when the gang stands here."""
        binds = rules is not None and (rules.pack or (self.is_preferred and rules.prefers_pack))
        return self.outside if binds else frozenset()


ANYWHERE = Ground()


def list_grounds(
    cache: CandidateCache,
    runs: Sequence[tuple[QueuedTask, ...]],
    closed: Collection[int] = (),
    *,
    by_empty: bool = False,
) -> Sequence[Ground]:
    """Where a unit is to be tried, one after the other; never nothing.

    Args:
        runs: the equal tasks of it side by side.
        closed: rows that it may not use.
        by_empty: whether a domain counts as roomy that would have room if nothing ran; then the emptiest comes first.
    """
    rules = [run[0].rules for run in runs]
    if not any(rules):
        return (ANYWHERE,)
    required = next((each.pack for each in rules if each and each.pack), None)
    preferred = next((each.prefers_pack for each in rules if each and each.prefers_pack), None)
    if required is None and preferred is None:
        return (ANYWHERE,)
    snapshot, seen = cache.snapshot, [(run, cache.get(run[0].request)) for run in runs]
    found: list[Ground] = []
    if preferred is not None and not by_empty:
        end = 0 if required is None else LEVELS.index(required) + 1
        for level in reversed(LEVELS[end : LEVELS.index(preferred) + 1]):
            found += _list_at(snapshot, seen, closed, level, is_preferred=True)
    if required is None:
        return [*found, ANYWHERE]
    return found + (_list_at(snapshot, seen, closed, required, by_empty=by_empty) or [ANYWHERE])


def _list_at(
    snapshot: Snapshot,
    runs: Runs,
    closed: Collection[int],
    level: TopologyLevel,
    *,
    is_preferred: bool = False,
    by_empty: bool = False,
) -> list[Ground]:
    """The domains with room; where there is none and it is required, the one that lacks least."""
    domains = snapshot.domains_of(level, np.arange(snapshot.columns.rows))
    bound = [each for each in runs if _is_bound(each[0][0].rules, is_preferred=is_preferred)]
    fitting = [_count(snapshot, run, candidates, closed, empty=by_empty) for run, candidates in bound]
    known = domains != ABSENT
    if not known.any():
        return []
    rooms = np.array([np.bincount(domains[known], weights=each[known]) for each in fitting], dtype=np.int64)
    sizes = np.array([[len(run)] for run, _ in bound])
    names = {domain: snapshot.domain_name(level, domain) for domain in np.flatnonzero(rooms.any(axis=0)).tolist()}
    roomy = [domain for domain in names if (rooms[:, domain : domain + 1] >= sizes).all()]
    is_short = not roomy and all(each.sum() >= len(run) for each, (run, _) in zip(fitting, bound, strict=True))
    if not roomy and names and not is_preferred:
        roomy = [min(names, key=lambda each: (-int(np.minimum(rooms[:, each], sizes[:, 0]).sum()), names[each]))]
    now = _rooms_now(snapshot, bound, closed, domains, known) if by_empty else rooms
    order = -1 if by_empty else 1
    roomy.sort(key=lambda each: ([order * int(room) for room in now[:, each]], names[each]))
    return [
        Ground(level, names[each], frozenset(np.flatnonzero(domains != each).tolist()), is_preferred, is_short)
        for each in roomy[:MAX_GROUNDS]
    ]


def _rooms_now(
    snapshot: Snapshot, bound: Runs, closed: Collection[int], domains: IntArray, known: IntArray
) -> IntArray:
    fitting = [_count(snapshot, run, candidates, closed, empty=False) for run, candidates in bound]
    return np.array([np.bincount(domains[known], weights=each[known]) for each in fitting], dtype=np.int64)


def _is_bound(rules: PlacementRules | None, *, is_preferred: bool) -> bool:
    return rules is not None and bool(rules.pack or (is_preferred and rules.prefers_pack))


def _count(
    snapshot: Snapshot, run: tuple[QueuedTask, ...], candidates: Candidates, closed: Collection[int], *, empty: bool
) -> IntArray:
    """How many tasks of a run each row could take by itself."""
    candidates.refresh()
    rows = slice(0, snapshot.columns.rows)
    counts = count_fitting(RowView(snapshot, candidates.fits, rows, empty=empty))
    counts[list(closed)] = 0
    apart = find_apart(snapshot, run[0].kin, run[0].rules, candidates)
    if apart is not None:
        for barred in apart.barred().values():
            counts[barred] = 0
        counts = np.minimum(counts, apart.most_per_row)
    return np.minimum(counts, len(run))
