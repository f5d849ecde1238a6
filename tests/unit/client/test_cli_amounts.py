"""Amounts as people write and read them."""

from datetime import UTC, datetime, timedelta

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from millpond.cli.amounts import (
    parse_instant,
    parse_mib,
    parse_milli,
    parse_month,
    parse_pairs,
    parse_seconds,
    show_age,
    show_amount,
    show_count,
    show_mib,
    show_milli,
    show_seconds,
)
from tests.unit.client.things import NOW

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("text", "milli"), [("2", 2000), ("0.5", 500), ("500m", 500), ("1.250", 1250), ("0.001", 1), ("0", 0)]
)
def test_parse_milli_when_well_written_then_thousandths(text: str, milli: int) -> None:
    assert parse_milli(text, "--cpu") == milli


@pytest.mark.parametrize("text", ["", "-1", "1e3", "NaN", "two", "0.0001", "1.5m", "1,5", "9" * 13, "٣"])
def test_parse_milli_when_badly_written_then_says_what_is_expected(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected"):
        parse_milli(text, "--cpu")


@pytest.mark.parametrize(
    ("text", "mib"), [("512MiB", 512), ("4GiB", 4096), ("4g", 4096), ("1.5Gi", 1536), ("1 TiB", 1 << 20), ("7M", 7)]
)
def test_parse_mib_when_well_written_then_mib(text: str, mib: int) -> None:
    assert parse_mib(text, "--memory") == mib


@pytest.mark.parametrize("text", ["512", "4GB", "4kB", "GiB", "-1GiB", "1e3GiB", "0.3MiB", "4 parsecs"])
def test_parse_mib_when_badly_written_then_says_what_is_expected(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected"):
        parse_mib(text, "--memory")


def test_parse_mib_when_the_unit_is_decimal_then_says_so() -> None:
    with pytest.raises(typer.BadParameter, match="not of 1000"):
        parse_mib("4GB", "--memory")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("2d", 172_800), ("1D", 86_400)]
)
def test_parse_seconds_when_well_written_then_seconds(text: str, seconds: int) -> None:
    assert parse_seconds(text, "--timeout") == seconds


@pytest.mark.parametrize("text", ["", "soon", "1.5h", "-1s", "1h 30", "h", "٣", "36501d", "9" * 12])
def test_parse_seconds_when_badly_written_then_says_what_is_expected(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected"):
        parse_seconds(text, "--timeout")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2h", NOW - timedelta(hours=2)),
        ("1d12h", NOW - timedelta(hours=36)),
        ("2026-11-30T12:00Z", datetime(2026, 11, 30, 12, tzinfo=UTC)),
        ("2026-11-30T12:00+08:00", datetime(2026, 11, 30, 4, tzinfo=UTC)),
    ],
)
def test_parse_instant_when_well_written_then_that_instant(text: str, at: datetime) -> None:
    assert parse_instant(text, "--since", NOW) == at


@pytest.mark.parametrize("text", ["", "90", "soon", "2026-13-01", "-1h", "12:00", "99999999d"])
def test_parse_instant_when_badly_written_then_says_what_is_expected(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="expected"):
        parse_instant(text, "--since", NOW)


def test_parse_instant_when_it_is_a_day_then_midnight_of_this_machine() -> None:
    midnight = parse_instant("2026-11-30", "--since")
    assert (f"{midnight:%Y-%m-%d %H:%M:%S}", midnight.tzinfo is None) == ("2026-11-30 00:00:00", False)


def test_parse_pairs_when_values_hold_signs_then_the_first_separates() -> None:
    assert parse_pairs(["A=1", "B=x=y", "C="], "--env") == {"A": "1", "B": "x=y", "C": ""}
    with pytest.raises(typer.BadParameter, match="KEY=VALUE"):
        parse_pairs(["A"], "--env")


def test_parse_month_when_written_then_year_and_month() -> None:
    assert parse_month("2026-11", "--period") == (2026, 11)
    with pytest.raises(typer.BadParameter, match="2026-11"):
        parse_month("2026-13", "--period")


@pytest.mark.parametrize(
    ("resource", "amount", "shown"),
    [
        ("cpu", 1000, "1 core"),
        ("cpu", 250, "0.25 cores"),
        ("memory", 512, "512 MiB"),
        ("memory", 15_872, "15.5 GiB"),
        ("memory", 2 << 20, "2 TiB"),
        ("device", 2000, "2 devices"),
    ],
)
def test_show_amount_when_shown_then_in_the_units_of_people(resource: str, amount: int, shown: str) -> None:
    assert show_amount(resource, amount) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (59.9, "59s"), (200, "3m 20s"), (7500, "2h 5m"), (349_200, "4d 1h"), (3600, "1h")]
)
def test_show_seconds_when_shown_then_two_units(seconds: float, shown: str) -> None:
    assert show_seconds(seconds) == shown


def test_show_age_when_the_clock_of_the_server_is_ahead_then_zero() -> None:
    assert show_age(NOW + timedelta(seconds=5), NOW) == "0s"
    assert show_age(None) == "-"


@given(st.integers(0, 10**9))
def test_milli_when_shown_and_read_then_the_same(milli: int) -> None:
    assert parse_milli(show_milli(milli), "--cpu") == milli


@given(st.integers(0, 1023))
def test_mib_when_small_then_shown_and_read_the_same(mib: int) -> None:
    assert parse_mib(show_mib(mib), "--memory") == mib


@pytest.mark.parametrize(("count", "shown"), [(0, "0 devices"), (1, "1 device"), (2, "2 devices")])
def test_count_when_shown_then_one_is_singular(count: int, shown: str) -> None:
    assert show_count(count, "device") == shown
