"""What a supervised process is: its specification, its states and how it proves that it is ready."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from millpond.stack.engines import Engine
from millpond.stack.errors import StackError
from millpond.stack.users import SystemUser

ReadyProbe = Callable[[int], Awaitable[bool]]
"""Asks whether the process with this pid does its work now; called every 50 ms until it says yes."""

# -P: the working folder belongs to the unprivileged user, and root must not import from it.
_MODULE_OPTIONS: Final = ("-P", "-m")
_HTTP_TIMEOUT_SECONDS = 2.0


class RestartPolicy(StrEnum):
    """What follows the end of a process."""

    ALWAYS = "always"
    """It is started again, with growing pauses."""
    ONCE = "once"
    """A step, such as a migration: exit code 0 makes it ready for those that need it, any other fails the start."""


class ProcessState(StrEnum):
    """Where a supervised process stands."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing_off"
    STOPPING = "stopping"
    STOPPED = "stopped"
    DONE = "done"
    FAILED = "failed"


TRANSITIONS: Final[Mapping[ProcessState, frozenset[ProcessState]]] = {
    ProcessState.WAITING: frozenset(
        {
            ProcessState.STARTING,  # all it needs is ready
            ProcessState.STOPPED,  # the stack stops first
        }
    ),
    ProcessState.STARTING: frozenset(
        {
            ProcessState.READY,  # its probe said yes
            ProcessState.BACKING_OFF,  # it ended, or could not be started
            ProcessState.DONE,  # a step ended with 0
            ProcessState.FAILED,  # a step ended otherwise
            ProcessState.STOPPING,  # the stack stops
        }
    ),
    ProcessState.READY: frozenset(
        {
            ProcessState.BACKING_OFF,  # it ended
            ProcessState.STOPPING,  # the stack stops
        }
    ),
    ProcessState.BACKING_OFF: frozenset(
        {
            ProcessState.STARTING,  # the pause is over
            ProcessState.STOPPED,  # the stack stops
        }
    ),
    ProcessState.STOPPING: frozenset({ProcessState.STOPPED}),  # its group is empty
    ProcessState.STOPPED: frozenset(),
    ProcessState.DONE: frozenset(),
    ProcessState.FAILED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """One process of a stack.

    Attributes:
        name: Unique in the stack; shown by `ps` for preloaded processes.
        argv: Program (absolute path) and arguments.
        environment: Its whole environment.
        folder: Its working folder.
        log_file: Gets standard output and error.
        user: As whom it runs; None = as the supervisor.
        needs: Names of processes that must be ready before it starts the first time, and that outlive it.
        restart: What follows its end.
        ready: None = ready as soon as it runs.
        stop_signal: Asks it to end cleanly.
        stop_timeout_seconds: After this its whole process group is killed.
        death_signal: What the kernel sends when the supervisor itself is killed. SIGKILL unless the process would
            leave children behind.
        preloaded: Forked from the fork server, which has the libraries in memory already; `argv` is then a
            `python_command`.
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    log_file: Path
    user: SystemUser | None = None
    needs: tuple[str, ...] = ()
    restart: RestartPolicy = RestartPolicy.ALWAYS
    ready: ReadyProbe | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    stop_timeout_seconds: float = 10.0
    death_signal: signal.Signals = signal.SIGKILL
    preloaded: bool = False

    def __post_init__(self) -> None:
        if self.preloaded and self.argv[1:3] != _MODULE_OPTIONS:
            raise StackError(f"process {self.name}: a preloaded process is `python -P -m module`, not {self.argv[:3]}")


def python_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Returns the argv that runs `module` with this Python; the working folder is not searched for modules."""
    return (sys.executable, *_MODULE_OPTIONS, module, *arguments)


def engine_process(engine: Engine, log_file: Path) -> ProcessSpec:
    """Returns the specification of a prepared engine (`engine.prepare()` was called)."""

    async def is_ready(pid: int) -> bool:
        return engine.is_ready(pid)

    return ProcessSpec(
        name=engine.name,
        argv=engine.command(),
        environment=engine.environment(),
        folder=engine.folder,
        log_file=log_file,
        user=engine.user,
        ready=is_ready,
        stop_signal=engine.stop_signal,
        stop_timeout_seconds=30.0,
        death_signal=engine.stop_signal,
    )


def http_ready(url: str) -> ReadyProbe:
    """Returns a probe that is satisfied by an answer of 200 to 299 from `url` (plain HTTP)."""
    parts = urlsplit(url)
    host, port, target = parts.hostname or "127.0.0.1", parts.port or 80, parts.path or "/"
    request = f"GET {target} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()

    async def is_ready(_pid: int) -> bool:
        try:
            async with asyncio.timeout(_HTTP_TIMEOUT_SECONDS):
                return await _answers_well(host, port, request)
        except (OSError, TimeoutError):
            return False

    return is_ready


async def _answers_well(host: str, port: int, request: bytes) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        status_line = await reader.readline()
        return len(parts := status_line.split()) >= 2 and parts[1].startswith(b"2")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
