"""Building exports step by step: each a page of charges at the end of a file, and a mark of how far it is.

A step is a transaction that holds the export's row, so that two workers never write at a time. What a killed worker
wrote after the last mark is cut off by the next step. What is exported is frozen before the first one: what was
written by then, and which allocations ran. So the pages fit together however long the building takes.
"""

import csv
import hashlib
import io
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from enum import Enum
from pathlib import Path

from millpond_billing.domain.periods import Period
from millpond_billing.domain.timeline import instant_of
from millpond_billing.store import exports as rows
from millpond_billing.store.exports import ExportWork
from millpond_billing.store.locks import lock_for_closing
from millpond_billing.usecases.charges import (
    ChargeQuery,
    Place,
    csv_header,
    csv_rows,
    list_charges,
    list_unwritten_ids,
    parse_place,
)
from millpond_contracts.bodies.bills import ChargeView, ExportFormat, ExportView
from millpond_contracts.ids import ExportId
from millpond_kernel.observability import log
from millpond_kernel.uow import UnitOfWork

# Each is handed out again only after a time: what a restart or a moment's fault ends has more than enough of them.
MOST_TRIES = 5
_FORMULA = re.compile(r"[=@+\-\t\r\n]")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


class Step(Enum):
    """How a step of building ended."""

    MORE = "more"
    READY = "ready"
    FAILED = "failed"
    NOTHING = "nothing"  # somebody else is at it, or there is nothing to build


class FileFailed(Exception):
    """The file cannot be written; the message says why, and nothing of where: tenants read it."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"The file could not be written: {error.strerror or type(error).__name__}.")


def export_file(folder: Path, export: ExportView) -> Path:
    """Where the file of an export lies."""
    return folder / f"{export.export_id}.{export.format.value}"


def delete_files(folder: Path, export: ExportView) -> None:
    """Deletes what there is of an export's file."""
    for file in (export_file(folder, export), _draft(folder, export)):
        file.unlink(missing_ok=True)


async def freeze(unit: UnitOfWork, folder: Path, export_id: ExportId) -> bool:
    """Begins a try, and fixes what the export holds, once; False when there is nothing to build.

    An export that did not get on in `MOST_TRIES` tries fails: whatever ends them would end every other one too.
    """
    work = await rows.lock_work(unit, export_id)
    if work is None:
        return False
    if work.tries >= MOST_TRIES:
        await _fail(unit, folder, work.view, f"It could not be built in {MOST_TRIES} tries; create another export.")
        return False
    await rows.count_try(unit, export_id)
    if work.as_of is None:
        # Whoever rates has either finished, and is seen, or comes later, and is left out by the time of writing.
        await lock_for_closing(unit, work.view.tenant_id)
        as_of: datetime = await unit.fetchval("SELECT clock_timestamp()")
        running = await list_unwritten_ids(unit, _query(work.view, as_of))
        await rows.begin_export(unit, export_id, as_of, running)
    return True


async def build_step(unit: UnitOfWork, folder: Path, export_id: ExportId, step_rows: int, keep_days: int) -> Step:
    """Writes the next page of a frozen export; the last one gives the file its name: nobody ever reads half of it."""
    work = await rows.lock_work(unit, export_id)
    if work is None or work.as_of is None:
        return Step.NOTHING
    try:
        return await _build(unit, folder, work, work.as_of, step_rows, keep_days)
    except FileFailed as error:
        log.warning("export_file_failed", service="billing", export_id=str(export_id), error=str(error.__cause__))
        await _fail(unit, folder, work.view, str(error))
        return Step.FAILED


async def _fail(unit: UnitOfWork, folder: Path, export: ExportView, reason: str) -> None:
    """Ends the locked export for good; the tenant reads `reason`."""
    # Before the commit: what a kill leaves behind afterwards would never be looked for again, and after a rollback the
    # next step finds no draft and writes it once more.
    with suppress(OSError):
        delete_files(folder, export)
    log.warning("export_failed", service="billing", export_id=str(export.export_id), reason=reason)
    await rows.fail_export(unit, export.export_id, reason)


async def _build(
    unit: UnitOfWork, folder: Path, work: ExportWork, as_of: datetime, step_rows: int, keep_days: int
) -> Step:
    export = work.view
    if work.size and not _has_draft(folder, export, work.size):
        # Another machine's folder, or a file that was deleted: what is frozen is written once more.
        await rows.begin_export(unit, export.export_id, None, ())
        return Step.MORE
    query = _query(export, as_of)
    place: Place | None = parse_place(work.place)
    assert place is not None, "a place is always one"
    views, following = await list_charges(unit, query, place, step_rows, list(work.running))
    text = _render(export.format, views, is_first=not work.size)
    size = _append(folder, export, work.size, text)
    if following is not None:
        await rows.note_progress(unit, export.export_id, str(following), len(views), size)
        return Step.MORE
    digest = _publish(folder, export)
    await rows.finish_export(unit, export.export_id, len(views), size, digest, keep_days)
    return Step.READY


def _query(export: ExportView, as_of: datetime) -> ChargeQuery:
    # By the row alone: the tenant's zone may have changed since, and nothing depends on the period's number.
    period = Period(0, instant_of(export.period_start), instant_of(export.period_end))
    return ChargeQuery(export.tenant_id, period, as_of, known_at=as_of)


def _draft(folder: Path, export: ExportView) -> Path:
    return export_file(folder, export).with_suffix(".part")


def _has_draft(folder: Path, export: ExportView, size: int) -> bool:
    """Whether what was marked as written is there; a file that got its name just before the kill gives it back."""
    draft, named = _draft(folder, export), export_file(folder, export)
    try:
        if named.is_file() and not draft.is_file():
            named.replace(draft)
        return draft.is_file() and draft.stat().st_size >= size
    except OSError as error:
        raise FileFailed(error) from error


def _append(folder: Path, export: ExportView, size: int, text: bytes) -> int:
    """Writes `text` after the first `size` bytes of the draft, whatever is behind them; its new size."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(_draft(folder, export), os.O_RDWR | os.O_CREAT, 0o600), "r+b") as out:
            out.truncate(size)
            out.seek(size)
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise FileFailed(error) from error
    return size + len(text)


def _publish(folder: Path, export: ExportView) -> str:
    """Gives the draft its name; its digest, read from the disk as whoever downloads it will."""
    try:
        with _draft(folder, export).open("rb") as written:
            digest = hashlib.file_digest(written, "sha256")
        _draft(folder, export).replace(export_file(folder, export))
    except OSError as error:
        raise FileFailed(error) from error
    return digest.hexdigest()


def _render(kind: ExportFormat, views: Sequence[ChargeView], *, is_first: bool) -> bytes:
    if kind is ExportFormat.JSONL:
        return "".join(f"{view.model_dump_json()}\n" for view in views).encode()
    return (_csv([csv_header()]) if is_first else b"") + _csv(csv_rows(views))


def _csv(lines: Iterable[list[str]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([_safe(cell) for cell in cells] for cells in lines)
    return buffer.getvalue().encode()


def _safe(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula; numbers stay as they are."""
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell
