"""The billing domain against the independent model, on random histories, to the last digit."""

from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millpond_billing.domain.conservation import (
    Capacity,
    TimeState,
    bill_difference,
    conserve,
    held_spans,
    value_at_list,
)
from millpond_billing.domain.facts import Fact
from millpond_billing.domain.periods import Period
from millpond_billing.domain.rating import RatedSegment, rate_timeline
from millpond_billing.domain.statements import Statement, charges_in
from millpond_billing.domain.timeline import Timeline, find_timeline
from millpond_contracts.bodies.bills import ChargeKind
from millpond_contracts.ids import AllocationId, TenantId
from millpond_contracts.prices import Sku, exact_sum
from tests.factories.billing import CPU, GPU, MEMORY, SECOND, START, assemble_statement, book_of, facts_of, named
from tests.reference import billing_model

pytestmark = pytest.mark.unit

SKUS = (GPU, CPU, MEMORY, "device/mi300/reserved")
PRICED = (*SKUS, "device/*/on_demand", "device/*/reserved")
HORIZON = 400 * SECOND
# Half of all instants on whole seconds from the start, so that boundaries coincide often.
instants = st.one_of(
    st.integers(0, HORIZON).map(lambda offset: START + offset),
    st.integers(0, HORIZON // SECOND).map(lambda second: START + second * SECOND),
)
amounts = st.dictionaries(st.sampled_from(SKUS), st.integers(1, 20_000), min_size=1, max_size=3)
unit_prices = st.decimals(min_value=0, max_value="0.9", places=18, allow_nan=False).map(str)


@st.composite
def price_events(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A full list from the beginning of time, then some later versions of the list and of tenants."""
    first = {sku: draw(unit_prices) for sku in PRICED}
    events = [_price("v0", None, 0, first, draw(st.integers(0, 90)))]
    scopes = st.sampled_from([None, "t1", "t2"])
    later = draw(st.lists(st.tuples(scopes, instants), max_size=4, unique=True))
    for number, (tenant, at) in enumerate(later, 1):
        lines = draw(st.dictionaries(st.sampled_from(PRICED), unit_prices, min_size=1))
        # The list always prices everything; a tenant's version may leave out what it likes.
        lines = first | lines if tenant is None else lines
        events.append(_price(f"v{number}", tenant, at, lines, draw(st.integers(0, 90))))
    return events


def _price(version: str, tenant: str | None, at: int, lines: dict[str, str], minimum: int) -> dict[str, Any]:
    return {
        "type": "price",
        "version": version,
        "tenant": tenant,
        "at": at,
        "minimum_seconds": minimum,
        "unit_prices": lines,
    }


@st.composite
def life_events(draw: st.DrawFn, name: str) -> list[dict[str, Any]]:
    """One allocation; a tenth of its instants step back behind the one before, as a clock set back would have them."""
    at = draw(instants)
    events: list[dict[str, Any]] = [
        {"type": "bound", "tenant": draw(st.sampled_from(["t1", "t2"])), "at": at, "amounts": draw(amounts)}
    ]

    def next_at() -> int:
        nonlocal at
        if draw(st.integers(0, 9)) == 0:
            return at - draw(st.integers(0, 5 * SECOND))
        at += draw(st.one_of(st.integers(0, 120 * SECOND), st.integers(0, 60).map(lambda second: second * SECOND)))
        return at

    if draw(st.integers(0, 9)):
        events.append({"type": "activated", "at": next_at()})
    for _ in range(draw(st.integers(0, 2))):
        events.append({"type": "resized", "at": next_at(), "amounts": draw(amounts)})
    if draw(st.integers(0, 3)) == 0:
        events.append({"type": "provider_stop_requested", "at": next_at()})
    if draw(st.integers(0, 9)):
        events.append({"type": "released", "at": next_at(), "provider_fault": draw(st.booleans())})
    return [{"allocation": name, **event} for event in events]


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    lives = [draw(life_events(f"a{number}")) for number in range(draw(st.integers(1, 4)))]
    return [*draw(price_events()), *(event for life in lives for event in life)]


@st.composite
def boundaries(draw: st.DrawFn) -> list[int]:
    """Boundaries of two or three periods that together hold every history."""
    inner = draw(st.lists(instants, min_size=1, max_size=2, unique=True))
    return [START - 3600 * SECOND, *sorted(inner), START + 86_400 * SECOND]


def timelines(facts: list[Fact]) -> list[Timeline]:
    by_allocation: dict[AllocationId, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_allocation[fact.allocation_id].append(fact)
    found = [find_timeline(group) for _, group in sorted(by_allocation.items())]
    return [one for one in found if one is not None]


def rate(history: list[dict[str, Any]], facts: list[Fact], until: int, cuts: list[int]) -> list[RatedSegment]:
    prices = book_of(history)
    return [one for timeline in timelines(facts) for one in rate_timeline(timeline, prices, until, cuts)]


def statement_of(rated: list[RatedSegment], tenant: str, period: Period) -> Statement:
    tenant_id = named(TenantId, tenant)
    own = [one for one in rated if one.segment.parties.tenant_id == tenant_id]
    return assemble_statement(tenant_id, period, "CNY", charges_in(own, period))


def assert_equal_to_model(statement: Statement, bill: billing_model.Bill) -> None:
    ours = {(str(line.kind), None if line.sku is None else str(line.sku)): line for line in statement.lines}
    for key in ours.keys() | bill.amounts.keys() | bill.seconds.keys():
        amount = ours[key].amount if key in ours else Decimal(0)
        assert Fraction(amount) == bill.amounts.get(key, Fraction(0)), key
        assert (ours[key].seconds if key in ours else 0) == bill.seconds.get(key, 0), key
    assert Fraction(statement.total) == bill.total
    assert exact_sum(line.amount for line in statement.lines) == statement.total


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), boundaries(), st.randoms(use_true_random=False))
def test_statement_when_facts_arrive_twice_and_shuffled_then_equals_the_model(
    history: list[dict[str, Any]], cuts: list[int], random: Any
) -> None:
    facts = facts_of(history)
    delivered = [*facts, *random.sample(facts, len(facts) // 2)]
    random.shuffle(delivered)
    until = cuts[-1]

    rated = rate(history, facts, until, cuts)
    assert rate(history, delivered, until, cuts) == rated

    for number, (start, end) in enumerate(pairwise(cuts)):
        for tenant in ("t1", "t2"):
            statement = statement_of(rated, tenant, Period(number, start, end))
            assert_equal_to_model(statement, billing_model.bill(history, tenant, start, end, until=until))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), boundaries(), instants)
def test_statement_when_known_only_up_to_an_instant_then_equals_the_model(
    history: list[dict[str, Any]], cuts: list[int], until: int
) -> None:
    rated = rate(history, facts_of(history), until, cuts)

    for number, (start, end) in enumerate(pairwise(cuts)):
        statement = statement_of(rated, "t1", Period(number, start, end))
        assert_equal_to_model(statement, billing_model.bill(history, "t1", start, end, until=until))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), boundaries(), st.integers(0, 100_000))
def test_conservation_when_the_node_is_now_and_then_unavailable_then_holds_to_the_last_digit(
    history: list[dict[str, Any]], cuts: list[int], spare: int
) -> None:
    start, end, prices = cuts[0], cuts[-1], book_of(history)
    found = timelines(facts_of(history))
    metered: dict[str, list[Decimal]] = {"t1": [], "t2": []}
    for sku in SKUS:
        held = [span for timeline in found for span in held_spans(timeline, Sku.parse(sku), end)]
        amount = sum(
            max((span.amount for span in held if span.allocation_id == one.allocation_id), default=0) for one in found
        )
        capacity = [
            Capacity(first, last, amount + spare, available=bool(number % 2))
            for number, (first, last) in enumerate(pairwise(cuts))
        ]
        times = conserve(capacity, held, start, end)
        model = billing_model.held_microseconds(history, sku, start, end)
        assert {state: times.by_state[TimeState(state)] for state in model} == model
        assert times.capacity == (amount + spare) * (end - start)
        assert times.difference == 0
        assert value_at_list(capacity, held, start, end, prices, Sku.parse(sku)).difference == 0
        for tenant, values in metered.items():
            own = {one.allocation_id for one in found if one.parties.tenant_id == named(TenantId, tenant)}
            spans = [span for span in held if span.allocation_id in own]
            value = value_at_list(capacity, spans, start, end, prices, Sku.parse(sku))
            values += [value.by_state[TimeState.ACTIVE], value.by_state[TimeState.RELEASING]]

    rated = rate(history, facts_of(history), end, [])
    for tenant, values in metered.items():
        statement = statement_of(rated, tenant, Period(0, start, end))
        # RELEASING before activation was never metered, and has no charge either.
        assert statement.subtotal(ChargeKind.USAGE) == exact_sum(values)
        assert bill_difference(statement, exact_sum(values)) == 0
