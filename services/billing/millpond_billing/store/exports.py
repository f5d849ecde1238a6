"""Rows of exports."""

from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.bills import ExportFormat, ExportState, ExportView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import ExportId, TenantId
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork


def export_view(row: asyncpg.Record) -> ExportView:
    """The export of a row."""
    return ExportView(
        export_id=ExportId.of(row["id"]),
        tenant_id=TenantId.of(row["tenant_id"]),
        format=ExportFormat(row["format"]),
        period_start=row["period_start"],
        period_end=row["period_end"],
        state=ExportState(row["state"]),
        rows=row["rows"],
        bytes=row["bytes"],
        digest=row["digest"],
        error=row["error"],
        created_at=row["created_at"],
        generation=row["generation"],
    )


async def insert_export(
    unit: UnitOfWork, tenant_id: TenantId, kind: ExportFormat, start_at: datetime, end_at: datetime
) -> ExportView:
    """A queued export."""
    row = await unit.fetchrow(
        "INSERT INTO export (id, tenant_id, format, period_start, period_end, state, generation)"
        " VALUES ($1, $2, $3, $4, $5, 'queued', 1) RETURNING *",
        ExportId.new(),
        tenant_id,
        kind.value,
        start_at,
        end_at,
    )
    assert row is not None, "an insert returns its row"
    return export_view(row)


async def get_export(unit: UnitOfWork, export_id: ExportId) -> ExportView:
    """One export.

    Raises:
        ProblemError: 404 `billing.export.not_found`.
    """
    row = await unit.fetchrow("SELECT * FROM export WHERE id = $1", export_id)
    if row is None:
        raise ProblemError(ErrorCode.EXPORT_NOT_FOUND, f"There is no export {export_id}.")
    return export_view(row)


async def list_exports(
    unit: UnitOfWork, after: UUID | None, limit: int, tenant_id: TenantId | None
) -> list[asyncpg.Record]:
    """Exports by id."""
    return await unit.fetch(
        "SELECT * FROM export WHERE ($1::uuid IS NULL OR id > $1) AND ($3::uuid IS NULL OR tenant_id = $3)"
        " ORDER BY id LIMIT $2",
        after,
        limit,
        tenant_id,
    )


async def lock_export(unit: UnitOfWork, export_id: ExportId) -> ExportView | None:
    """The export, locked for building; None when another worker has it or it is done."""
    row = await unit.fetchrow(
        "SELECT * FROM export WHERE id = $1 AND state = 'queued' FOR UPDATE SKIP LOCKED", export_id
    )
    return None if row is None else export_view(row)


async def finish_export(
    unit: UnitOfWork,
    export_id: ExportId,
    state: ExportState,
    *,
    rows: int | None = None,
    size: int | None = None,
    digest: str | None = None,
    error: str | None = None,
) -> None:
    """Writes how the building ended."""
    changed = await unit.execute(
        "UPDATE export SET state = $2, rows = $3, bytes = $4, digest = $5, error = $6, touched_at = clock_timestamp(),"
        " generation = generation + 1 WHERE id = $1",
        export_id,
        state.value,
        rows,
        size,
        digest,
        error,
    )
    assert changed == 1, "the row was locked before"


async def take_overdue(unit: UnitOfWork, seconds: int) -> list[ExportId]:
    """Exports that nobody built in time; they are overdue again only after as long."""
    rows = await unit.fetch(
        "UPDATE export SET touched_at = clock_timestamp() WHERE id IN (SELECT id FROM export WHERE state = 'queued'"
        " AND touched_at < clock_timestamp() - make_interval(secs => $1) ORDER BY id LIMIT 500"
        " FOR UPDATE SKIP LOCKED) RETURNING id",
        float(seconds),
    )
    return sorted(ExportId.of(row["id"]) for row in rows)
