"""The runtime of a simulated node: tasks that take time and devices, and no processor.

A task is one small document in the node's folder, so that a process that starts again finds its tasks where they are.
"""

import asyncio
from dataclasses import asdict, replace
from pathlib import Path

from millpond_node_agent.runtimes import runfolder
from millpond_node_agent.runtimes.boottime import boot_id, monotonic_ms
from millpond_node_agent.runtimes.protocol import (
    Collected,
    GroupNotEmpty,
    LogChunk,
    RefusalCode,
    RefusedTask,
    Run,
    RunNotFound,
    RuntimeReport,
    Simulation,
    StopReason,
    TaskSpec,
    TaskState,
    TaskStatus,
)
from millpond_node_agent.runtimes.records import parse_run, run_document
from millpond_node_agent.runtimes.runfolder import Document
from millpond_node_agent.simulation.acting import Act, Stop, end_of, is_running, status_at, text_at

_FENCE = "fence.json"
# Hundreds of nodes renew their leases in one process, and each replaced file costs milliseconds: a fence that is far
# away is written when it moved by so much. An older fence is an earlier one, which is safe.
_STEP_MS = 30_000
_NEAR_MS = 60_000


class SimulatedRuntime:
    """Acts tasks out; see `protocol.Runtime` for what each operation promises."""

    def __init__(self, folder: Path) -> None:
        """Take up the tasks of this boot that an earlier process left in `folder` (made when missing)."""
        self._folder = folder
        self._acts: dict[str, Act] = {}
        self._fence: tuple[int, int] | None = None
        self._written_ms = 0
        (folder / "runs").mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in sorted((folder / "runs").glob("*.json")):
            self._take_up(path)
        fence = runfolder.read_document(str(folder / _FENCE))
        if fence is not None and fence["boot_id"] == boot_id():
            self._fence = fence["deadline_monotonic_ms"], fence["kill_monotonic_ms"]
        self._obey_fence()

    def report(self) -> RuntimeReport:
        return RuntimeReport("simulated", "user", "none", ())

    async def prepare(self, spec: TaskSpec) -> None:
        if spec.simulation is None:
            raise RefusedTask(
                RefusalCode.NOT_SIMULATED, "this node is simulated, and the task does not say how it goes"
            )
        if spec.allocation_id not in self._acts:
            self._keep(Act(spec.terms, spec.simulation, spec.time_limit_seconds, boot_id()))

    async def start(self, spec: TaskSpec) -> TaskStatus:
        act = self._load(spec.allocation_id)
        if act.started_ms is None and act.stop is None:
            act = self._keep(replace(act, started_ms=monotonic_ms()))
        return status_at(act, monotonic_ms())

    async def status(self, allocation_id: str) -> TaskStatus:
        return status_at(self._load(allocation_id), monotonic_ms())

    def watch(self, allocation_id: str, status: TaskStatus, event: asyncio.Event) -> "TimedEnd | None":
        end = end_of(self._load(allocation_id))
        return None if end is None else TimedEnd(end.at_ms, event)

    async def signal(self, allocation_id: str, number: int) -> bool:
        return is_running(self._load(allocation_id), monotonic_ms())

    async def stop(self, allocation_id: str, grace_seconds: float) -> TaskStatus:
        now = monotonic_ms()
        kill_ms = now + int(grace_seconds * 1000)
        self._stop(self._load(allocation_id), Stop(now, kill_ms, StopReason.REQUESTED))
        while (status := status_at(self._load(allocation_id), monotonic_ms())).state is not TaskState.EXITED:
            end = end_of(self._load(allocation_id))
            assert end is not None
            await asyncio.sleep(max(0.001, (end.at_ms - monotonic_ms()) / 1000))
        return status

    async def collect(self, allocation_id: str) -> Collected:
        act, now = self._load(allocation_id), monotonic_ms()
        return Collected(status_at(act, now), None, None, len(text_at(act, now)), 0)

    async def read_log(self, allocation_id: str, offset: int, limit: int) -> LogChunk:
        text = text_at(self._load(allocation_id), monotonic_ms())
        return LogChunk(offset, text[offset : offset + limit], cut=False)

    async def remove(self, allocation_id: str) -> None:
        if (await self.status(allocation_id)).state not in (TaskState.EXITED, TaskState.PREPARED):
            raise GroupNotEmpty(f"{allocation_id} has not ended")
        del self._acts[allocation_id]
        self._path(allocation_id).unlink(missing_ok=True)

    async def list_runs(self) -> list[Run]:
        now = monotonic_ms()
        acts = sorted(self._acts.values(), key=lambda act: act.started_ms or now)
        return [Run(act.terms, status_at(act, now)) for act in acts]

    async def extend_lease(self, deadline_monotonic_ms: int, kill_monotonic_ms: int) -> None:
        self._obey_fence()
        self._fence = deadline_monotonic_ms, kill_monotonic_ms
        now = monotonic_ms()
        is_near = self._written_ms - now < _NEAR_MS or deadline_monotonic_ms - now < _NEAR_MS
        if not is_near and deadline_monotonic_ms - self._written_ms < _STEP_MS:
            return
        self._written_ms = deadline_monotonic_ms
        document = {
            "boot_id": boot_id(),
            "deadline_monotonic_ms": deadline_monotonic_ms,
            "kill_monotonic_ms": kill_monotonic_ms,
        }
        runfolder.write_document(str(self._folder / _FENCE), document)

    def running(self) -> list[Act]:
        """The tasks that use the node now."""
        now = monotonic_ms()
        return [act for act in self._acts.values() if is_running(act, now)]

    def _obey_fence(self) -> None:
        """Ends what ran past a lease that nobody renewed in time."""
        if self._fence is None or monotonic_ms() < self._fence[0]:
            return
        deadline_ms, kill_ms = self._fence
        for act in list(self._acts.values()):
            self._stop(act, Stop(deadline_ms, kill_ms, StopReason.LEASE_EXPIRED))

    def _stop(self, act: Act, stop: Stop) -> None:
        """The first order's instant and reason stay; a later one can only bring the kill forward."""
        end = end_of(act)
        if end is not None and end.at_ms <= stop.at_ms:
            return
        if act.stop is not None:
            stop = replace(act.stop, kill_ms=min(act.stop.kill_ms, stop.kill_ms))
        if stop != act.stop:
            self._keep(replace(act, stop=stop))

    def _load(self, allocation_id: str) -> Act:
        act = self._acts.get(allocation_id)
        if act is None:
            raise RunNotFound(allocation_id)
        return act

    def _keep(self, act: Act) -> Act:
        self._acts[act.terms.allocation_id] = act
        document = {
            "run": run_document(act.terms, {}, 0),
            "simulation": asdict(act.simulation),
            "time_limit_seconds": act.time_limit_seconds,
            "started_ms": act.started_ms,
            "stop": None if act.stop is None else asdict(act.stop),
        }
        runfolder.write_document(str(self._path(act.terms.allocation_id)), document)
        return act

    def _take_up(self, path: Path) -> None:
        document = runfolder.read_document(str(path))
        if document is None or document["run"]["boot_id"] != boot_id():
            path.unlink()  # its machine was restarted, and the scheduler learns that from the new boot
            return
        act = _parse(document)
        self._acts[act.terms.allocation_id] = act

    def _path(self, allocation_id: str) -> Path:
        return self._folder / "runs" / f"{allocation_id}.json"


class TimedEnd:
    """Sets an event at an instant of the machine's clock."""

    def __init__(self, at_ms: int, event: asyncio.Event) -> None:
        self.has_ended = False
        self._event = event
        self._at_ms = at_ms
        self._timer = self._arm()

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _arm(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(max(0.0, (self._at_ms - monotonic_ms()) / 1000), self._ring)

    def _ring(self) -> None:
        # The loop's clock and the machine's may differ by the last millisecond.
        if monotonic_ms() < self._at_ms:
            self._timer = self._arm()
            return
        self.has_ended = True
        self._event.set()


def _parse(document: Document) -> Act:
    boot, stop = document["run"]["boot_id"], document["stop"]
    signals = {
        name: tuple((at, value) for at, value in curve) for name, curve in document["simulation"]["signals"].items()
    }
    return Act(
        terms=parse_run(document["run"], TaskStatus(TaskState.PREPARED, boot)).terms,
        simulation=Simulation(**document["simulation"] | {"signals": signals}),
        time_limit_seconds=document["time_limit_seconds"],
        boot_id=boot,
        started_ms=document["started_ms"],
        stop=None if stop is None else Stop(**stop | {"reason": StopReason(stop["reason"])}),
    )
