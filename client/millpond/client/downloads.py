"""What has arrived of a file: where it goes on after a broken connection, and whether it is what its digest says.

Nothing here sends or receives: the synchronous and the asynchronous client share it.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import httpx

from millpond.client.errors import MillpondError
from millpond_contracts.bodies.bills import ExportView
from millpond_contracts.ids import ExportId

# Answers after which it is worth to go on a little later.
AGAIN = (429, 502, 503, 504)
_BLOCK = 1 << 20


class Received:
    """The beginning of an export's file, as far as it has come."""

    def __init__(self, export: ExportView) -> None:
        if export.digest is None or export.bytes is None:
            raise MillpondError(f"export {export.export_id} is {export.state}, not ready", code="client.export.state")
        self.size = 0
        self._wanted, self._digest = export.bytes, export.digest
        self._found = hashlib.sha256()

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing."""
        return self.size >= self._wanted

    @property
    def is_too_long(self) -> bool:
        """Whether there is more than the file has."""
        return self.size > self._wanted

    def take(self, block: bytes) -> None:
        """Counts what came next."""
        self.size += len(block)
        self._found.update(block)

    def headers(self) -> Mapping[str, str]:
        """What asks for the rest, of this file and no other: its digest is its entity tag."""
        plain = {"Accept-Encoding": "identity"}
        return plain if not self.size else {**plain, "Range": f"bytes={self.size}-", "If-Range": f'"{self._digest}"'}

    def check_answer(self, response: httpx.Response) -> None:
        """Makes sure that an answer is the rest that was asked for.

        Raises:
            MillpondError: `client.download.changed`.
        """
        if response.headers.get("etag") != f'"{self._digest}"' or (response.status_code == 206) != bool(self.size):
            raise MillpondError(
                "the file is not the one whose download was begun; delete what there is of it and begin anew",
                code="client.download.changed",
                status=response.status_code,
            )

    def check_whole(self) -> None:
        """Makes sure that what came is the file.

        Raises:
            MillpondError: `client.download.digest`.
        """
        found = self._found.hexdigest()
        if found != self._digest:
            raise MillpondError(
                f"what was downloaded has the SHA-256 {found}, not {self._digest}; download it again",
                code="client.download.digest",
            )


class PartFile:
    """An export that is not wholly downloaded to `to`: it lies beside it, and a later program may go on with it."""

    def __init__(self, to: Path, export: ExportView) -> None:
        self.received = Received(export)
        self._to, self._part = to, part_of(to, export.export_id)
        if self._part.exists():
            with self._part.open("rb") as source:
                while block := source.read(_BLOCK):
                    self.received.take(block)
        if self.received.is_too_long:
            self._part.unlink()
            self.received = Received(export)

    def append(self, block: bytes) -> None:
        """Writes what came next; `received` has counted it."""
        with self._part.open("ab") as out:
            out.write(block)

    def finish(self) -> None:
        """Gives the file its name, once it is what its digest says.

        Raises:
            MillpondError: `client.download.digest`; what there was is deleted, since going on with it would never help.
        """
        with self._part.open("ab") as out:
            os.fsync(out.fileno())
        try:
            self.received.check_whole()
        except MillpondError:
            self._part.unlink()
            raise
        self._part.replace(self._to)


def part_of(to: Path, export_id: ExportId) -> Path:
    """Where an export lies that is not wholly downloaded to `to` yet."""
    return to.with_name(f"{to.name}.{export_id}.part")
