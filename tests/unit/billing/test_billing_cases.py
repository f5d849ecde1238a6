"""Failures reported against other billing systems, replayed; the id is that of the source.

Each names what went wrong there; here the right behaviour is asserted.
"""

from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest

from millpond_billing.domain.conservation import Capacity, ConservationBroken, conserve, held_spans
from millpond_billing.domain.periods import Calendar, Period
from millpond_billing.domain.prices import PriceBook
from millpond_billing.domain.rating import RatedSegment, charges_of, rate_timeline
from millpond_billing.domain.segments import SegmentKind, cut_segments
from millpond_billing.domain.statements import charges_in
from millpond_billing.domain.timeline import find_timeline, instant_of
from millpond_contracts.bodies.bills import ChargeKind
from millpond_contracts.ids import AllocationId, PriceVersionId, TenantId
from millpond_contracts.prices import Sku, exact_sum
from tests.factories.billing import (
    CPU,
    GPU,
    HOUR,
    SECOND,
    START,
    allocation_events,
    assemble_statement,
    book,
    facts_of,
    named,
    price_version,
    timeline,
)

pytestmark = pytest.mark.unit

T1 = named(TenantId, "t1")
ONE = "0.000001"  # a thousandth of 0.001 a device-second: 3.60 a device-hour
LIST = book(price_version("v1", {GPU: ONE, CPU: ONE}))
LATER = START + 400 * HOUR


def rate(prices: PriceBook = LIST, until: int = LATER, cuts: tuple[int, ...] = (), **parts: Any) -> list[RatedSegment]:
    return list(rate_timeline(timeline(**parts), prices, until, cuts))


def owed(rated: list[RatedSegment]) -> Decimal:
    return exact_sum(charge.amount for one in rated for charge in charges_of(one))


def by_kind(rated: list[RatedSegment], kind: ChargeKind) -> Decimal:
    return exact_sum(charge.amount for one in rated for charge in charges_of(one) if charge.kind is kind)


def test_vexa_330_when_the_stop_comes_four_times_then_there_is_one_segment() -> None:
    facts = facts_of(allocation_events(released=START + 90 * SECOND))

    life = find_timeline([*facts, facts[-1], facts[-1], facts[-1]])

    assert life is not None
    assert [segment.seconds for segment in cut_segments(life, LATER, ())] == [90]


def test_gpustack_6054_when_resized_within_an_hour_then_each_size_pays_its_own_time() -> None:
    rated = rate(
        amounts={GPU: 4000}, resizes=[(START + 30 * 60 * SECOND, {GPU: 1000})], released=START + 50 * 60 * SECOND
    )

    device_hours = sum(Fraction(one.segment.amount * one.segment.seconds, 1000 * 3600) for one in rated)
    assert device_hours == 2 + Fraction(1, 3)
    assert owed(rated) == Decimal("8.400")


def test_cf_abacus_88_when_a_period_brings_no_event_then_the_open_allocation_is_billed_for_all_of_it() -> None:
    calendar = Calendar.of("UTC")
    started, september = instant_of(datetime(2026, 8, 20, tzinfo=UTC)), instant_of(datetime(2026, 9, 9, tzinfo=UTC))
    period = calendar.period_at(september)

    rated = rate(cuts=(period.start, period.end), until=period.end, bound=started, active=started)
    statement = assemble_statement(T1, period, "CNY", charges_in(rated, period))

    assert statement.seconds == 30 * 86_400
    assert statement.total == Decimal("2592.00")


def test_cf_abacus_631_when_the_stop_precedes_the_start_then_nothing_is_negative() -> None:
    facts = facts_of(allocation_events(released=START + SECOND))
    assert find_timeline([facts[2]]) is None

    rated = rate(active=START + 5 * SECOND, released=START + 2 * SECOND)

    assert by_kind(rated, ChargeKind.USAGE) == 0
    assert owed(rated) == Decimal("0.06")  # the minimum of an allocation that was active


