"""Rows of statements, one for each period of a tenant. A closed one is refused every change by the database itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_billing.domain.periods import Period
from millpond_billing.domain.timeline import instant_of, moment_of
from millpond_contracts.bodies.bills import StatementView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import StatementId, TenantId
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork

_PERIODS = "tenant_id, state, period_number, period_start, period_end, timezone"


@dataclass(frozen=True, slots=True)
class PeriodRow:
    """A period that is kept, with the zone it was counted in."""

    period: Period
    timezone: str
    is_closed: bool


def period_row(row: asyncpg.Record) -> PeriodRow:
    """The period of a row."""
    period = Period(row["period_number"], instant_of(row["period_start"]), instant_of(row["period_end"]))
    return PeriodRow(period, row["timezone"], row["state"] == "closed")


async def list_periods(unit: UnitOfWork, tenant_ids: Iterable[TenantId], since: int) -> dict[TenantId, list[PeriodRow]]:
    """Periods that end after `since`, and always the last one, by tenant and in order."""
    rows = await unit.fetch(
        f"SELECT {_PERIODS} FROM unnest($1::uuid[]) AS t(id), LATERAL ("
        f" SELECT {_PERIODS} FROM statement WHERE tenant_id = t.id AND (period_end > $2 OR period_start ="
        " (SELECT max(period_start) FROM statement WHERE tenant_id = t.id))) s ORDER BY tenant_id, period_start",
        list(tenant_ids),
        moment_of(since),
    )
    found: dict[TenantId, list[PeriodRow]] = {}
    for row in rows:
        found.setdefault(TenantId.of(row["tenant_id"]), []).append(period_row(row))
    return found


async def find_period_row(unit: UnitOfWork, tenant_id: TenantId, period_start: datetime) -> PeriodRow | None:
    """The period that starts at this instant, if it is kept."""
    row = await unit.fetchrow(
        f"SELECT {_PERIODS} FROM statement WHERE tenant_id = $1 AND period_start = $2", tenant_id, period_start
    )
    return None if row is None else period_row(row)


async def list_closed_until(unit: UnitOfWork, tenant_ids: Iterable[TenantId]) -> dict[TenantId, datetime]:
    """Tenant -> the end of its last closed period, of those that have one."""
    rows = await unit.fetch(
        "SELECT tenant_id, max(period_end) AS until FROM statement WHERE state = 'closed'"
        " AND tenant_id = ANY($1::uuid[]) GROUP BY tenant_id",
        list(tenant_ids),
    )
    return {TenantId.of(row["tenant_id"]): row["until"] for row in rows}


async def insert_periods(unit: UnitOfWork, periods: Sequence[tuple[TenantId, Period, str]]) -> None:
    """Keeps periods that are not kept yet; the caller holds their tenants' `lock_for_keeping`."""
    if periods:
        await unit.execute(
            "INSERT INTO statement (id, tenant_id, state, period_number, period_start, period_end, timezone)"
            " SELECT i, t, 'open', n, s, e, z FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::timestamptz[],"
            " $5::timestamptz[], $6::text[]) AS x(i, t, n, s, e, z)",
            [StatementId.new() for _ in periods],
            [tenant_id for tenant_id, _, _ in periods],
            [period.number for _, period, _ in periods],
            [moment_of(period.start) for _, period, _ in periods],
            [moment_of(period.end) for _, period, _ in periods],
            [zone for _, _, zone in periods],
        )


async def list_lagging(unit: UnitOfWork, now: datetime) -> dict[TenantId, tuple[datetime, bool]]:
    """Tenants whose periods do not reach up to now: since when they are missing, and whether something runs."""
    rows = await unit.fetch(
        "SELECT tenant_id, max(period_end) AS since, EXISTS (SELECT 1 FROM allocation_view v WHERE v.tenant_id ="
        " s.tenant_id AND v.released_at IS NULL AND v.active_at IS NOT NULL) AS runs"
        " FROM statement s GROUP BY tenant_id HAVING max(period_end) <= $1"
        " UNION ALL SELECT v.tenant_id, min(v.active_at), true FROM allocation_view v WHERE v.released_at IS NULL"
        " AND v.active_at <= $1 GROUP BY v.tenant_id HAVING min(v.active_at) <"
        " coalesce((SELECT min(period_start) FROM statement s WHERE s.tenant_id = v.tenant_id), 'infinity')",
        now,
    )
    found: dict[TenantId, tuple[datetime, bool]] = {}
    for row in rows:
        tenant_id = TenantId.of(row["tenant_id"])
        since, runs = found.get(tenant_id, (row["since"], row["runs"]))
        found[tenant_id] = (min(since, row["since"]), runs or row["runs"])
    return found


async def has_due(unit: UnitOfWork, ended_by: datetime) -> bool:
    """Whether a period ended so long ago that its statement is to be closed."""
    row = await unit.fetchrow("SELECT 1 FROM statement WHERE state = 'open' AND period_end <= $1 LIMIT 1", ended_by)
    return row is not None


