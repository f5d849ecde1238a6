"""One supervisor per stack: a lock on a file of its folder, and how to find and end its holder."""

import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Self

from millpond.stack.errors import StackAlreadyRunning, StackError

_POLL_SECONDS = 0.05


class StackLock:
    """Held while `with` is open; the kernel releases it when the holder ends in whatever way."""

    def __init__(self, lock_file: Path) -> None:
        self._file = lock_file
        self._descriptor = -1

    def __enter__(self) -> Self:
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _read_pid(descriptor)
            os.close(descriptor)
            raise StackAlreadyRunning(self._file.parent, pid) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def find_supervisor(lock_file: Path) -> int | None:
    """Finds the process id of the supervisor that holds `lock_file`; None when no stack runs there."""
    try:
        descriptor = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_pid(descriptor)
    finally:
        os.close(descriptor)
    return None


def stop_supervisor(lock_file: Path, timeout_seconds: float = 60.0) -> bool:
    """Asks the supervisor that holds `lock_file` to stop its stack and waits until it has.

    Returns:
        False when no stack ran there.

    Raises:
        StackError: it still runs after `timeout_seconds`.
    """
    pid = find_supervisor(lock_file)
    if pid is None:
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout_seconds
    while find_supervisor(lock_file) == pid:
        if time.monotonic() > deadline:
            raise StackError(f"supervisor {pid} did not stop within {timeout_seconds:.0f} s")
        time.sleep(_POLL_SECONDS)
    return True


def _read_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return int(text) if text.isdigit() else None
