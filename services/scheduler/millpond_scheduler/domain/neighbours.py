"""How many of the tasks that somebody keeps away from, or counts, stand on each node.

Nothing is counted until a rule asks for it; from then on each holding that comes or goes is, until the rule is among
those that were asked for longest ago.
"""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from millpond_contracts.ids import JobId, NodeId, TaskId, TenantId
from millpond_scheduler.domain.plans import Holding
from millpond_scheduler.domain.requests import Bound, Kin

# So many are kept; a job has one or two.
MAX_SELECTORS = 512


@dataclass(frozen=True, slots=True)
class Selector:
    """Which tasks count: of a job (and group), or of a tenant's jobs with all of these labels."""

    tenant: TenantId
    job: JobId | None = None
    group: str | None = None
    labels: frozenset[tuple[str, str]] = frozenset()

    def matches(self, holding: Holding) -> bool:
        """Whether a holding is of such a task."""
        return holding.kin is not None and self.matches_kin(holding.tenant, holding.kin)

    def matches_kin(self, tenant: TenantId, kin: Kin) -> bool:
        """Whether such a task is one of these."""
        return (
            tenant == self.tenant
            and self.job in (None, kin.job)
            and self.group in (None, kin.group)
            and self.labels <= kin.labels
        )


def selector_of(tenant: TenantId, kin: Kin, bound: Bound) -> Selector:
    """Which tasks a bound of such a task counts."""
    if bound.labels:
        return Selector(tenant, labels=bound.labels)
    return Selector(tenant, kin.job, kin.group if bound.of_group else None)


class Neighbours:
    """Counts by node; `holdings` is everything held by task, looked at when a selector is first asked for."""

    def __init__(self, holdings: Mapping[TaskId, Holding]) -> None:
        self._holdings = holdings
        self._counts: OrderedDict[Selector, Counter[NodeId]] = OrderedDict()
        self._by_job: defaultdict[JobId | None, set[Selector]] = defaultdict(set)

    def count(self, selector: Selector) -> Counter[NodeId]:
        """How many such tasks hold something on each node; nodes without any may be left out."""
        found = self._counts.get(selector)
        if found is not None:
            self._counts.move_to_end(selector)
            return found
        counted = Counter(holding.node for holding in self._holdings.values() if selector.matches(holding))
        self._counts[selector] = counted
        self._by_job[selector.job].add(selector)
        if len(self._counts) > MAX_SELECTORS:
            oldest, _ = self._counts.popitem(last=False)
            self._by_job[oldest.job].discard(oldest)
            if not self._by_job[oldest.job]:
                del self._by_job[oldest.job]
        return counted

    def note(self, holding: Holding, sign: int) -> None:
        """A holding came (1) or went (-1)."""
        if not self._counts or holding.kin is None:
            return
        for job in (holding.kin.job, None):
            for selector in self._by_job.get(job, ()):
                if selector.matches(holding):
                    self._counts[selector][holding.node] += sign
