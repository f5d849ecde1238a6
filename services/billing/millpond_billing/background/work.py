"""What a Celery task does: take its row, do the work, write how it ended.

A lost or doubled message costs time, never truth.
"""

from pathlib import Path

from millpond_billing.domain.periods import Period
from millpond_billing.domain.timeline import instant_of
from millpond_billing.store import exports, statements
from millpond_billing.usecases.charges import ChargeQuery
from millpond_billing.usecases.exports import write_csv
from millpond_billing.usecases.statements import close_statement
from millpond_contracts.bodies.bills import ExportState
from millpond_contracts.ids import ExportId, StatementId
from millpond_kernel.db import SYSTEM, Database


async def close_statements(database: Database, statement_id: StatementId) -> int:
    """Closes a queued statement and those of the tenant that wait behind it, one a transaction; how many."""
    closed = 0
    following: StatementId | None = statement_id
    while following is not None:
        async with database.begin(SYSTEM) as unit:
            view = await close_statement(unit, following)
            if view is None:
                return closed
            following = await statements.find_next_queued(unit, view.tenant_id)
        closed += 1
    return closed


async def build_one_export(database: Database, export_id: ExportId, folder: Path) -> bool:
    """Builds a queued export of the period that it was asked for; False when somebody else has it or it is built."""
    now = await database.now()
    async with database.begin(SYSTEM) as unit:
        view = await exports.lock_export(unit, export_id)
        if view is None:
            return False
        # By the row alone: the tenant's zone may have changed since, and nothing depends on the period's number.
        period = Period(0, instant_of(view.period_start), instant_of(view.period_end))
        # The row stays locked while the file is written, so that two workers never build one export.
        try:
            built = await write_csv(unit, folder, export_id, ChargeQuery(view.tenant_id, period, now))
        except OSError as error:
            reason = f"{type(error).__name__}: {error}"[:500]
            await exports.finish_export(unit, export_id, ExportState.FAILED, error=reason)
            return True
        await exports.finish_export(
            unit, export_id, ExportState.READY, rows=built.rows, size=built.size, digest=built.digest
        )
    return True
