"""Every microsecond of a device is active, held but unbilled, idle or unavailable."""

from decimal import Decimal

import pytest

from millpond_billing.domain.conservation import (
    Capacity,
    TimeState,
    bill_difference,
    conserve,
    held_spans,
    value_at_list,
)
from millpond_billing.domain.periods import Period
from millpond_billing.domain.rating import rate_timeline
from millpond_billing.domain.statements import charges_in
from millpond_contracts.ids import TenantId
from millpond_contracts.prices import Sku
from tests.factories.billing import GPU, SECOND, START, assemble_statement, book, named, price_version, timeline

pytestmark = pytest.mark.unit

H100 = Sku.parse(GPU)
END = START + 100 * SECOND
DEVICE = [
    Capacity(START, START + 60 * SECOND, 1000, available=True),
    Capacity(START + 60 * SECOND, END, 1000, available=False),
]
# Bound at 10 s, active at 12 s, asked to stop by the provider at 50 s, released at 65 s, on half a device.
LIFE = timeline(
    bound=START + 10 * SECOND,
    active=START + 12 * SECOND,
    stop=START + 50 * SECOND,
    released=START + 65 * SECOND,
    amounts={GPU: 500},
)


def test_conserve_when_half_a_device_is_held_then_each_state_has_its_time() -> None:
    times = conserve(DEVICE, held_spans(LIFE, H100, END), START, END)

    assert {state: amount // SECOND for state, amount in times.by_state.items()} == {
        TimeState.STARTING: 500 * 2,
        TimeState.ACTIVE: 500 * 38,
        TimeState.RELEASING: 500 * 15,
        TimeState.IDLE: 1000 * 10 + 500 * 50,
        TimeState.UNAVAILABLE: 500 * 5 + 1000 * 35,
    }
    assert times.held_unbilled == 500 * 17 * SECOND
    assert times.difference == 0


def test_conserve_when_the_interval_cuts_a_span_then_only_its_part_counts() -> None:
    parts = [
        conserve(DEVICE, held_spans(LIFE, H100, END), first, last)
        for first, last in ((START, START + 20 * SECOND + 1), (START + 20 * SECOND + 1, END))
    ]

    whole = conserve(DEVICE, held_spans(LIFE, H100, END), START, END)
    assert {state: sum(part.by_state[state] for part in parts) for state in TimeState} == whole.by_state


def test_conserve_when_a_span_of_capacity_is_counted_twice_then_the_difference_shows_it() -> None:
    times = conserve([*DEVICE, DEVICE[0]], [], START, END)

    assert times.difference == -1000 * 60 * SECOND


def test_held_spans_when_still_open_then_end_at_what_is_known() -> None:
    spans = held_spans(timeline(bound=START, active=START + 5), H100, START + 7)

    assert [(span.state, span.start - START, span.end - START) for span in spans] == [
        (TimeState.STARTING, 0, 5),
        (TimeState.ACTIVE, 5, 7),
    ]


def test_value_when_the_list_price_changes_then_each_microsecond_has_its_own() -> None:
    change = START + 20 * SECOND + 1
    prices = book(price_version("v1", {GPU: "0.000001"}), price_version("v2", {GPU: "0.000003"}, change))

    value = value_at_list(DEVICE, held_spans(LIFE, H100, END), START, END, prices, H100)

    assert value.by_state[TimeState.ACTIVE] == Decimal("0.0005") * Decimal("8.000001") + Decimal("0.0015") * Decimal(
        "29.999999"
    )
    assert value.difference == 0


def test_bill_when_an_amount_was_tampered_with_then_the_difference_is_that() -> None:
    prices = book(price_version("v1", {GPU: "0.000001"}))
    period = Period(0, START, END)
    charges = charges_in(rate_timeline(LIFE, prices, END), period)
    statement = assemble_statement(named(TenantId, "t1"), period, "CNY", charges)
    value = value_at_list(DEVICE, held_spans(LIFE, H100, END), START, END, prices, H100)
    metered = value.by_state[TimeState.ACTIVE] + value.by_state[TimeState.RELEASING]

    assert bill_difference(statement, metered) == 0
    assert bill_difference(statement, metered + Decimal("1E-24")) == Decimal("1E-24")
