"""Keeps a list of processes running until it is told to stop, and leaves nothing behind."""

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from millpond.stack.engines import read_tail
from millpond.stack.errors import StackError
from millpond.stack.launchers import ForkLauncher, Launcher, ProgramLauncher
from millpond.stack.processes import ProcessSpec, ProcessState
from millpond.stack.status import StackStatus, write_status
from millpond.stack.supervised import SupervisedProcess

# More than any process here opens. A container's limit can be 10^9, over which some libraries loop.
_MOST_OPEN_FILES = 262_144
_HOPELESS_EXITS = 5


class ProcessFailed(StackError):
    """A process of the stack did not get ready; the message carries the end of its log."""


class Supervisor:
    """Starts processes in the order of their needs, restarts what dies, stops in the reverse order.

    Made and used in the main thread, inside a running event loop. Typical use:

        supervisor = Supervisor(status_file=paths.status_file)
        with StackLock(paths.lock_file):
            await supervisor.run(specs, on_ready=announce)

    Args:
        status_file: Rewritten at every change; None = none is kept.
        fork: Makes the launcher of preloaded processes; None = they are started as programs.
    """

    def __init__(
        self,
        *,
        status_file: Path | None = None,
        fork: Callable[[ProgramLauncher], ForkLauncher] | None = None,
    ) -> None:
        self._status_file = status_file
        self._programs = ProgramLauncher()
        self._forks = fork(self._programs) if fork is not None else None
        self._processes: dict[str, SupervisedProcess] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._started_at = datetime.now(UTC)
        self._booted_seconds = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._stop_wanted = asyncio.Event()
        self._write_due = False

    @property
    def status(self) -> StackStatus:
        """All processes as they stand."""
        return StackStatus(
            supervisor_pid=os.getpid(),
            started_at=self._started_at,
            booted_seconds=self._booted_seconds,
            processes=tuple(process.status for process in self._processes.values()),
        )

    async def run(
        self,
        specs: Sequence[ProcessSpec],
        *,
        on_ready: Callable[[], Awaitable[None]] | None = None,
        ready_timeout_seconds: float = 120.0,
    ) -> None:
        """Runs `specs` until SIGINT, SIGTERM, SIGHUP or `request_stop`; then stops all. A second signal kills.

        Args:
            specs: The processes.
            on_ready: Awaited once when all are ready; may `add` more.
            ready_timeout_seconds: How long all together may take to be ready.

        Raises:
            ProcessFailed: one did not get ready; everything is stopped by then.
        """
        raise_open_files_limit()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self.request_stop)
        try:
            self.add(specs)
            await self._until_stop_wanted(self._become_ready(on_ready, ready_timeout_seconds))
            await self._stop_wanted.wait()
        finally:
            self._stop_wanted.set()
            await self.stop()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def add(self, specs: Iterable[ProcessSpec]) -> None:
        """Starts more processes, each as soon as what it needs is ready; returns at once.

        Raises:
            StackError: a name is taken or a need unknown, or the needs form a circle.
        """
        new = {spec.name: spec for spec in self._in_order(list(specs))}
        for spec in new.values():
            launcher = self._choose_launcher(spec)
            self._processes[spec.name] = SupervisedProcess(spec, launcher, self._note_change)
        for name, spec in new.items():
            needed = [self._processes[need] for need in spec.needs]
            task = asyncio.create_task(self._processes[name].keep_running(needed), name=name)
            task.add_done_callback(self._stop_on_error)
            self._tasks.append(task)
        self._note_change()

    async def wait_ready(self, timeout_seconds: float = 120.0) -> None:
        """Returns when every process was ready once.

        Raises:
            ProcessFailed: a step failed, a process ended five times before it was ever ready, or time is up.
        """
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        while pending := [process for process in self._processes.values() if not process.ready.is_set()]:
            for process in pending:
                if process.state is ProcessState.FAILED or process.early_exits >= _HOPELESS_EXITS:
                    raise self._failure(process, "keeps failing" if process.early_exits else "failed")
            if asyncio.get_running_loop().time() > deadline:
                raise self._failure(pending[0], f"was not ready within {timeout_seconds:.0f} s")
            await asyncio.sleep(0.02)

    def request_stop(self) -> None:
        """Makes `run` stop everything; called again, it cuts the time processes have to end cleanly."""
        if self._stop_wanted.is_set():
            for process in self._processes.values():
                process.hurry()
        self._stop_wanted.set()

    async def stop(self) -> None:
        """Stops all processes, those that others need last, and returns when none runs."""
        stops = [process.stop(self._find_dependents(name)) for name, process in self._processes.items()]
        await asyncio.gather(*stops)
        if self._forks is not None:
            await self._forks.close()
        await self._programs.close()
        self._write_status()
        await asyncio.gather(*self._tasks)

    async def _become_ready(self, on_ready: Callable[[], Awaitable[None]] | None, timeout_seconds: float) -> None:
        await self.wait_ready(timeout_seconds)
        if on_ready is not None:
            await on_ready()

    async def _until_stop_wanted(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        stop = asyncio.create_task(self._stop_wanted.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def _stop_on_error(self, task: asyncio.Task[None]) -> None:
        """Brings a mistake of this code to light: `stop` raises it."""
        if not task.cancelled() and task.exception() is not None:
            self._stop_wanted.set()

    def _in_order(self, specs: list[ProcessSpec]) -> list[ProcessSpec]:
        by_name = {spec.name: spec for spec in specs}
        taken = [spec.name for spec in specs if spec.name in self._processes or spec is not by_name[spec.name]]
        known = by_name.keys() | self._processes.keys()
        unknown = sorted({need for spec in specs for need in spec.needs} - known)
        if taken or unknown:
            raise StackError(f"process names taken twice: {taken}; needed but unknown: {unknown}")
        try:
            order = tuple(TopologicalSorter({spec.name: spec.needs for spec in specs}).static_order())
        except CycleError as error:
            raise StackError(f"processes need one another in a circle: {error.args[1]}") from error
        return [by_name[name] for name in order if name in by_name]

    def _choose_launcher(self, spec: ProcessSpec) -> Launcher:
        return self._forks if spec.preloaded and self._forks is not None else self._programs

    def _find_dependents(self, name: str) -> list[SupervisedProcess]:
        return [process for process in self._processes.values() if name in process.spec.needs]

    def _failure(self, process: SupervisedProcess, what: str) -> ProcessFailed:
        spec, status = process.spec, process.status
        return ProcessFailed(
            f"{spec.name} {what} (state {status.state}, last exit {status.last_exit}). "
            f"The end of {spec.log_file}:\n{read_tail(spec.log_file)}"
        )

    def _note_change(self) -> None:
        if not self._write_due:
            self._write_due = True
            asyncio.get_running_loop().call_soon(self._write_status)

    def _write_status(self) -> None:
        self._write_due = False
        if self._status_file is not None:
            write_status(self.status, self._status_file)


def raise_open_files_limit() -> None:
    """Lets this process and its children open as many files as the system allows it to ask for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
