"""A tenant's periods: kept as they begin, so that a change of its zone takes effect at the next one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from millpond_billing.domain.periods import Calendar, Period, following_period
from millpond_billing.domain.timeline import instant_of, moment_of
from millpond_billing.store import statements as rows
from millpond_billing.store import tenants
from millpond_billing.store.locks import lock_for_keeping
from millpond_contracts.bodies.tenants import TenantState, TenantView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import TenantId
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork

# No period is older; and an instant near the ends of the calendar could not be converted.
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TenantPeriods:
    """Periods without gap that cover what is asked for. Before `closed_until` every statement is closed."""

    periods: tuple[Period, ...]
    closed_until: int
    _starts: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_starts", tuple(period.start for period in self.periods))

    @property
    def starts(self) -> tuple[int, ...]:
        """Where they begin; time is cut there."""
        return self._starts

    def at(self, instant: int) -> Period:
        """The period that the instant lies in."""
        return next(period for period in reversed(self.periods) if period.start <= instant)

    def first_open(self) -> Period:
        """The first period whose statement is not closed."""
        return next(period for period in self.periods if period.start >= self.closed_until)


def extend_periods(known: Sequence[Period], calendar: Calendar, start: int, until: int) -> tuple[Period, ...]:
    """The known periods with what is missing to cover `[start, until]`, by the calendar of today."""
    periods = list(known) or [calendar.period_at(start)]
    while periods[0].start > start:
        before = calendar.period_at(periods[0].start - 1)
        periods.insert(0, Period(periods[0].number - 1, before.start, periods[0].start))
    while periods[-1].end <= until:
        periods.append(following_period(periods[-1], calendar))
    return tuple(periods)


async def keep_periods(
    unit: UnitOfWork, wanted: Mapping[TenantId, tuple[TenantView, int, int]]
) -> dict[TenantId, TenantPeriods]:
    """The periods of tenants over `(tenant, start, until)`, one that is not closed among them; new ones are kept."""
    if not wanted:
        return {}
    found, new = await _cover(unit, wanted)
    if new:
        # Two who find the same period missing would insert it at once, and wait for one another in its constraints.
        await lock_for_keeping(unit, {tenant_id for tenant_id, _, _ in new})
        found, new = await _cover(unit, wanted)
        await rows.insert_periods(unit, new)
    return found


async def _cover(
    unit: UnitOfWork, wanted: Mapping[TenantId, tuple[TenantView, int, int]]
) -> tuple[dict[TenantId, TenantPeriods], list[tuple[TenantId, Period, str]]]:
    """The periods that cover what is wanted, and those of them that are not kept yet."""
    known = await rows.list_periods(unit, wanted, min(start for _, start, _ in wanted.values()))
    found: dict[TenantId, TenantPeriods] = {}
    new: list[tuple[TenantId, Period, str]] = []
    for tenant_id, (tenant, start, until) in wanted.items():
        kept = known.get(tenant_id, [])
        closed_until = max((row.period.end for row in kept if row.is_closed), default=0)
        before = [row.period for row in kept]
        periods = extend_periods(before, tenants.calendar_of(tenant), start, max(until, closed_until))
        new += [(tenant_id, period, tenant.timezone) for period in periods if period not in before]
        found[tenant_id] = TenantPeriods(periods, closed_until)
    return found, new


async def keep_up(unit: UnitOfWork, now: datetime) -> None:
    """Keeps the periods of every tenant in use up to now; a deleted tenant's only while something of it runs."""
    lagging = await rows.list_lagging(unit, now)
    known = await tenants.find_tenants(unit, lagging)
    await keep_periods(
        unit,
        {
            tenant_id: (known[tenant_id], instant_of(since), instant_of(now))
            for tenant_id, (since, runs) in lagging.items()
            if tenant_id in known and (runs or known[tenant_id].state is not TenantState.DELETED)
        },
    )


async def find_period(unit: UnitOfWork, tenant: TenantView, start: datetime | None, now: datetime) -> Period:
    """The tenant's period that starts at `start`, or the present one.

    Raises:
        ProblemError: 422 `billing.statement.period`: `start` is no period start of this tenant, or not reached yet.
    """
    if start is not None and _EARLIEST <= start <= now:
        kept = await rows.find_period_row(unit, tenant.tenant_id, start)
        if kept is not None:
            return kept.period
    at = instant_of(now)
    known = (await rows.list_periods(unit, [tenant.tenant_id], at)).get(tenant.tenant_id, [])
    periods = extend_periods([row.period for row in known], tenants.calendar_of(tenant), at, at)
    if start is None:
        return next(period for period in periods if at in period)
    for period in periods:
        if period.start == instant_of(start):
            return period
    raise ProblemError(
        ErrorCode.STATEMENT_PERIOD,
        f"No period of this tenant starts at {start.isoformat()}; the present one starts at"
        f" {moment_of(periods[-1].start).isoformat()}.",
    )
