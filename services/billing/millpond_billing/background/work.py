"""What a Celery task does: take its row, do the work, write how it ended.

A lost or doubled message costs time, never truth.
"""

from pathlib import Path

from millpond_billing.store import exports, statements
from millpond_billing.usecases.exports import Step, build_step, delete_files, freeze
from millpond_billing.usecases.statements import close_statement
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


async def build_one_export(
    database: Database, export_id: ExportId, folder: Path, *, step_rows: int = 2000, keep_days: int = 30
) -> bool:
    """Builds an export, or builds on where a killed worker stopped; False when somebody else ends or has ended it."""
    async with database.begin(SYSTEM) as unit:
        is_wanted = await freeze(unit, folder, export_id)
    if not is_wanted:
        return False
    step = Step.MORE
    while step is Step.MORE:
        async with database.begin(SYSTEM) as unit:
            step = await build_step(unit, folder, export_id, step_rows, keep_days)
    return step is not Step.NOTHING


async def forget_export(database: Database, export_id: ExportId, folder: Path) -> bool:
    """Deletes the file of an export that was kept long enough; False when it was not, or somebody else does."""
    now = await database.now()
    async with database.begin(SYSTEM) as unit:
        view = await exports.get_export(unit, export_id)
        if not await exports.expire_export(unit, export_id, now):
            return False
        # Before the commit: a file that is left behind by a kill would never be looked for again.
        delete_files(folder, view)
    return True
