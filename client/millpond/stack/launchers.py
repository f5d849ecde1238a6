"""The two ways in which a supervised process is started: as a program, or forked from the fork server."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from millpond.stack.errors import StackError
from millpond.stack.forkserver import TITLE_ROOM, ForkRequest
from millpond.stack.launch import launch
from millpond.stack.processes import ProcessSpec, python_command


class LaunchedProcess(Protocol):
    """A process that runs or has ended."""

    @property
    def pid(self) -> int:
        """Its process id, also that of its group."""
        ...

    @property
    def ended(self) -> asyncio.Future[int]:
        """Exit code, or minus the number of the signal that ended it; already reaped."""
        ...

    def send_signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Signals it, or its whole group; nothing happens when it has ended."""
        ...


class Launcher(Protocol):
    """Starts processes."""

    async def start(self, spec: ProcessSpec) -> LaunchedProcess:
        """Starts `spec`; raises OSError or StackError when that is impossible now."""
        ...

    async def close(self) -> None:
        """Frees what it holds; all its processes have ended."""
        ...


class Program:
    """A child of this process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int:
        """Its process id, also that of its group."""
        return self._process.pid

    @property
    def ended(self) -> asyncio.Future[int]:
        """Exit code, or minus the number of the signal that ended it."""
        return self._ended

    def send_signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Signals it, or its whole group; nothing happens when it has ended."""
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(self.pid, number)

    def reap(self) -> bool:
        """Collects its exit code if it has ended, and says so."""
        if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        # Before the pid is free for reuse: end what the process left behind in its group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._ended.set_result(self._process.wait())
        return True


class ProgramLauncher:
    """Starts programs, and learns of their end from SIGCHLD: no thread, which a fork would not copy."""

    def __init__(self) -> None:
        self._running: set[Program] = set()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    async def start(self, spec: ProcessSpec) -> Program:
        """Starts the program of `spec`."""
        return self.track(
            launch(
                spec.argv,
                environment=spec.environment,
                folder=spec.folder,
                log_file=spec.log_file,
                user=spec.user,
                death_signal=spec.death_signal,
            )
        )

    def track(self, process: subprocess.Popen[bytes]) -> Program:
        """Watches over a child that was started elsewhere."""
        program = Program(process)
        self._running.add(program)
        self._reap()
        return program

    async def close(self) -> None:
        """Stops listening to SIGCHLD."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def _reap(self) -> None:
        self._running -= {program for program in tuple(self._running) if program.reap()}


class ForkedProcess:
    """A child of the fork server."""

    def __init__(self, pid: int, launcher: "ForkLauncher") -> None:
        self._pid = pid
        self._launcher = launcher
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def pid(self) -> int:
        """Its process id, also that of its group."""
        return self._pid

    @property
    def ended(self) -> asyncio.Future[int]:
        """Exit code, or minus the number of the signal that ended it."""
        return self._ended

    def send_signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Has the fork server signal it, or its whole group."""
        if not self._ended.done():
            self._launcher.send({"op": "signal", "pid": self.pid, "signal": int(number), "group": group})


class ForkLauncher:
    """Has processes forked by the fork server, and starts that server when there is none (any more).

    Args:
        programs: Starts the server itself.
        modules: What the server imports before it forks: libraries, not the modules that will be run.
        environment: Of the server; PYTHON* variables of the forked processes are without effect.
        folder: Working folder of the server.
        log_file: Gets the server's output.
    """

    def __init__(
        self,
        programs: ProgramLauncher,
        modules: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        log_file: Path,
    ) -> None:
        self._programs = programs
        self._modules = tuple(modules)
        self._environment = environment
        self._folder = folder
        self._log_file = log_file
        self._starting = asyncio.Lock()
        self._server: Program | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._next_id = 0
        self._pending: dict[int, asyncio.Future[ForkedProcess]] = {}
        self._children: dict[int, ForkedProcess] = {}

    async def start(self, spec: ProcessSpec) -> ForkedProcess:
        """Forks `spec`; its argv is a `python_command`."""
        async with self._starting:
            if self._server is None:
                await self._start_server()
        self._next_id += 1
        request = ForkRequest(
            id=self._next_id,
            name=spec.name,
            module=spec.argv[3],
            arguments=list(spec.argv[4:]),
            environment=dict(spec.environment),
            folder=str(spec.folder),
            log_file=str(spec.log_file),
            user=(spec.user.name, spec.user.uid, spec.user.gid) if spec.user else None,
            death_signal=int(spec.death_signal),
        )
        answer: asyncio.Future[ForkedProcess] = asyncio.get_running_loop().create_future()
        self._pending[request.id] = answer
        self._write(request.to_line())
        return await answer

    def send(self, message: Mapping[str, object]) -> None:
        """Sends a message to the server; lost when there is none, and then its children are gone as well."""
        self._write(json.dumps(message).encode() + b"\n")

    async def close(self) -> None:
        """Ends the server, which kills what it still has."""
        if self._writer is not None:
            self._writer.close()
        if self._reading is not None:
            await self._reading

    @property
    def server_pid(self) -> int | None:
        """Process id of the fork server; None when it does not run."""
        return self._server.pid if self._server is not None else None

    async def _start_server(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = launch(
                python_command(
                    "millpond.stack.forkserver",
                    *("--control-fd", str(theirs.fileno()), "--preload", ",".join(self._modules)),
                    *("--title-room", "." * TITLE_ROOM),
                ),
                environment=self._environment,
                folder=self._folder,
                log_file=self._log_file,
                pass_fds=(theirs.fileno(),),
            )
        self._server = self._programs.track(process)
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._reading = asyncio.create_task(self._read(reader, self._server, self._writer))

    async def _read(self, reader: asyncio.StreamReader, server: Program, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                self._handle(json.loads(line))
        # The server is gone or going, and with it everything it forked; the next start makes a new one.
        self._server = None
        children, self._children = self._children, {}
        pending, self._pending = self._pending, {}
        server.send_signal(signal.SIGKILL)
        writer.close()
        await server.ended
        for child in children.values():
            child.ended.set_result(-signal.SIGKILL)
        for answer in pending.values():
            answer.set_exception(StackError(f"the fork server ended; see {self._log_file}"))

    def _handle(self, message: Mapping[str, int]) -> None:
        pid = message["pid"]
        if "id" in message:
            child = self._children[pid] = ForkedProcess(pid, self)
            self._pending.pop(message["id"]).set_result(child)
        else:
            self._children.pop(pid).ended.set_result(message["code"])

    def _write(self, line: bytes) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(line)
