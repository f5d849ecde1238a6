"""Building exports: charges of a period as CSV, page by page into a file, with its digest."""

import csv
import hashlib
import io
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from millpond_billing.usecases.charges import (
    ChargeQuery,
    Place,
    csv_header,
    csv_rows,
    list_charges,
    list_unwritten_ids,
)
from millpond_contracts.ids import ExportId
from millpond_kernel.uow import UnitOfWork

PAGE = 1000
_FORMULA = re.compile(r"[=@+\-\t\r\n]")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class BuiltExport:
    """What was written."""

    rows: int
    size: int
    digest: str


def export_file(folder: Path, export_id: ExportId) -> Path:
    """Where the file of an export lies."""
    return folder / f"{export_id}.csv"


async def write_csv(unit: UnitOfWork, folder: Path, export_id: ExportId, query: ChargeQuery) -> BuiltExport:
    """Writes the file in pages, and under its name only when it is whole: nobody ever reads half of it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = export_file(folder, export_id)
    # One name: whoever builds holds the export's row, and what a killed worker left is written over.
    draft = target.with_suffix(".part")
    digest, size, rows = hashlib.sha256(), 0, 0
    running = await list_unwritten_ids(unit, query)
    place: Place | None = Place()
    try:
        with draft.open("wb") as out:
            text = _csv([csv_header()])
            while True:
                out.write(text)
                digest.update(text)
                size += len(text)
                if place is None:
                    break
                views, place = await list_charges(unit, query, place, PAGE, running)
                rows += len(views)
                text = _csv(csv_rows(views))
            out.flush()
            os.fsync(out.fileno())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return BuiltExport(rows, size, digest.hexdigest())


def _csv(lines: Iterable[list[str]]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows([_safe(cell) for cell in cells] for cells in lines)
    return buffer.getvalue().encode()


def _safe(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula; numbers stay as they are."""
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell
