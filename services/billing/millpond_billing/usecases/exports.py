"""Building exports: charges of a period as CSV, row by row into a file, with its digest."""

import csv
import hashlib
import io
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from millpond_billing.usecases.charges import csv_header, csv_row
from millpond_contracts.bodies.bills import ChargeView
from millpond_contracts.ids import ExportId


@dataclass(frozen=True, slots=True)
class BuiltExport:
    """What was written."""

    rows: int
    size: int
    digest: str


def export_file(folder: Path, export_id: ExportId) -> Path:
    """Where the file of an export lies."""
    return folder / f"{export_id}.csv"


def write_csv(folder: Path, export_id: ExportId, charges: Iterable[ChargeView]) -> BuiltExport:
    """Writes the file in one step: nobody ever reads half of it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = export_file(folder, export_id)
    draft = target.with_suffix(".part")
    digest, size, rows = hashlib.sha256(), 0, 0
    with draft.open("wb") as out:
        for line in _lines(charges):
            out.write(line)
            digest.update(line)
            size += len(line)
            rows += 1
        out.flush()
        os.fsync(out.fileno())
    draft.replace(target)
    return BuiltExport(rows - 1, size, digest.hexdigest())


def _lines(charges: Iterable[ChargeView]) -> Iterable[bytes]:
    yield _line(csv_header())
    for charge in charges:
        yield _line(csv_row(charge))


def _line(cells: list[str]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([_safe(cell) for cell in cells])
    return buffer.getvalue().encode()


def _safe(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula; numbers stay as they are."""
    if cell[:1] in ("=", "@", "+", "\t", "\r") or (cell[:1] == "-" and not cell[1:2].isdigit()):
        return f"'{cell}"
    return cell
