"""Hours, days and months of a zone: without gap or overlap, whatever its clocks do."""

from datetime import datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_billing.domain.buckets import TimeUnit, TooManyBuckets, divide
from millpond_billing.domain.timeline import instant_of, moment_of

pytestmark = pytest.mark.unit

HOUR = 3600 * 1_000_000
ZONES = (
    "UTC",
    "Asia/Shanghai",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Apia",
)


def at(text: str) -> int:
    return instant_of(datetime.fromisoformat(text))


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", "2026-03-29T00:00:00+01:00", 23),
        ("Europe/Berlin", "2026-10-25T00:00:00+02:00", 25),
        ("Europe/Berlin", "2026-10-26T00:00:00+01:00", 24),
        ("Asia/Shanghai", "2026-10-25T00:00:00+08:00", 24),
        ("Australia/Lord_Howe", "2026-04-05T00:00:00+11:00", 24.5),
    ],
)
def test_divide_when_the_clocks_change_then_a_day_is_as_long_as_it_is(zone: str, day: str, hours: float) -> None:
    start = at(day)
    first, _ = divide(TimeUnit.DAY, ZoneInfo(zone), start, start + 30 * HOUR)
    assert (first.begins, first.end - first.start) == (start, hours * HOUR)
    inside = divide(TimeUnit.HOUR, ZoneInfo(zone), first.start, first.end)
    assert sum(one.end - one.start for one in inside) == hours * HOUR
    assert len(inside) == -(-hours // 1)


def test_divide_when_the_zone_is_half_an_hour_off_then_hours_begin_by_its_clock() -> None:
    start = at("2026-10-05T10:10:00+00:00")
    found = divide(TimeUnit.HOUR, ZoneInfo("Asia/Kolkata"), start, start + HOUR)
    assert [moment_of(one.begins).minute for one in found] == [30, 30]
    # The bucket names its whole hour; what lies in the interval is a part of it.
    assert found[0].begins == at("2026-10-05T09:30:00+00:00")
    assert (found[0].start, found[-1].end) == (start, start + HOUR)


def test_divide_by_months_when_in_shanghai_then_local_months() -> None:
    found = divide(
        TimeUnit.MONTH, ZoneInfo("Asia/Shanghai"), at("2026-01-15T00:00:00+00:00"), at("2026-04-02T00:00:00+00:00")
    )
    assert [one.begins for one in found] == [
        at(f"2026-{month:02d}-01T00:00:00+08:00") for month in (1, 2, 3, 4)
    ]  # fmt: skip


def test_divide_without_a_unit_then_one_and_with_too_many_then_refused() -> None:
    assert [(one.begins, one.start, one.end) for one in divide(None, ZoneInfo("UTC"), 5, 9)] == [(5, 5, 9)]
    with pytest.raises(TooManyBuckets):
        divide(TimeUnit.HOUR, ZoneInfo("UTC"), 0, 10_001 * HOUR)
    with pytest.raises(TooManyBuckets):
        divide(TimeUnit.HOUR, ZoneInfo("UTC"), 0, 10**17)
    assert len(divide(TimeUnit.HOUR, ZoneInfo("UTC"), 0, 10_000 * HOUR)) == 10_000


@given(
    zone=st.sampled_from(ZONES),
    unit=st.sampled_from(tuple(TimeUnit)),
    start=st.integers(at("2005-01-01T00:00:00+00:00"), at("2035-01-01T00:00:00+00:00")),
    hours=st.integers(1, 2000),
    odd=st.integers(0, HOUR),
)
def test_divide_when_anything_is_asked_then_nothing_is_left_out_and_nothing_is_twice(
    zone: str, unit: TimeUnit, start: int, hours: int, odd: int
) -> None:
    last = start + hours * HOUR + odd
    found = divide(unit, ZoneInfo(zone), start, last)
    assert (found[0].start, found[-1].end) == (start, last)
    assert all(before.end == after.start for before, after in pairwise(found))
    assert all(one.begins <= one.start < one.end for one in found)
    assert all(before.begins < after.begins for before, after in pairwise(found))