def test_opencost_2862_when_replicas_share_a_device_then_their_shares_sum_to_at_most_one() -> None:
    sku = Sku.parse(GPU)
    shares = [
        span for name in ("a1", "a2", "a3") for span in held_spans(timeline(name=name, amounts={GPU: 400}), sku, LATER)
    ]

    with pytest.raises(ConservationBroken, match="200 more"):
        conserve([Capacity(START, LATER, 1000, available=True)], shares, START, LATER)
    assert conserve([Capacity(START, LATER, 1000, available=True)], shares[:2], START, LATER).difference == 0


def test_opencost_723_when_a_node_has_eight_devices_then_eight_are_priced() -> None:
    assert owed(rate(amounts={GPU: 8000}, released=START + HOUR)) == 8 * owed(rate(released=START + HOUR))


@pytest.mark.parametrize(
    ("seconds", "billed"),
    [(Decimal("0.000001"), 60), (30, 60), (59, 60), (Decimal("59.5"), 60), (60, 60), (Decimal("60.1"), 61)],
)
def test_paas_cf_1788_when_short_then_the_minimum_is_charged_once_and_then_seconds(
    seconds: Decimal | int, billed: int
) -> None:
    rated = rate(released=START + int(seconds * SECOND), resizes=[(START + 10 * SECOND, {GPU: 1000})])

    assert owed(rated) == billed * Decimal("0.001")


def test_paas_cf_1788_when_a_short_run_crosses_a_period_then_the_minimum_is_charged_once_at_the_end() -> None:
    rated = rate(released=START + 30 * SECOND, cuts=(START + 10 * SECOND, START + 20 * SECOND))

    assert [one.segment.kind for one in rated].count(SegmentKind.MINIMUM) == 1
    assert owed(rated) == Decimal("0.060")


@pytest.mark.parametrize("parts", [{"provider_fault": True}, {"stop": START + 20 * SECOND}])
def test_minimum_when_the_provider_ended_it_then_is_waived(parts: dict[str, Any]) -> None:
    rated = rate(released=START + 20 * SECOND, **parts)

    assert owed(rated) == Decimal("0.020")


def test_waiver_when_the_provider_asked_to_stop_then_time_from_then_on_is_shown_and_taken_off() -> None:
    rated = rate(stop=START + 100 * SECOND + 1, released=START + 130 * SECOND)

    assert by_kind(rated, ChargeKind.USAGE) == Decimal("0.130")
    assert by_kind(rated, ChargeKind.WAIVER) == Decimal("-0.029")  # 30 s less the one that had begun
    assert owed(rated) == Decimal("0.101")


def test_waiver_when_the_price_is_zero_then_its_seconds_still_come_off() -> None:
    free, period = book(price_version("v1", {GPU: "0"})), Period(0, START, LATER)

    rated = rate(free, stop=START + 100 * SECOND, released=START + 130 * SECOND)

    assert assemble_statement(T1, period, "CNY", charges_in(rated, period)).seconds == 100


def test_start_when_it_fails_then_nothing_is_billed() -> None:
    assert rate(active=None, released=START + 90 * SECOND) == []


def test_killbill_1934_when_created_before_or_after_the_clocks_change_then_the_bill_is_equal() -> None:
    november = instant_of(datetime(2026, 11, 20, tzinfo=UTC))
    calendars = [Calendar.of("Europe/Berlin", date(2026, month, 1)) for month in (9, 11)]

    first, second = (calendar.period_at(november) for calendar in calendars)

    assert (first.start, first.end) == (second.start, second.end)


def test_killbill_743_when_the_billing_day_is_the_31st_then_it_stays_the_31st() -> None:
    calendar = Calendar.of("Europe/Berlin", date(2026, 1, 31))

    starts = [calendar.boundary(number) for number in range(13)]

    assert starts[2] == instant_of(datetime(2026, 3, 30, 22, tzinfo=UTC))  # 31 March, summer time
    assert starts[12] == instant_of(datetime(2027, 1, 30, 23, tzinfo=UTC))
    assert all(first < second for first, second in pairwise(starts))


def test_killbill_1001_when_prices_change_then_each_second_has_the_one_at_its_first_instant() -> None:
    change = START + 10 * SECOND + 500_000
    prices = book(price_version("v1", {GPU: ONE}), price_version("v2", {GPU: "0.000002"}, change))

    rated = rate(prices, released=START + 100 * SECOND)

    assert [(one.price.version_id, one.segment.seconds) for one in rated] == [
        (named(PriceVersionId, "v1"), 11),
        (named(PriceVersionId, "v2"), 89),
    ]
    assert owed(rated) == Decimal("0.189")


