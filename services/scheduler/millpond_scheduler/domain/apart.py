"""Rules on the places of other tasks: how many more of its kind a node may take, as anti-affinity and spread say.

What they forbid is a mask over rows, made for a task that has such rules and for no other.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from millpond_contracts.quantities import MAX_COUNT
from millpond_contracts.resources import TopologyLevel
from millpond_scheduler.domain.candidates import CandidateCache, Candidates
from millpond_scheduler.domain.columns import IntArray
from millpond_scheduler.domain.neighbours import selector_of
from millpond_scheduler.domain.requests import Bound, Kin, PlacementRules, QueuedTask
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.verdicts import Reason


@dataclass(slots=True)
class _Limit:
    """What one rule leaves: so many more tasks in each domain, and anything in domains that are not named."""

    reason: Reason
    domains: IntArray | None  # of each row; None = each row is one
    left: dict[int, int]
    most: int
    grows: bool  # whether the tasks that are placed count themselves

    def domain_of(self, row: int) -> int:
        return row if self.domains is None else int(self.domains[row])

    def room(self, row: int) -> int:
        return self.left.get(self.domain_of(row), self.most)

    def barred(self) -> IntArray:
        full = [domain for domain, left in self.left.items() if left <= 0]
        if self.domains is None or not full:
            return np.array(full, dtype=np.int64)
        return np.flatnonzero(np.isin(self.domains, full))


@dataclass(slots=True)
class Apart:
    """What the rules of equal tasks leave of each row, as of its making and what it was told since.

    `is_by_count`: it stays right when it is told what was taken; with a skew it has to be made anew after each task.
    """

    limits: list[_Limit] = field(default_factory=list)
    is_by_count: bool = True

    def barred(self) -> dict[Reason, IntArray]:
        """The rows that may take none, by the rule that forbids them."""
        found: dict[Reason, IntArray] = {}
        for limit in self.limits:
            rows = limit.barred()
            if len(rows):
                found[limit.reason] = np.union1d(found[limit.reason], rows) if limit.reason in found else rows
        return found

    def room(self, row: int) -> int:
        """How many more such tasks a row may take."""
        return min((limit.room(row) for limit in self.limits), default=MAX_COUNT)

    @property
    def most_per_row(self) -> int:
        """How many such tasks an empty row of an empty domain may take at most."""
        return min((limit.most for limit in self.limits if limit.most), default=MAX_COUNT)

    def take(self, row: int, tasks: int) -> None:
        """So many were placed on a row."""
        for limit in self.limits:
            if limit.grows:
                domain = limit.domain_of(row)
                limit.left[domain] = limit.left.get(domain, limit.most) - tasks

    def share(self, rows: IntArray, wanted: IntArray) -> IntArray:
        """How many tasks each of these rows may take at most, when they are filled in this order up to `wanted`."""
        shares = np.zeros(len(rows), dtype=np.int64)
        for place, row in enumerate(rows.tolist()):
            shares[place] = taken = max(0, min(int(wanted[place]), self.room(row)))
            if taken:
                self.take(row, taken)
        return shares


def find_apart(
    snapshot: Snapshot, kin: Kin, rules: PlacementRules | None, candidates: Candidates, also: Collection[int] = ()
) -> Apart | None:
    """What the rules on other tasks' places leave for a task; None when it has none.

    Args:
        also: rows that it could not use, so that nobody waits for them to be filled evenly.
    """
    if rules is None or not rules.bounds:
        return None
    limits = [_measure(snapshot, kin, bound, candidates, also) for bound in rules.bounds]
    return Apart(limits, is_by_count=all(bound.skew is None for bound in rules.bounds))


def bar(
    cache: CandidateCache, task: QueuedTask, kept_rows: frozenset[int], outside: frozenset[int] = frozenset()
) -> tuple[dict[Reason, IntArray], frozenset[int]]:
    """The rows that a task may not use because of where others stand or will, by why; and these with the kept ones.

    Args:
        kept_rows: rows that are kept for others.
        outside: rows that are not where its gang is tried.
    """
    if task.rules is None:
        return {}, kept_rows
    apart = find_apart(cache.snapshot, task.kin, task.rules, cache.get(task.request), kept_rows | outside)
    barred = {} if apart is None else apart.barred()
    if outside:
        barred[Reason.DOMAIN_TOO_SMALL] = np.array(sorted(outside), dtype=np.int64)
    return barred, kept_rows | rows_of(barred)


def rows_of(barred: Mapping[Reason, IntArray]) -> set[int]:
    """All rows that are forbidden by anything."""
    return {row for rows in barred.values() for row in rows.tolist()}


def _measure(snapshot: Snapshot, kin: Kin, bound: Bound, candidates: Candidates, also: Collection[int]) -> _Limit:
    tenant = candidates.request.tenant
    selector = selector_of(tenant, kin, bound)
    domains = None
    if bound.level is not TopologyLevel.NODE:
        domains = snapshot.domains_of(bound.level, np.arange(snapshot.columns.rows))
    counts: Counter[int] = Counter()
    for node, tasks in snapshot.neighbours.count(selector).items():
        row = snapshot.find_row(node)
        if row is not None and tasks:
            counts[row if domains is None else int(domains[row])] += tasks
    grows = selector.matches_kin(tenant, kin)
    if bound.skew is None:
        left = {domain: bound.most - tasks if grows else 0 for domain, tasks in counts.items()}
        return _Limit(bound.reason, domains, left, bound.most if grows else MAX_COUNT, grows)
    rows = candidates.view_empty()[1]
    if also:
        rows = rows[~np.isin(rows, list(also))]
    usable = set((rows if domains is None else np.unique(domains[rows])).tolist())
    fewest = min((counts[domain] for domain in usable), default=0)
    left = {domain: fewest + bound.skew - counts[domain] for domain in usable}
    return _Limit(bound.reason, domains, left, 0, grows)
