"""A whole Millpond stack as a child of a test: its own folder and port, its processes by name, and proof that it ends.

The stack is started by the command that a person types, `millpond up`, and found by its status file. Only processes
that this file names are ever signalled.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from millpond.stack.engines import is_running, read_tail
from millpond.stack.launch import launch
from millpond.stack.paths import StackPaths, locate_stack
from millpond.stack.ports import HeldPorts
from millpond.stack.processes import ProcessState, python_command
from millpond.stack.status import ProcessStatus, read_status
from millpond.stack.users import find_stack_user

READY_LINE = "Millpond is ready"
_COMMAND_LINE = (str(Path(sys.executable).with_name("millpond")),)
_POLL_SECONDS = 0.05


class StackFailed(AssertionError):
    """The stack did not do what it was started for; the message carries the end of its logs."""


@dataclass(slots=True)
class Stack:
    """One stack of a test. `base` also holds the profile of the command line and the witnesses of the tasks."""

    base: Path
    port: int
    split: bool
    more_arguments: tuple[str, ...] = ()
    folder_name: str = "stack"
    _ports: HeldPorts = field(default_factory=HeldPorts)
    _process: subprocess.Popen[bytes] | None = None
    _agent: subprocess.Popen[bytes] | None = None

    @classmethod
    def make(cls, *, split: bool) -> Self:
        """A stack in a new folder, not started. The folder can be entered by the users that root's children become."""
        base = Path(tempfile.mkdtemp(prefix="millpond-system-"))
        base.chmod(0o711)
        witnesses = base / "witnesses"
        witnesses.mkdir()
        witnesses.chmod(0o1777)
        ports = HeldPorts()
        return cls(base, ports.take(), split, _ports=ports)

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def paths(self) -> StackPaths:
        """Where the stack lies."""
        return locate_stack(data_folder=self.base / self.folder_name, user=find_stack_user())

    @property
    def witnesses(self) -> Path:
        """A folder in which any task may leave a file."""
        return self.base / "witnesses"

    @property
    def output(self) -> str:
        """What `millpond up` printed so far."""
        return (self.base / "up.log").read_text(encoding="utf-8", errors="replace")

    @property
    def operator_key(self) -> str:
        """The first operator's key."""
        return (self.paths.secrets / "operator.key").read_text(encoding="utf-8").strip()

    @property
    def owner_url(self) -> str:
        """The database as its owner sees it."""
        return self.secrets["MILLPOND_OWNER_DATABASE_URL"]

    @property
    def redis_url(self) -> str:
        """The stack's Valkey."""
        return self.secrets["MILLPOND_REDIS_URL"]

    @property
    def secrets(self) -> dict[str, str]:
        """The environment that the stack keeps for commands beside it."""
        found: dict[str, str] = json.loads((self.paths.secrets / "environment.json").read_text(encoding="utf-8"))
        return found

    @property
    def agent_folder(self) -> Path:
        """State of this machine's agent: its journal lies in `spool/`."""
        return self.paths.folder / "agent"

    def command(self, *arguments: str, timeout_seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Runs one command of the command line to its end, in the stack's own environment."""
        return subprocess.run(
            [*_COMMAND_LINE, *arguments],
            env=self._environment(),
            cwd=self.base,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_seconds,
        )

    def up_arguments(self, *, join: bool = True) -> tuple[str, ...]:
        """The arguments with which this stack is started."""
        chosen = (("--split",) if self.split else ()) + (() if join else ("--no-node",))
        where = ("--data-dir", str(self.paths.folder), "--port", str(self.port))
        return ("up", *where, "--stop-tasks", *chosen, *self.more_arguments)

    def start_command(self, *, join: bool = True) -> tuple[str, ...]:
        """What starts it."""
        return (*_COMMAND_LINE, *self.up_arguments(join=join))

    def start(self, timeout_seconds: float = 90.0, *, join: bool = True) -> None:
        """Starts it, with this machine as a node unless told otherwise, and returns when it says that it is ready."""
        log = self.base / "up.log"
        log.unlink(missing_ok=True)
        self._process = launch(
            self.start_command(join=join),
            environment=self._environment(),
            folder=self.base,
            log_file=log,
            death_signal=signal.SIGTERM,
        )
        deadline = time.monotonic() + timeout_seconds
        while READY_LINE not in self.output:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise StackFailed(f"`millpond up` is not ready:\n{self.describe()}")
            time.sleep(_POLL_SECONDS)

    def start_agent(self, token: str) -> int:
        """Starts an agent of the test's own on this machine, as on a second one; its process id."""
        self.agent_folder.mkdir(mode=0o700, exist_ok=True)
        work = self.base / "agent-tasks"
        work.mkdir(exist_ok=True)
        work.chmod(0o711)
        where = ("--url", self.url, "--state-dir", str(self.agent_folder), "--work-dir", str(work), "--stop-tasks")
        self._agent = launch(
            python_command("millpond_node_agent.main", "run", *where),
            environment=self._environment() | {"MILLPOND_JOIN_TOKEN": token},
            folder=self.base,
            log_file=self.paths.logs / "agent.log",
            death_signal=signal.SIGTERM,
        )
        return self._agent.pid

    def stop(self, timeout_seconds: float = 60.0) -> int:
        """Ends it as Ctrl-C does; its exit code. Nothing of it runs afterwards."""
        if self._agent is not None:
            self._agent.send_signal(signal.SIGTERM)
            self._agent.wait(timeout_seconds)
            self._agent = None
        if self._process is None:
            return 0
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            return process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise StackFailed(f"`millpond up` did not stop:\n{self.describe()}") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def wait_for_end(self, timeout_seconds: float = 60.0) -> int:
        """Waits until something else has stopped it; its exit code."""
        assert self._process is not None
        code = self._process.wait(timeout_seconds)
        self._process = None
        return code

    def close(self) -> None:
        """Stops it, makes sure that nothing is left, and removes the folder unless MILLPOND_TEST_KEEP is set."""
        try:
            self.stop()
        finally:
            left = self.left_over()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                    os.kill(pid, signal.SIGKILL)
            self._ports.release()
            if not os.environ.get("MILLPOND_TEST_KEEP"):
                shutil.rmtree(self.base, ignore_errors=True)
        assert not left, f"left running: {left}"

    def left_over(self) -> dict[int, str]:
        """Processes that run and work in this stack's folders, with their command lines: all of its own do."""
        found: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if (entry / "cwd").readlink().is_relative_to(self.base):
                        found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue  # gone meanwhile, a kernel thread, or another user's
        return {pid: what for pid, what in found.items() if is_running(pid)}

    def processes(self) -> Mapping[str, ProcessStatus]:
        """The supervised processes by name."""
        status = read_status(self.paths.status_file)
        assert status is not None
        return {process.name: process for process in status.processes}

    def pid(self, name: str) -> int:
        """The process id of a process that runs."""
        process = self.processes()[name]
        assert process.pid is not None, f"{name} is {process.state}"
        return process.pid

    def signal(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Signals a process by name and returns the id that it had."""
        pid = self.pid(name)
        os.kill(pid, number)
        return pid

    async def wait_until_back(self, name: str, old_pid: int, timeout_seconds: float = 10.0) -> float:
        """Waits until a process that was killed is ready again as another one; how long it took."""
        began = time.monotonic()
        while True:
            process = self.processes()[name]
            if process.state is ProcessState.READY and process.pid not in (None, old_pid):
                return time.monotonic() - began
            if time.monotonic() - began > timeout_seconds:
                raise StackFailed(f"{name} is {process.state} after {timeout_seconds:.0f} s:\n{self.describe()}")
            await asyncio.sleep(_POLL_SECONDS)

    def describe(self) -> str:
        """What it printed, and the end of every log."""
        logs = sorted(self.paths.logs.glob("*.log")) if self.paths.logs.is_dir() else []
        tails = "\n".join(f"-- {log.name}\n{read_tail(log)}" for log in logs)
        return f"{self.output}\n{tails}"

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.base),
            "XDG_CONFIG_HOME": str(self.base / "config"),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "200",
        }
