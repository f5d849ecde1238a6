"""Hours, days and months of a time zone as pairs of UTC instants: what charges are summed over.

As with periods, boundaries are computed here and never by SQL: PostgreSQL carries other time zone data.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from millpond_billing.domain.periods import Calendar
from millpond_billing.domain.timeline import instant_of, moment_of
from millpond_contracts.prices import MICROSECONDS_PER_SECOND

MOST_BUCKETS = 10_000
# Longer than any of them is where clocks change, so that far too long an interval is refused before it is divided.
_LONGEST_SECONDS = {"hour": 2 * 3600, "day": 50 * 3600, "month": 33 * 86_400}


class TimeUnit(StrEnum):
    """What time is divided into."""

    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class TooManyBuckets(ValueError):
    """The interval has more hours, days or months than are given at a time."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The hour, day or month that begins at `begins`; `[start, end)` is what of it lies in the interval asked for."""

    begins: int
    start: int
    end: int


def divide(unit: TimeUnit | None, zone: ZoneInfo, start: int, end: int) -> tuple[Bucket, ...]:
    """The interval `[start, end)` divided by the clock of a zone; without a unit it is one bucket.

    A day on which the clocks change has 23 or 25 hours, and all of them are there.

    Raises:
        TooManyBuckets: more than 10,000.
    """
    if unit is None:
        return (Bucket(start, start, end),)
    if (end - start) // MICROSECONDS_PER_SECOND > MOST_BUCKETS * _LONGEST_SECONDS[unit]:
        raise TooManyBuckets(f"at most {MOST_BUCKETS} of an interval's {unit}s are summed at a time")
    follows = {TimeUnit.HOUR: _next_hour, TimeUnit.DAY: _next_day, TimeUnit.MONTH: _next_month}[unit]
    buckets: list[Bucket] = []
    begins = _first(unit, zone, start)
    while begins < end:
        following = follows(zone, begins)
        if following > start:
            buckets.append(Bucket(begins, max(begins, start), min(following, end)))
        begins = following
    if len(buckets) > MOST_BUCKETS:
        raise TooManyBuckets(f"at most {MOST_BUCKETS} of an interval's {unit}s are summed at a time")
    return tuple(buckets)


def _first(unit: TimeUnit, zone: ZoneInfo, instant: int) -> int:
    """Where the hour, day or month begins that the instant lies in, or one before it."""
    if unit is TimeUnit.MONTH:
        return Calendar(zone).period_at(instant).start
    if unit is TimeUnit.DAY:
        return min(instant, _midnight(zone, moment_of(instant).astimezone(zone).date()))
    local = moment_of(instant).astimezone(zone)
    return instant - ((local.minute * 60 + local.second) * MICROSECONDS_PER_SECOND + local.microsecond)


def _next_hour(zone: ZoneInfo, begins: int) -> int:
    # By the clock at its beginning: where clocks change by half an hour, that hour is as long as it is.
    local = moment_of(begins).astimezone(zone)
    return begins + (3600 - local.minute * 60 - local.second) * MICROSECONDS_PER_SECOND


def _next_day(zone: ZoneInfo, begins: int) -> int:
    day = moment_of(begins).astimezone(zone).date()
    following = begins
    # A zone that changes to the other side of the date line leaves a day out.
    while following <= begins:
        day += timedelta(days=1)
        following = _midnight(zone, day)
    return following


def _next_month(zone: ZoneInfo, begins: int) -> int:
    return Calendar(zone).period_at(begins).end


def _midnight(zone: ZoneInfo, day: date) -> int:
    return instant_of(datetime.combine(day, time(), tzinfo=zone).astimezone(UTC))
