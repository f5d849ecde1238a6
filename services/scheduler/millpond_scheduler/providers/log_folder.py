"""Where the text of tasks lies: a protocol, and a folder as its first implementation.

Offsets count every byte that a task printed, kept or not. A log is kept in pieces named by their first offset: those
that begin within the head stay, of later ones the newest. A read that meets a gap tells where text goes on.
"""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Protocol

from millpond_contracts.ids import AllocationId

PIECE_BYTES = 4 * 1024 * 1024
HEAD_BYTES = 32 * 1024 * 1024
TAIL_PIECES = 8
"""Head and tail together: 64 MiB an attempt."""


class LogStore(Protocol):
    """Keeps the logs of attempts by their allocation."""

    async def append(self, allocation: AllocationId, offset: int, data: bytes) -> None:
        """Keeps `data` at `offset`; the same bytes twice are kept once."""
        ...

    async def read(self, allocation: AllocationId, offset: int, limit: int) -> tuple[int, bytes]:
        """The first kept bytes at or after `offset`: where they begin, and at most `limit` up to a gap; else empty."""
        ...

    async def remove(self, allocation: AllocationId) -> None:
        """Forgets a log."""
        ...


class LogFolder:
    """Logs as files of one folder, which all processes of the scheduler share."""

    def __init__(
        self,
        folder: Path,
        *,
        piece_bytes: int = PIECE_BYTES,
        head_bytes: int = HEAD_BYTES,
        tail_pieces: int = TAIL_PIECES,
    ) -> None:
        self._folder = folder
        self._piece_bytes = piece_bytes
        self._head_bytes = head_bytes
        self._tail_pieces = tail_pieces

    async def append(self, allocation: AllocationId, offset: int, data: bytes) -> None:
        """Keeps `data` at `offset`; older pieces between head and tail are dropped as needed."""
        await asyncio.to_thread(self._append, allocation, offset, data)

    async def read(self, allocation: AllocationId, offset: int, limit: int) -> tuple[int, bytes]:
        """The first kept bytes at or after `offset`, up to a gap or `limit`."""
        return await asyncio.to_thread(self._read, allocation, offset, limit)

    async def remove(self, allocation: AllocationId) -> None:
        """Removes the log's files; nothing happens when there are none."""
        await asyncio.to_thread(shutil.rmtree, self._path(allocation), True)

    def _path(self, allocation: AllocationId) -> Path:
        # The last characters are random, the first are the time: folders fill evenly.
        return self._folder / str(allocation)[-2:] / str(allocation)

    def _append(self, allocation: AllocationId, offset: int, data: bytes) -> None:
        folder = self._path(allocation)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        view = memoryview(data)
        while view:
            first, room = self._place(folder, offset)
            piece = view[:room]
            with open(folder / f"{first:020d}", "r+b" if (folder / f"{first:020d}").exists() else "w+b") as file:
                file.seek(offset - first)
                file.write(piece)
            offset += len(piece)
            view = view[len(piece) :]
        self._drop(folder)

    def _place(self, folder: Path, offset: int) -> tuple[int, int]:
        """The piece that `offset` belongs to, by its first offset, and the bytes it still takes from there on."""
        for first, length in reversed(_pieces(folder)):
            if first <= offset <= first + length and offset < first + self._piece_bytes:
                return first, first + self._piece_bytes - offset
            if first <= offset:
                break
        return offset, self._piece_bytes

    def _drop(self, folder: Path) -> None:
        tail = [first for first, _ in _pieces(folder) if first >= self._head_bytes]
        for first in tail[: -self._tail_pieces]:
            (folder / f"{first:020d}").unlink(missing_ok=True)

    def _read(self, allocation: AllocationId, offset: int, limit: int) -> tuple[int, bytes]:
        folder, start, data = self._path(allocation), offset, b""
        for first, length in _pieces(folder):
            if start + len(data) >= first + length:
                continue
            if data and start + len(data) < first:
                break  # a gap: whoever reads on learns of it
            if not data:
                start = max(offset, first)
            try:
                with open(folder / f"{first:020d}", "rb") as file:
                    file.seek(start + len(data) - first)
                    data += file.read(limit - len(data))
            except FileNotFoundError:
                continue  # dropped just now
            if len(data) >= limit:
                break
        return (start, data) if data else (offset, b"")


def _pieces(folder: Path) -> list[tuple[int, int]]:
    """The pieces in order, each as (first offset, length)."""
    try:
        return sorted((int(entry.name), entry.stat().st_size) for entry in os.scandir(folder))
    except FileNotFoundError:
        return []
