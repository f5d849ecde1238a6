"""What a task printed, within a fixed size: the beginning and the end are kept, the middle may be cut.

Offsets count every byte the task printed, kept or not. `log` holds the bytes from 0 until it is full; then segments
`log.<first offset>` follow, of which only the newest stay. A reader that asks for a lost offset is told where the
next kept byte is, so it can mark the cut.
Source: decision 19 (64 MiB an attempt, head and tail kept, the cut marked).
"""

import os

HEAD_NAME = "log"
HEAD_BYTES = 32 * 1024 * 1024
SEGMENT_BYTES = 4 * 1024 * 1024
SEGMENT_COUNT = 8


class LogWriter:
    """Appends to the log of one attempt. A full or broken disk loses text, never the task."""

    def __init__(
        self,
        folder: str,
        head_bytes: int = HEAD_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        segment_count: int = SEGMENT_COUNT,
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segment_count = segment_count
        self._room = head_bytes
        self._segments: list[str] = []
        self._file = self._open(HEAD_NAME)
        self.total_bytes = 0
        self.lost_bytes = 0

    def write(self, data: bytes) -> None:
        """Append `data`, dropping the oldest segments beyond the head as needed."""
        view = memoryview(data)
        while view:
            if self._room == 0:
                self._rotate()
            piece = view[: self._room]
            self._append(piece)
            self._room -= len(piece)
            self.total_bytes += len(piece)
            view = view[len(piece) :]

    def close(self) -> None:
        """Give the file back; the log stays readable."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, piece: memoryview) -> None:
        done = 0
        try:
            while done < len(piece):
                done += os.write(self._file, piece[done:])
        except OSError:
            # Offsets must stay true for what follows: leave a hole of the same length.
            self.lost_bytes += len(piece) - done
            self._skip(len(piece) - done)

    def _skip(self, count: int) -> None:
        try:
            size = os.fstat(self._file).st_size
            os.truncate(self._file, size + count)
            os.lseek(self._file, 0, os.SEEK_END)
        except OSError:
            pass

    def _rotate(self) -> None:
        name = f"{HEAD_NAME}.{self.total_bytes:020d}"
        self.close()
        self._segments.append(name)
        while len(self._segments) > self._segment_count:
            os.unlink(os.path.join(self._folder, self._segments.pop(0)))
        try:
            self._file = self._open(name)
        except OSError:
            self._file = -1  # this segment's text is lost and counted; the next one tries again
        self._room = self._segment_bytes

    def _open(self, name: str) -> int:
        path = os.path.join(self._folder, name)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def log_pieces(folder: str) -> list[tuple[int, int, str]]:
    """The kept pieces in order, each as (first offset, length in bytes, file name)."""
    pieces = []
    for name in os.listdir(folder):
        if name != HEAD_NAME and not name.startswith(HEAD_NAME + "."):
            continue
        first = 0 if name == HEAD_NAME else int(name[len(HEAD_NAME) + 1 :])
        try:
            pieces.append((first, os.stat(os.path.join(folder, name)).st_size, name))
        except FileNotFoundError:
            continue  # dropped by the writer just now
    return sorted(pieces)


def read_log(folder: str, offset: int, limit: int) -> tuple[int, bytes]:
    """The first kept bytes at or after `offset`, as (their offset, at most `limit` bytes); empty at the end."""
    for first, length, name in log_pieces(folder):
        if offset >= first + length:
            continue
        start = max(offset, first)
        try:
            with open(os.path.join(folder, name), "rb") as file:
                file.seek(start - first)
                return start, file.read(limit)
        except FileNotFoundError:
            continue
    return offset, b""
