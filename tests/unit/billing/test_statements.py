"""Statements and adjustments: exact sums, one rounding, nothing posted twice."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from millpond_billing.domain.periods import Period
from millpond_billing.domain.prices import PriceBook
from millpond_billing.domain.rating import Charge, rate_timeline
from millpond_billing.domain.statements import (
    Adjustment,
    Statement,
    booked_sums,
    charges_in,
    digest_of,
    minor_unit_decimals,
    rerating_adjustments,
)
from millpond_contracts.bodies.bills import ChargeKind
from millpond_contracts.ids import TenantId
from millpond_contracts.prices import exact_sum
from millpond_contracts.quantities import plain_decimal
from tests.factories.billing import (
    CPU,
    GPU,
    HOUR,
    SECOND,
    START,
    assemble_statement,
    book,
    named,
    price_version,
    timeline,
)

pytestmark = pytest.mark.unit

T1 = named(TenantId, "t1")
PERIOD = Period(5, START - HOUR, START + HOUR)
BOOK = book(price_version("v1", {GPU: "0.000001234567890123", CPU: "0.00000007"}))


def charges(prices: PriceBook = BOOK, **parts: Any) -> tuple[Charge, ...]:
    life = timeline(**{"released": START + 61_500_000, "amounts": {GPU: 1000, CPU: 4000}, **parts})
    return charges_in(rate_timeline(life, prices, START + 2 * HOUR, (PERIOD.start, PERIOD.end)), PERIOD)


def statement(*found: Charge, adjustments: tuple[Adjustment, ...] = ()) -> Statement:
    return assemble_statement(T1, PERIOD, "CNY", found or charges(), adjustments)


def test_statement_when_assembled_then_its_lines_sum_to_the_total_with_one_rounding() -> None:
    bill = statement()

    assert exact_sum(line.amount for line in bill.lines) == bill.total == Decimal("0.09")
    assert [line.kind for line in bill.lines].count(ChargeKind.ROUNDING) == 1
    assert abs(bill.subtotal(ChargeKind.ROUNDING)) < Decimal("0.01")
    assert bill.seconds == 2 * 62


def test_statement_when_charges_are_reordered_then_only_its_digests_differ() -> None:
    again, reordered = statement(*charges()), statement(*reversed(charges()))

    assert again == statement()
    assert (reordered.lines, reordered.total) == (again.lines, again.total)
    assert reordered.charges_digest != again.charges_digest


def test_tally_when_told_one_by_one_then_its_digest_is_that_of_the_whole_document() -> None:
    lines = [
        [
            str(charge.kind),
            str(charge.rated.segment.allocation_id),
            str(charge.rated.segment.sku),
            charge.rated.segment.amount,
            charge.rated.segment.start,
            charge.rated.segment.end,
            charge.seconds,
            plain_decimal(charge.price.unit_price),
            str(charge.price.version_id),
            plain_decimal(charge.amount),
        ]
        for charge in charges()
    ]

    assert statement().charges_digest == digest_of([lines, []])


def test_statement_when_one_charge_differs_then_so_does_its_digest() -> None:
    longer = charges(released=START + 61_500_001)

    assert statement(*longer).total == statement().total
    assert statement(*longer).digest != statement().digest


def test_statement_when_chained_then_the_digest_covers_the_one_before() -> None:
    first, second = (assemble_statement(T1, PERIOD, "CNY", charges(), (), digest) for digest in ("a", "b"))

    assert first.digest != second.digest
    assert first.charges_digest == second.charges_digest


def test_statement_when_nothing_was_used_then_is_zero_and_has_no_lines() -> None:
    empty = assemble_statement(T1, PERIOD, "CNY", [])

    assert (empty.lines, empty.total, empty.seconds) == ((), Decimal("0.00"), 0)


@pytest.mark.parametrize("change", ["tenant", "period", "currency"])
def test_statement_when_a_charge_does_not_belong_then_refuses(change: str) -> None:
    tenant = named(TenantId, "t2") if change == "tenant" else T1
    period = Period(6, PERIOD.end, PERIOD.end + HOUR) if change == "period" else PERIOD

    with pytest.raises(ValueError, match=r"expected|leaves"):
        assemble_statement(tenant, period, "EUR" if change == "currency" else "CNY", charges())


def test_digest_when_keys_are_reordered_then_is_the_same() -> None:
    assert digest_of({"b": 1, "a": [None, "ü"]}) == digest_of({"a": [None, "ü"], "b": 1})
    # printf '{"a":[null,"ü"],"b":1}' | sha256sum
    assert digest_of({"b": 1, "a": [None, "ü"]}) == ("bd2ff14a36bf5950f33b33f3b51ab019862e05d71975c437a0fd31f890cf038f")


@pytest.mark.parametrize(("currency", "decimals"), [("CNY", 2), ("EUR", 2), ("JPY", 0), ("KWD", 3)])
def test_minor_unit_when_asked_then_is_that_of_the_currency(currency: str, decimals: int) -> None:
    assert minor_unit_decimals(currency) == decimals


def test_rerating_when_nothing_changed_then_posts_nothing() -> None:
    assert rerating_adjustments(PERIOD, booked_sums(charges()), charges()) == ()


def test_rerating_when_run_twice_then_posts_the_difference_once() -> None:
    # The node's last sign of life turned out to be two seconds later than billed.
    booked, corrected = booked_sums(charges()), charges(released=START + 63_500_000)

    first = rerating_adjustments(PERIOD, booked, corrected)
    second = rerating_adjustments(PERIOD, booked, corrected, earlier=first)

    assert exact_sum(one.amount for one in first) == exact_sum(one.amount for one in corrected) - exact_sum(
        one.amount for one in charges()
    )
    assert sum(one.seconds for one in first) == 2 * 2
    assert second == ()


def test_rerating_when_an_allocation_vanishes_then_gives_all_of_it_back() -> None:
    differences = rerating_adjustments(PERIOD, booked_sums(charges()), [])

    assert exact_sum(one.amount for one in differences) == -exact_sum(one.amount for one in charges())


def test_statement_when_it_carries_adjustments_then_they_are_a_line_of_their_own() -> None:
    adjustments = rerating_adjustments(PERIOD, booked_sums(charges()), charges(released=START + 65 * SECOND))

    bill = statement(adjustments=adjustments)

    assert bill.subtotal(ChargeKind.ADJUSTMENT) == exact_sum(one.amount for one in adjustments)
    assert exact_sum(line.amount for line in bill.lines) == bill.total
    assert bill.digest != statement().digest
    renamed = tuple(replace(one, reason="other") for one in adjustments)
    assert statement(adjustments=renamed).digest != bill.digest