def test_minimum_when_the_price_changed_meanwhile_then_has_the_one_of_the_bind() -> None:
    # Published while the allocation was starting: its use costs the new price, its minimum the one shown at the bind.
    prices = book(price_version("v1", {GPU: ONE}), price_version("v2", {GPU: "0.000002"}, START + 5 * SECOND))

    rated = rate(prices, bound=START, active=START + 8 * SECOND, released=START + 18 * SECOND)

    assert by_kind(rated, ChargeKind.USAGE) == Decimal("0.020")
    assert by_kind(rated, ChargeKind.MINIMUM) == Decimal("0.050")
    assert by_kind(rated, ChargeKind.PRICE_DIFFERENCE) == 0


def test_price_difference_when_the_tenant_has_its_own_price_then_is_a_line_of_its_own() -> None:
    prices = book(price_version("v1", {GPU: ONE}), price_version("t", {GPU: "0.00000075"}, tenant="t1"))

    rated = rate(prices, released=START + 100 * SECOND)

    assert by_kind(rated, ChargeKind.USAGE) == Decimal("0.100")
    assert by_kind(rated, ChargeKind.PRICE_DIFFERENCE) == Decimal("-0.025")


def test_polar_9090_when_changed_there_and_back_then_three_disjoint_segments_pay_once() -> None:
    other = "device/mi300/on_demand"
    prices = book(price_version("v1", {GPU: ONE, other: "0.000003"}))

    rated = rate(
        prices,
        resizes=[(START + 100 * SECOND, {other: 1000}), (START + 150 * SECOND, {GPU: 1000})],
        released=START + 250 * SECOND,
    )

    spans = sorted((one.segment.start, one.segment.end, str(one.segment.sku)) for one in rated)
    assert [(start - START, end - START, sku) for start, end, sku in spans] == [
        (0, 100 * SECOND, GPU),
        (100 * SECOND, 150 * SECOND, other),
        (150 * SECOND, 250 * SECOND, GPU),
    ]
    assert owed(rated) == Decimal("0.350")


def test_killbill_1124_when_lines_are_unrounded_then_exact_is_compared_with_exact() -> None:
    prices = book(price_version("v1", {GPU: "0.000000333333333333"}))
    period = Period(0, START, LATER)

    statement = assemble_statement(T1, period, "CNY", charges_in(rate(prices, released=START + 61 * SECOND), period))

    exact = exact_sum(line.amount for line in statement.lines if line.kind is not ChargeKind.ROUNDING)
    assert exact == Decimal("0.020333333333313")
    assert exact + statement.subtotal(ChargeKind.ROUNDING) == statement.total == Decimal("0.02")


def test_autumn_3407_when_many_lines_have_fractions_then_the_total_is_their_sum_rounded_once() -> None:
    prices = book(price_version("v1", {GPU: "0.00000005"}, minimum_seconds=0))
    period = Period(0, START, LATER)
    charges = [
        charge
        for number in range(200)
        for charge in charges_in(rate(prices, name=f"a{number}", released=START + 90 * SECOND), period)
    ]

    statement = assemble_statement(T1, period, "CNY", charges)

    # Each of the 200 is 0.0045: rounded by itself it would be nothing.
    assert statement.total == Decimal("0.90")
    assert statement.subtotal(ChargeKind.ROUNDING) == 0


def test_segments_when_only_another_resource_is_resized_then_are_not_cut() -> None:
    rated = rate(
        amounts={GPU: 1000, CPU: 2000},
        resizes=[(START + 70 * SECOND, {GPU: 1000, CPU: 4000})],
        released=START + 90 * SECOND,
    )

    assert [(str(one.segment.sku), one.segment.amount, one.segment.seconds) for one in rated] == [
        (CPU, 2000, 70),
        (CPU, 4000, 20),
        (GPU, 1000, 90),
    ]
    assert {one.segment.allocation_id for one in rated} == {named(AllocationId, "a1")}
