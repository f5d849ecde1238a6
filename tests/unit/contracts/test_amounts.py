"""Amounts in JSON: exact decimals as strings, integers as integers, nothing in between."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from millpond_contracts.quantities import (
    CpuMilli,
    ExactDecimal,
    Instant,
    Money,
    Name,
    microseconds_between,
    plain_decimal,
)

pytestmark = pytest.mark.unit

DECIMAL = TypeAdapter(ExactDecimal)
CPU = TypeAdapter(CpuMilli)
NAME = TypeAdapter(Name)
INSTANT = TypeAdapter(Instant)


@given(st.decimals(min_value=-(10**20) + 1, max_value=10**20 - 1, allow_nan=False, allow_infinity=False, places=12))
def test_decimal_when_written_and_read_then_the_same(value: Decimal) -> None:
    written = DECIMAL.dump_json(ExactDecimal(value))
    assert written.startswith(b'"')
    assert b"E" not in written
    assert DECIMAL.validate_json(written) == value


NOT_PLAIN = ["1", "1.5", "null", '"1e3"', '"NaN"', '"Infinity"', '"01"', '".5"', '"5."', '" 1"', '"1\\n"', '"+1"', '""']
NOT_PLAIN += ['"' + "9" * 21 + '"', '"0.' + "1" * 25 + '"', '"\\u0661"']


@pytest.mark.parametrize("text", NOT_PLAIN)
def test_decimal_when_not_in_plain_notation_then_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        DECIMAL.validate_json(text)


@pytest.mark.parametrize(("value", "text"), [("0", "0"), ("-0.00", "0"), ("1E+3", "1000"), ("1.2300", "1.23")])
def test_decimal_when_written_then_plain(value: str, text: str) -> None:
    assert plain_decimal(Decimal(value)) == text


def test_money_when_added_then_exact_and_only_in_one_currency() -> None:
    small, large = (Money(amount=ExactDecimal(amount), currency="CNY") for amount in ("0.1", "99999999999999999999"))
    assert (small + large).amount == Decimal("99999999999999999999.1")
    with pytest.raises(TypeError):
        small + Money(amount=ExactDecimal("1"), currency="EUR")


@pytest.mark.parametrize("text", ["1.0", "1e3", '"1"', "-1", "true", "null", str(2**62), "100000001"])
def test_integer_when_something_else_or_out_of_bounds_then_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        CPU.validate_json(text)


@pytest.mark.parametrize("text", ["", "-a", "a-", "A", "a b", "a\n", "a" * 64, "ä", "a/b", ".."])
def test_name_when_it_could_be_taken_for_something_else_then_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        NAME.validate_python(text)


@given(st.just(datetime(2026, 3, 1, tzinfo=UTC)), st.timedeltas(timedelta(-(10**5)), timedelta(10**5)))
def test_microseconds_when_added_up_then_telescoping(start: datetime, delta: timedelta) -> None:
    middle, end = start + delta / 2, start + delta
    assert microseconds_between(start, middle) + microseconds_between(middle, end) == microseconds_between(start, end)
    assert timedelta(microseconds=microseconds_between(start, end)) == delta


NO_INSTANTS = ["1700000000", '"1700000000"', "1.7e9", "true", "null", '""', '"2026-11-30"', '"2026-11-30T12:00:00"']
NO_INSTANTS += ['"2026-11-30T12:00Z"', '"2026-13-30T12:00:00Z"', '"2026-11-30T12:00:00+99:00"']
NO_INSTANTS += ['"2026-11-30T12:00:00Z\\n"', '"0001-01-01T00:00:00+14:00"', '"9999-12-31T23:59:59-14:00"']


@pytest.mark.parametrize("text", NO_INSTANTS)
def test_instant_when_not_rfc_3339_text_with_its_zone_then_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        INSTANT.validate_json(text)


@given(st.integers(0, 200_000_000_000_000_000))
def test_instant_when_written_and_read_then_the_same(microseconds: int) -> None:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    assert INSTANT.validate_json(INSTANT.dump_json(at)) == at
    assert INSTANT.validate_python(at.isoformat()) == at