async def queue_due(unit: UnitOfWork, ended_by: datetime) -> list[StatementId]:
    """Queues the statements of periods that ended so long ago."""
    rows = await unit.fetch(
        "UPDATE statement SET state = 'queued', queued_at = clock_timestamp() WHERE state = 'open' AND period_end <= $1"
        " RETURNING id, period_start",
        ended_by,
    )
    return [StatementId.of(row["id"]) for row in sorted(rows, key=lambda row: row["period_start"])]


async def take_overdue(unit: UnitOfWork, seconds: int) -> list[StatementId]:
    """Queued rows that nobody closed in time, oldest period first; they are overdue again only after as long."""
    rows = await unit.fetch(
        "UPDATE statement SET queued_at = clock_timestamp() WHERE id IN (SELECT id FROM statement"
        " WHERE state = 'queued' AND queued_at < clock_timestamp() - make_interval(secs => $1)"
        " ORDER BY period_start, id LIMIT 500 FOR UPDATE SKIP LOCKED) RETURNING id, period_start",
        float(seconds),
    )
    return [StatementId.of(row["id"]) for row in sorted(rows, key=lambda row: row["period_start"])]


async def lock_queued(unit: UnitOfWork, statement_id: StatementId) -> asyncpg.Record | None:
    """The queued row, locked; None when another worker has it or it is closed, or an earlier period is not closed."""
    return await unit.fetchrow(
        "SELECT s.* FROM statement s WHERE s.id = $1 AND s.state = 'queued' AND NOT EXISTS (SELECT 1 FROM statement e"
        " WHERE e.tenant_id = s.tenant_id AND e.period_start < s.period_start AND e.state <> 'closed')"
        " FOR UPDATE OF s SKIP LOCKED",
        statement_id,
    )


async def find_next_queued(unit: UnitOfWork, tenant_id: TenantId) -> StatementId | None:
    """The earliest queued statement of a tenant."""
    value = await unit.fetchval(
        "SELECT id FROM statement WHERE tenant_id = $1 AND state = 'queued' ORDER BY period_start LIMIT 1", tenant_id
    )
    return None if value is None else StatementId.of(value)


async def previous_digest(unit: UnitOfWork, tenant_id: TenantId, before: datetime) -> str | None:
    """The digest of the tenant's statement before this period."""
    value: str | None = await unit.fetchval(
        "SELECT digest FROM statement WHERE tenant_id = $1 AND period_start < $2 AND state = 'closed'"
        " ORDER BY period_start DESC LIMIT 1",
        tenant_id,
        before,
    )
    return value


async def next_number(unit: UnitOfWork) -> int:
    """The next number of the series, without gaps: the counter's row stays locked until this transaction ends."""
    return int(
        await unit.fetchval("UPDATE statement_counter SET last = last + 1 WHERE series = 'statement' RETURNING last")
    )


async def save_closed(unit: UnitOfWork, view: StatementView) -> None:
    """Writes the closed statement into its locked row."""
    changed = await unit.execute(
        "UPDATE statement SET state = 'closed', number = $2, body = $3, digest = $4, closed_at = $5"
        " WHERE id = $1 AND state = 'queued'",
        view.statement_id,
        view.number,
        view.model_dump(mode="json"),
        view.digest,
        view.closed_at,
    )
    assert changed == 1, "the row was locked before"


async def list_statements(
    unit: UnitOfWork, after: UUID | None, limit: int, tenant_id: TenantId | None
) -> list[asyncpg.Record]:
    """Closed statements by id."""
    return await unit.fetch(
        "SELECT id, body FROM statement WHERE state = 'closed' AND ($1::uuid IS NULL OR id > $1)"
        " AND ($3::uuid IS NULL OR tenant_id = $3) ORDER BY id LIMIT $2",
        after,
        limit,
        tenant_id,
    )


def statement_view(row: asyncpg.Record) -> StatementView:
    """The closed statement of a row."""
    return StatementView.model_validate(row["body"])


async def find_closed(unit: UnitOfWork, tenant_id: TenantId, period_start: datetime) -> StatementView | None:
    """The closed statement of a period, if there is one."""
    row = await unit.fetchrow(
        "SELECT id, body FROM statement WHERE tenant_id = $1 AND period_start = $2 AND state = 'closed'",
        tenant_id,
        period_start,
    )
    return None if row is None else statement_view(row)


async def get_statement(unit: UnitOfWork, statement_id: StatementId) -> StatementView:
    """A closed statement.

    Raises:
        ProblemError: 404 `billing.statement.not_found`.
    """
    row = await unit.fetchrow("SELECT id, body FROM statement WHERE id = $1 AND state = 'closed'", statement_id)
    if row is None:
        raise ProblemError(ErrorCode.STATEMENT_NOT_FOUND, f"There is no closed statement {statement_id}.")
    return statement_view(row)
