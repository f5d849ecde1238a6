"""Rows of exports: what was asked for, and how far it is built."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.bills import ExportFormat, ExportState, ExportView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import AllocationId, ExportId, TenantId
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork


@dataclass(frozen=True, slots=True)
class ExportWork:
    """An export that is not built yet. Nothing was begun while `as_of` is null.

    `running` = the allocations that ran at `as_of`; `place` = where the next step goes on, null = at the beginning;
    `tries` = how often its building was begun since it last got on.
    """

    view: ExportView
    as_of: datetime | None
    running: tuple[AllocationId, ...]
    place: str | None
    size: int
    tries: int


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
        as_of=row["as_of"],
        expires_at=row["expires_at"],
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


async def lock_work(unit: UnitOfWork, export_id: ExportId) -> ExportWork | None:
    """The export, locked for a step of its building; None when another worker is at it, or there is nothing to do."""
    row = await unit.fetchrow(
        "SELECT * FROM export WHERE id = $1 AND state IN ('queued', 'running') FOR UPDATE SKIP LOCKED", export_id
    )
    if row is None:
        return None
    running = tuple(AllocationId.of(key) for key in row["running"] or ())
    return ExportWork(export_view(row), row["as_of"], running, row["place"], row["bytes"] or 0, row["tries"])


async def begin_export(
    unit: UnitOfWork, export_id: ExportId, as_of: datetime | None, running: Sequence[AllocationId]
) -> None:
    """Sets out the locked export from its beginning; `as_of` null = keeps what was set before."""
    await _change(
        unit,
        export_id,
        "state = 'running', as_of = coalesce($2, as_of), running = CASE WHEN $2 IS NULL THEN running ELSE $3 END,"
        " place = NULL, rows = 0, bytes = 0",
        as_of,
        list(running),
    )


async def count_try(unit: UnitOfWork, export_id: ExportId) -> None:
    """Counts that the building of the locked export is begun, for the first time or once more."""
    await _change(unit, export_id, "tries = tries + 1")


async def note_progress(unit: UnitOfWork, export_id: ExportId, place: str, rows: int, size: int) -> None:
    """Marks how far the locked export is: `rows` more charges, `size` bytes in all, and where it goes on."""
    await _change(unit, export_id, "place = $2, rows = rows + $3, bytes = $4, tries = 0", place, rows, size)


async def finish_export(
    unit: UnitOfWork, export_id: ExportId, rows: int, size: int, digest: str, keep_days: int
) -> None:
    """The locked export is built: `rows` more charges, `size` bytes in all; it is kept for `keep_days`."""
    await _change(
        unit,
        export_id,
        "state = 'ready', rows = rows + $2, bytes = $3, digest = $4, running = NULL, place = NULL,"
        " expires_at = clock_timestamp() + make_interval(days => $5::integer)",
        rows,
        size,
        digest,
        keep_days,
    )


async def fail_export(unit: UnitOfWork, export_id: ExportId, error: str) -> None:
    """The locked export cannot be built."""
    await _change(
        unit, export_id, "state = 'failed', error = $2, running = NULL, place = NULL, rows = NULL, bytes = NULL", error
    )


async def _change(unit: UnitOfWork, export_id: ExportId, values: str, *arguments: object) -> None:
    changed = await unit.execute(
        f"UPDATE export SET {values}, touched_at = clock_timestamp(), generation = generation + 1 WHERE id = $1",
        export_id,
        *arguments,
    )
    assert changed == 1, "the row was locked before"


async def take_overdue(unit: UnitOfWork, seconds: int) -> list[ExportId]:
    """Exports that nobody has built on for a time; they are overdue again only after as long."""
    rows = await unit.fetch(
        "UPDATE export SET touched_at = clock_timestamp() WHERE id IN (SELECT id FROM export"
        " WHERE state IN ('queued', 'running') AND touched_at < clock_timestamp() - make_interval(secs => $1)"
        " ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED) RETURNING id",
        float(seconds),
    )
    return sorted(ExportId.of(row["id"]) for row in rows)


async def list_expired(unit: UnitOfWork, now: datetime, limit: int) -> list[ExportId]:
    """Exports whose files were kept long enough, the oldest first."""
    rows = await unit.fetch(
        "SELECT id FROM export WHERE state = 'ready' AND expires_at <= $1 ORDER BY expires_at LIMIT $2", now, limit
    )
    return [ExportId.of(row["id"]) for row in rows]


async def expire_export(unit: UnitOfWork, export_id: ExportId, now: datetime) -> bool:
    """Marks an export whose file may be deleted now; False when it may not, or somebody else is at it."""
    row = await unit.fetchrow(
        "SELECT 1 FROM export WHERE id = $1 AND state = 'ready' AND expires_at <= $2 FOR UPDATE SKIP LOCKED",
        export_id,
        now,
    )
    if row is not None:
        await _change(unit, export_id, "state = 'expired'")
    return row is not None


async def delete_old(unit: UnitOfWork, before: datetime, limit: int) -> int:
    """Deletes rows of exports that have no file and were asked for before an instant; how many."""
    return await unit.execute(
        "DELETE FROM export WHERE id IN (SELECT id FROM export WHERE state IN ('expired', 'failed')"
        " AND created_at < $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED)",
        before,
        limit,
    )
