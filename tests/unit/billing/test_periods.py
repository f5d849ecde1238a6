"""Billing months in a tenant's zone: measured vectors, anchor arithmetic, changes of zone."""

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_billing.domain.periods import Calendar, following_period
from millpond_billing.domain.timeline import instant_of, moment_of
from tests.factories.billing import SECOND

pytestmark = pytest.mark.unit

ZONES = (
    "UTC",
    "Asia/Shanghai",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Asia/Kathmandu",
)
calendars = st.builds(
    Calendar.of, st.sampled_from(ZONES), st.dates(min_value=date(2000, 1, 1), max_value=date(2030, 12, 31))
)
moments = st.datetimes(datetime(2000, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC)).map(instant_of)  # noqa: DTZ001


def at(year: int, month: int, day: int, hour: int = 0) -> int:
    return instant_of(datetime(year, month, day, hour, tzinfo=UTC))


@pytest.mark.parametrize(
    ("zone", "month", "seconds"),
    [
        ("Europe/Berlin", 10, 2_682_000),  # 745 hours: the clocks go back
        ("Europe/Berlin", 3, 2_674_800),  # 743 hours: they go forward
        ("Asia/Shanghai", 10, 2_678_400),
        ("UTC", 2, 2_419_200),
    ],
)
def test_period_when_the_clocks_change_then_has_the_hours_of_the_zone(zone: str, month: int, seconds: int) -> None:
    period = Calendar.of(zone).period_at(at(2026, month, 15))

    assert period.end - period.start == seconds * SECOND


def test_period_when_in_shanghai_then_starts_at_sixteen_hours_utc() -> None:
    period = Calendar.of("Asia/Shanghai").period_at(at(2026, 10, 5))

    assert (period.start, period.end) == (at(2026, 9, 30, 16), at(2026, 10, 31, 16))


def test_boundary_when_the_anchor_is_the_31st_then_short_months_do_not_move_it() -> None:
    calendar = Calendar.of("UTC", date(2026, 1, 31))

    assert [moment_of(calendar.boundary(number)).date() for number in (1, 2, 3)] == [
        date(2026, 2, 28),
        date(2026, 3, 31),
        date(2026, 4, 30),
    ]


def test_boundary_when_midnight_is_skipped_then_is_the_instant_of_the_change() -> None:
    # On 30 March 2025 the clocks of Lebanon went from 00:00 to 01:00, at 22:00 UTC the day before.
    calendar = Calendar.of("Asia/Beirut", date(2025, 3, 30))

    assert calendar.boundary(0) == at(2025, 3, 29, 22)


@given(calendars, moments)
def test_period_at_when_any_instant_then_it_lies_inside_and_neighbours_touch(calendar: Calendar, instant: int) -> None:
    period = calendar.period_at(instant)

    assert instant in period
    assert calendar.period(period.number + 1).start == period.end
    assert calendar.period_at(period.end).number == period.number + 1
    assert period.end not in period


@given(moments, st.lists(st.sampled_from(ZONES), min_size=1, max_size=6))
def test_following_period_when_the_zone_changes_then_no_gap_and_no_splinter(start: int, zones: list[str]) -> None:
    period = Calendar.of("UTC").period_at(start)
    for zone in zones:
        following = following_period(period, Calendar.of(zone))
        assert following.start == period.end
        assert following.number == period.number + 1
        assert 26 < (following.end - following.start) / (86_400 * SECOND) < 34
        period = following


@pytest.mark.parametrize("zone", ["../etc/passwd", "Mars/Olympus", "", "Asia", "a\0b"])
def test_calendar_when_the_zone_is_unknown_then_refuses(zone: str) -> None:
    with pytest.raises(ValueError, match="IANA"):
        Calendar.of(zone)
