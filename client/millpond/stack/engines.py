"""The one interface behind which a stack's database and its event transport stand."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from millpond.stack.errors import EngineFailed
from millpond.stack.launch import launch
from millpond.stack.users import SystemUser

_POLL_SECONDS = 0.01
_LOG_TAIL_LINES = 12


class Engine(Protocol):
    """A server program that a stack brings along.

    `prepare` makes its data once and may be called again; the rest describes the running process. The ready probe
    goes over a socket or file in a private folder, so that it can only ever answer for this very process.
    """

    @property
    def name(self) -> str:
        """Short name, used for the process and its log."""
        ...

    @property
    def url(self) -> str:
        """Where clients reach it, with the owner's password."""
        ...

    @property
    def user(self) -> SystemUser | None:
        """As whom it runs; None = as the current user."""
        ...

    @property
    def folder(self) -> Path:
        """Its data, and its working folder."""
        ...

    @property
    def stop_signal(self) -> signal.Signals:
        """What makes it end cleanly and at once."""
        ...

    def prepare(self) -> None:
        """Makes folders, passwords and data that are missing. Blocks for about half a second the first time."""
        ...

    def command(self) -> tuple[str, ...]:
        """Program and arguments; in the foreground, no daemon."""
        ...

    def environment(self) -> Mapping[str, str]:
        """The whole environment of the process."""
        ...

    def is_ready(self, pid: int) -> bool:
        """Says whether the process `pid` takes connections now."""
        ...


class RunningEngine:
    """An engine started by this process, for synchronous use such as a test's fixture.

    A stack that has to keep its engines running uses the supervisor instead.
    """

    def __init__(self, engine: Engine, log_file: Path) -> None:
        self.engine = engine
        self.log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the running engine."""
        if self._process is None:
            raise EngineFailed(f"{self.engine.name} does not run")
        return self._process.pid

    def start(self, timeout_seconds: float = 60.0) -> None:
        """Prepares and starts the engine and returns when it takes connections.

        Raises:
            EngineFailed: it ended or was not ready in time; the message carries the end of its log.
        """
        self.engine.prepare()
        self._process = launch(
            self.engine.command(),
            environment=self.engine.environment(),
            folder=self.engine.folder,
            log_file=self.log_file,
            user=self.engine.user,
            death_signal=self.engine.stop_signal,
        )
        deadline = time.monotonic() + timeout_seconds
        while not self.engine.is_ready(self._process.pid):
            code = self._process.poll()
            if code is not None:
                raise self._failure(f"ended with {code}")
            if time.monotonic() > deadline:
                self.kill()
                raise self._failure(f"was not ready within {timeout_seconds:.0f} s")
            time.sleep(_POLL_SECONDS)

    def stop(self, timeout_seconds: float = 20.0) -> None:
        """Ends the engine cleanly, by force after `timeout_seconds`. Does nothing when it does not run."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(self.engine.stop_signal)
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """Ends the engine like a power cut would: no clean-up on its side."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _failure(self, what: str) -> EngineFailed:
        return EngineFailed(f"{self.engine.name} {what}. The end of {self.log_file}:\n{read_tail(self.log_file)}")


def start_engine(engine: Engine, log_file: Path, timeout_seconds: float = 60.0) -> RunningEngine:
    """Starts `engine` and returns it when it takes connections; it ends with this process."""
    running = RunningEngine(engine, log_file)
    running.start(timeout_seconds)
    return running


def read_tail(log_file: Path, lines: int = _LOG_TAIL_LINES) -> str:
    """Returns the last lines of a log, or nothing if it is not there."""
    try:
        with log_file.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16_384))
            return b"\n".join(file.read().splitlines()[-lines:]).decode(errors="replace")
    except FileNotFoundError:
        return ""


def is_stopped(pid: int) -> bool:
    """Whether a signal such as SIGSTOP holds the process; False when it does not run or cannot be seen."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False


def is_running(pid: int) -> bool:
    """Says whether the process `pid` exists and is more than a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def wait_until_gone(pid: int, mark: Path, timeout_seconds: float = 15.0) -> None:
    """Waits until the process `pid` is gone, if `mark` shows in its command line.

    After a kill -9 of the supervisor an engine needs a moment to shut down, and must not find a second one on its
    data. The mark keeps a reused pid from being taken for it.

    Raises:
        EngineFailed: it still runs after `timeout_seconds`.
    """
    deadline = time.monotonic() + timeout_seconds
    while is_running(pid) and os.fsencode(mark) in _read_command_line(pid):
        if time.monotonic() > deadline:
            raise EngineFailed(f"process {pid} still runs on {mark}")
        time.sleep(0.02)


def _read_command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
