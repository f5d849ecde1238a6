"""Rows of statements. A closed one is refused every change by the database itself."""

from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_billing.domain.periods import Period
from millpond_billing.domain.timeline import moment_of
from millpond_contracts.bodies.bills import StatementView
from millpond_contracts.bodies.tenants import TenantView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import StatementId, TenantId
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork


async def queue_statement(unit: UnitOfWork, tenant: TenantView, period: Period) -> StatementId | None:
    """A row for a period to be closed; None when it has one."""
    key = await unit.fetchval(
        "INSERT INTO statement (id, tenant_id, state, period_number, period_start, period_end, timezone, currency)"
        " VALUES ($1, $2, 'queued', $3, $4, $5, $6, $7) ON CONFLICT ON CONSTRAINT statement_once DO NOTHING"
        " RETURNING id",
        StatementId.new(),
        tenant.tenant_id,
        period.number,
        moment_of(period.start),
        moment_of(period.end),
        tenant.timezone,
        tenant.currency,
    )
    return None if key is None else StatementId.of(key)


async def take_queued(unit: UnitOfWork, statement_id: StatementId) -> asyncpg.Record | None:
    """The queued row, locked; None when another worker has it or it is closed, or an earlier period is still open."""
    return await unit.fetchrow(
        "SELECT s.* FROM statement s WHERE s.id = $1 AND s.state = 'queued' AND NOT EXISTS (SELECT 1 FROM statement e"
        " WHERE e.tenant_id = s.tenant_id AND e.period_start < s.period_start AND e.state = 'queued')"
        " FOR UPDATE OF s SKIP LOCKED",
        statement_id,
    )


async def list_overdue(unit: UnitOfWork, seconds: int) -> list[StatementId]:
    """Queued rows that nobody closed in time, oldest period first."""
    rows = await unit.fetch(
        "SELECT id FROM statement WHERE state = 'queued' AND queued_at < clock_timestamp() - make_interval(secs => $1)"
        " ORDER BY period_start, id LIMIT 500",
        float(seconds),
    )
    return [StatementId.of(row["id"]) for row in rows]


async def first_use(unit: UnitOfWork, tenant_id: TenantId) -> datetime | None:
    """When the tenant's first allocation became active."""
    value: datetime | None = await unit.fetchval(
        "SELECT min(active_at) FROM allocation_view WHERE tenant_id = $1", tenant_id
    )
    return value


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
        "UPDATE statement SET state = 'closed', number = $2, currency = $3, body = $4, digest = $5, closed_at = $6"
        " WHERE id = $1 AND state = 'queued'",
        view.statement_id,
        view.number,
        view.currency,
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
