"""What a Celery task does: take its row, do the work, write how it ended.

A lost or doubled message costs time, never truth.
"""

from pathlib import Path

from millpond_billing.domain.timeline import instant_of
from millpond_billing.store import exports, statements
from millpond_billing.store.tenants import get_tenant
from millpond_billing.usecases.charges import charge_views
from millpond_billing.usecases.exports import write_csv
from millpond_billing.usecases.metering import metered_segments
from millpond_billing.usecases.statements import close_statement
from millpond_contracts.bodies.bills import ExportState
from millpond_contracts.ids import ExportId, StatementId
from millpond_kernel.db import SYSTEM, Database


async def close_one_statement(database: Database, statement_id: StatementId) -> bool:
    """Closes a queued statement; False when somebody else has it, or an earlier period must be closed first."""
    now = await database.now()
    async with database.begin(SYSTEM) as unit:
        row = await statements.take_queued(unit, statement_id)
        if row is None:
            return False
        await close_statement(unit, row, now)
    return True


async def build_one_export(database: Database, export_id: ExportId, folder: Path) -> bool:
    """Builds a queued export; False when somebody else has it."""
    now = await database.now()
    async with database.begin(SYSTEM) as unit:
        view = await exports.take_export(unit, export_id)
        if view is None:
            return False
        await get_tenant(unit, view.tenant_id)
        start, end = instant_of(view.period_start), instant_of(view.period_end)
        segments = await metered_segments(unit, view.tenant_id, start, end, instant_of(now))
        # The row stays locked while the file is written, so that two workers never build one export.
        try:
            built = write_csv(folder, export_id, charge_views(segments))
        except OSError as error:
            await exports.finish_export(
                unit, export_id, ExportState.FAILED, error=f"{type(error).__name__}: {error}"[:500]
            )
            return True
        await exports.finish_export(
            unit, export_id, ExportState.READY, rows=built.rows, size=built.size, digest=built.digest
        )
    return True
