"""The timeline of an allocation in whole microseconds, and the seconds that telescope along it.

Source: docs/decisions (metering); whole seconds by telescoping, so that the parts of any division sum to the whole.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from millpond_billing.domain.facts import (
    Activated,
    Bound,
    Fact,
    Holding,
    Parties,
    ProviderStopRequested,
    Released,
    Resized,
)
from millpond_contracts.ids import AllocationId
from millpond_contracts.prices import MICROSECONDS_PER_SECOND, Sku
from millpond_contracts.quantities import microseconds_between

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class AnomalyKind(StrEnum):
    """What was odd about the facts; billing went on by the rule beside it."""

    CONFLICT = "conflict"  # two different facts of one kind: the lower generation holds
    OUT_OF_ORDER = "out_of_order"  # an instant before the previous boundary: moved to the boundary
    AFTER_RELEASE = "after_release"  # an instant after the release: moved to the release


@dataclass(frozen=True, slots=True, order=True)
class Anomaly:
    """Something for a person to look at; `detail` names the fact."""

    kind: AnomalyKind
    detail: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """One allocation from bind to release. `bound_at <= active_at <= waived_from <= released_at`; null = not yet.

    `steps` are (from instant, holding): the first at `bound_at`, one more per resize.
    """

    allocation_id: AllocationId
    parties: Parties
    bound_at: int
    active_at: int | None
    waived_from: int | None
    released_at: int | None
    reason: str | None
    provider_fault: bool
    steps: tuple[tuple[int, Holding], ...]
    anomalies: tuple[Anomaly, ...] = ()

    def seconds_until(self, instant: int) -> int:
        """Whole seconds begun between activation and `instant`: S(t) = ceil((t - active_at) / 1 s)."""
        if self.active_at is None or instant <= self.active_at:
            return 0
        return -((self.active_at - instant) // MICROSECONDS_PER_SECOND)

    def seconds_between(self, start: int, end: int) -> int:
        """Whole seconds that begin in `[start, end)`: S(end) - S(start)."""
        return self.seconds_until(end) - self.seconds_until(start)

    def amount_at(self, sku: Sku, instant: int) -> int:
        """Smallest units of `sku` held at `instant`, for an instant from `bound_at` on."""
        amount = 0
        for since, holding in self.steps:
            if since <= instant:
                amount = holding.amount(sku)
        return amount

    def skus(self) -> tuple[Sku, ...]:
        """Every SKU that was ever held, sorted."""
        return tuple(sorted({sku for _, holding in self.steps for sku, _ in holding.amounts}))


def instant_of(moment: datetime) -> int:
    """Microseconds since 1970 in UTC of an aware moment."""
    return microseconds_between(_EPOCH, moment)


def moment_of(instant: int) -> datetime:
    """The aware UTC moment of microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=instant)


def find_timeline(facts: Iterable[Fact]) -> Timeline | None:
    """The timeline that the facts of one allocation tell, the same for any order and any duplicates.

    Returns:
        None while the bind is unknown: a release that arrives first waits for it.

    Raises:
        ValueError: the facts are of several allocations.
    """
    distinct = set(facts)
    if len({fact.allocation_id for fact in distinct}) > 1:
        raise ValueError("expected facts of one allocation")
    anomalies: set[Anomaly] = set()
    bound = _first([fact for fact in distinct if isinstance(fact, Bound)], anomalies)
    if bound is None:
        return None
    activated = _first([fact for fact in distinct if isinstance(fact, Activated)], anomalies)
    stop = _first([fact for fact in distinct if isinstance(fact, ProviderStopRequested)], anomalies)
    released = _first([fact for fact in distinct if isinstance(fact, Released)], anomalies)
    active_at = None if activated is None else _not_before(bound.at, activated, anomalies)
    boundary = bound.at if active_at is None else active_at
    released_at = None if released is None else _not_before(boundary, released, anomalies)
    return Timeline(
        allocation_id=bound.allocation_id,
        parties=bound.parties,
        bound_at=bound.at,
        active_at=active_at,
        waived_from=None if stop is None else _waived_from(boundary, stop, released_at, anomalies),
        released_at=released_at,
        reason=None if released is None else released.reason,
        # The stop request alone already says who ended it.
        provider_fault=stop is not None or (released is not None and released.provider_fault),
        steps=_steps(bound, [fact for fact in distinct if isinstance(fact, Resized)], released_at, anomalies),
        anomalies=tuple(sorted(anomalies)),
    )


_F = TypeVar("_F", Bound, Activated, Resized, ProviderStopRequested, Released)


def _first(facts: Sequence[_F], anomalies: set[Anomaly]) -> _F | None:
    """The fact of the lowest generation; others that say something else are conflicts."""
    if not facts:
        return None
    # Writing a fact out costs more than all the rest; one alone needs no order.
    ordered = sorted(facts, key=lambda fact: (fact.generation, fact.at, repr(fact))) if len(facts) > 1 else facts
    for other in ordered[1:]:
        if _content(other) != _content(ordered[0]):
            anomalies.add(Anomaly(AnomalyKind.CONFLICT, repr(other)))
    return ordered[0]


def _content(fact: Fact) -> tuple[object, ...]:
    """What a fact says, without the generation that told it."""
    match fact:
        case Bound():
            return (fact.at, fact.parties, fact.holding)
        case Resized():
            return (fact.at, fact.holding)
        case Released():
            return (fact.at, fact.reason, fact.provider_fault)
        case _:
            return (fact.at,)


def _not_before(boundary: int, fact: Fact, anomalies: set[Anomaly]) -> int:
    if fact.at < boundary:
        anomalies.add(Anomaly(AnomalyKind.OUT_OF_ORDER, repr(fact)))
    return max(boundary, fact.at)


def _waived_from(boundary: int, stop: Fact, released_at: int | None, anomalies: set[Anomaly]) -> int:
    # A stop asked for before activation is in order: all the active time is waived.
    waived_from = max(boundary, stop.at)
    if released_at is not None and waived_from > released_at:
        anomalies.add(Anomaly(AnomalyKind.AFTER_RELEASE, repr(stop)))
        return released_at
    return waived_from


def _steps(
    bound: Bound, resizes: Sequence[Resized], released_at: int | None, anomalies: set[Anomaly]
) -> tuple[tuple[int, Holding], ...]:
    """Holdings by instant; generations order resizes, and a clock set back never reorders them."""
    steps = {bound.at: bound.holding}
    told: dict[tuple[object, ...], Resized] = {}
    for fact in sorted(resizes, key=lambda fact: (fact.generation, fact.at, repr(fact))):
        told.setdefault(_content(fact), fact)
    boundary, generation = bound.at, None
    for fact in told.values():
        if fact.generation == generation:
            anomalies.add(Anomaly(AnomalyKind.CONFLICT, repr(fact)))
            continue
        generation = fact.generation
        boundary = _not_before(boundary, fact, anomalies)
        if released_at is not None and boundary >= released_at:
            anomalies.add(Anomaly(AnomalyKind.AFTER_RELEASE, repr(fact)))
            break
        steps[boundary] = fact.holding
    return tuple(sorted(steps.items(), key=lambda step: step[0]))
