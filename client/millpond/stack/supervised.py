"""One process under supervision: from waiting for what it needs to its end, with restarts between."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from millpond.stack.errors import StackError
from millpond.stack.launchers import LaunchedProcess, Launcher
from millpond.stack.processes import TRANSITIONS, ProcessSpec, ProcessState, RestartPolicy
from millpond.stack.status import ProcessStatus

_PROBE_SECONDS = 0.05
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
# A process that lived this long has earned a fresh start of the pauses.
_STEADY_SECONDS = 10.0


class SupervisedProcess:
    """Runs one specification.

    Attributes:
        spec: What is run.
        ready: Set when it is ready for the first time (a step: when it ended with 0).
        stopped: Set when it does not run and will not run again.
        early_exits: How often it ended before it was ever ready.
    """

    def __init__(self, spec: ProcessSpec, launcher: Launcher, on_change: Callable[[], None]) -> None:
        self.spec = spec
        self.ready = asyncio.Event()
        self.stopped = asyncio.Event()
        self.early_exits = 0
        self._launcher = launcher
        self._on_change = on_change
        self._state = ProcessState.WAITING
        self._since = datetime.now(UTC)
        self._starts = 0
        self._last_exit: int | None = None
        self._process: LaunchedProcess | None = None
        self._stop_wanted = asyncio.Event()
        self._hurry = asyncio.Event()

    @property
    def state(self) -> ProcessState:
        """Where it stands."""
        return self._state

    @property
    def status(self) -> ProcessStatus:
        """What the status file says about it."""
        return ProcessStatus(
            name=self.spec.name,
            state=self._state,
            pid=self._process.pid if self._process is not None else None,
            since=self._since,
            restarts=max(0, self._starts - 1),
            last_exit=self._last_exit,
            log_file=self.spec.log_file,
        )

    async def keep_running(self, needed: list["SupervisedProcess"]) -> None:
        """Waits for what it needs, then runs it until `stop`; returns when it will not run again."""
        try:
            if await self._wait_for(needed):
                await self._run_again_and_again()
        finally:
            self.stopped.set()

    async def stop(self, dependents: list["SupervisedProcess"]) -> None:
        """Ends it after those that depend on it; returns when it has ended."""
        for dependent in dependents:
            await dependent.stopped.wait()
        self._stop_wanted.set()
        await self.stopped.wait()

    def hurry(self) -> None:
        """Cuts the time it has to end cleanly."""
        self._hurry.set()

    async def _wait_for(self, needed: list["SupervisedProcess"]) -> bool:
        for process in needed:
            if not await self._unless_stopped(process.ready.wait()):
                self._transition(ProcessState.STOPPED)
                return False
        return True

    async def _run_again_and_again(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            began = asyncio.get_running_loop().time()
            await self._run_once()
            if self._state in (ProcessState.STOPPED, ProcessState.DONE, ProcessState.FAILED):
                return
            if asyncio.get_running_loop().time() - began >= _STEADY_SECONDS:
                pause = _FIRST_PAUSE_SECONDS
            if not await self._unless_stopped(asyncio.sleep(pause)):
                self._transition(ProcessState.STOPPED)
                return
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    async def _run_once(self) -> None:
        self._starts += 1
        self._transition(ProcessState.STARTING)
        try:
            process = await self._launcher.start(self.spec)
        except (OSError, StackError) as error:
            self._note(f"cannot be started: {error}")
            self._settle(None)
            return
        self._process = process
        self._on_change()
        probing = asyncio.create_task(self._probe(process))
        if not await self._unless_stopped(asyncio.shield(process.ended)):
            await self._end(process)
        probing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await probing
        self._process = None
        self._settle(process.ended.result())

    async def _probe(self, process: LaunchedProcess) -> None:
        if self.spec.restart is RestartPolicy.ONCE:
            return
        is_ready = self.spec.ready
        while is_ready is not None:
            if await is_ready(process.pid):
                break
            await asyncio.sleep(_PROBE_SECONDS)
        if self._state is ProcessState.STARTING and not process.ended.done():
            self._transition(ProcessState.READY)
            self.ready.set()

    async def _end(self, process: LaunchedProcess) -> None:
        self._transition(ProcessState.STOPPING)
        process.send_signal(self.spec.stop_signal)
        hurry = asyncio.create_task(self._hurry.wait())
        either: set[asyncio.Future[Any]] = {process.ended, hurry}
        await asyncio.wait(either, timeout=self.spec.stop_timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not process.ended.done():
            self._note("did not end in time and is killed")
            process.send_signal(signal.SIGKILL, group=True)
        await process.ended

    def _settle(self, exit_code: int | None) -> None:
        """Concludes what the end of the process means."""
        self._last_exit = exit_code
        if self._state is ProcessState.STOPPING:
            self._transition(ProcessState.STOPPED)
        elif self.spec.restart is RestartPolicy.ONCE:
            self._transition(ProcessState.DONE if exit_code == 0 else ProcessState.FAILED)
            if exit_code == 0:
                self.ready.set()
        else:
            self.early_exits += not self.ready.is_set()
            self._transition(ProcessState.BACKING_OFF)

    def _transition(self, state: ProcessState) -> None:
        if state not in TRANSITIONS[self._state]:
            raise StackError(f"process {self.spec.name} cannot go from {self._state} to {state}")
        self._state = state
        self._since = datetime.now(UTC)
        self._on_change()

    def _note(self, text: str) -> None:
        """Adds a line of the supervisor's to the process's own log, where its end is looked for."""
        with self.spec.log_file.open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC).isoformat()} supervisor: {self.spec.name} {text}\n")

    async def _unless_stopped(self, awaitable: Awaitable[object]) -> bool:
        """Waits for `awaitable`; returns False, and gives up on it, if a stop is wanted first."""
        wanted = asyncio.ensure_future(awaitable)
        stop = asyncio.ensure_future(self._stop_wanted.wait())
        either: set[asyncio.Future[Any]] = {wanted, stop}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        wanted.cancel()
        stop.cancel()
        return not self._stop_wanted.is_set()
