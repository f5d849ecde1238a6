"""Billing periods: months of a tenant's time zone as pairs of UTC instants.

Boundaries are computed here, once, and stored; SQL never computes them, because PostgreSQL and Python carry different
time zone data. Month n is the anchor plus n months, never one month added n times: from 31 January the third boundary
is 31 March, not 28 March.
"""

from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from millpond_billing.domain.timeline import instant_of, moment_of
from millpond_contracts.prices import MICROSECONDS_PER_SECOND

_LONGEST_ZONE_SHIFT = 2 * 86_400 * MICROSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Period:
    """The months since the anchor (`number` 0 is the first) and the interval `[start, end)` in UTC."""

    number: int
    start: int
    end: int

    def __contains__(self, instant: int) -> bool:
        return self.start <= instant < self.end


@dataclass(frozen=True, slots=True)
class Calendar:
    """How a tenant's months are counted: a time zone and the local day that the first one starts on."""

    zone: ZoneInfo
    anchor: date = date(1970, 1, 1)

    @classmethod
    def of(cls, zone_name: str, anchor: date = date(1970, 1, 1)) -> "Calendar":
        """The calendar of an IANA zone such as `Asia/Shanghai`.

        Raises:
            ValueError: no such zone.
        """
        try:
            return cls(ZoneInfo(zone_name), anchor)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"expected an IANA time zone such as Asia/Shanghai, found {zone_name[:64]!r}") from error

    def boundary(self, number: int) -> int:
        """The instant at which period `number` starts: local midnight of the anchor plus `number` months.

        A midnight that the clocks skip is the instant of the change; one that occurs twice is the first.
        """
        month = self.anchor.year * 12 + self.anchor.month - 1 + number
        year, month = month // 12, month % 12 + 1
        day = min(self.anchor.day, monthrange(year, month)[1])
        local = datetime.combine(date(year, month, day), time(), tzinfo=self.zone)
        return instant_of(local.astimezone(UTC))

    def period(self, number: int) -> Period:
        """Period `number`; each starts where the one before ends."""
        return Period(number, self.boundary(number), self.boundary(number + 1))

    def period_at(self, instant: int) -> Period:
        """The period that `instant` lies in."""
        local = moment_of(instant).astimezone(self.zone)
        number = (local.year - self.anchor.year) * 12 + local.month - self.anchor.month
        while self.boundary(number) > instant:
            number -= 1
        while self.boundary(number + 1) <= instant:
            number += 1
        return self.period(number)


def following_period(previous: Period, calendar: Calendar) -> Period:
    """The period after `previous`, without gap or overlap.

    A change of zone takes effect here: it starts where the old zone's period ended and ends by the new calendar.
    """
    number = calendar.period_at(previous.end).number + 1
    # Zones differ by a day at most: what would be a period of hours joins the next month.
    if calendar.boundary(number) - previous.end <= _LONGEST_ZONE_SHIFT:
        number += 1
    return Period(previous.number + 1, previous.end, calendar.boundary(number))
