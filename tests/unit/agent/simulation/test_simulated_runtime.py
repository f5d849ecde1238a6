"""The simulated runtime keeps the promises of the protocol, over restarts and past a lease that nobody renewed."""

from dataclasses import replace
from pathlib import Path

import pytest

from millpond_node_agent.runtimes import runfolder
from millpond_node_agent.runtimes.boottime import monotonic_ms
from millpond_node_agent.runtimes.protocol import (
    DeviceGrant,
    GroupNotEmpty,
    RefusalCode,
    RefusedTask,
    RunNotFound,
    Simulation,
    StopReason,
    TaskSpec,
    TaskState,
    TaskTerms,
)
from millpond_node_agent.simulation.runtime import SimulatedRuntime

pytestmark = pytest.mark.unit

GRANT = DeviceGrant("nvidia/SIM-a-0", "nvidia", 0, "SIM-a-0", 500, None)


def spec(seconds: float = 3600, name: str = "alloc-1", **more: float) -> TaskSpec:
    terms = TaskTerms(name, "job", "task", "tenant", 1, 7, 1000, 512, (GRANT,), stop_grace_seconds=1)
    return TaskSpec(terms, (), {}, None, None, Simulation(seconds, 0, more.get("stop_seconds", 0), {"loss": ((0, 1),)}))


async def started(runtime: SimulatedRuntime, task: TaskSpec) -> TaskSpec:
    await runtime.prepare(task)
    await runtime.start(task)
    return task


async def test_task_when_started_twice_then_once_and_removed_when_over(tmp_path: Path) -> None:
    runtime = SimulatedRuntime(tmp_path)
    task = await started(runtime, spec(0))
    first = await runtime.status("alloc-1")
    await started(runtime, task)
    assert (first.state, first.exit_code, await runtime.status("alloc-1")) == (TaskState.EXITED, 0, first)
    await runtime.remove("alloc-1")
    with pytest.raises(RunNotFound):
        await runtime.status("alloc-1")
    assert list((tmp_path / "runs").iterdir()) == []


async def test_task_when_real_then_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedTask) as refused:
        await SimulatedRuntime(tmp_path).prepare(replace(spec(), simulation=None, command=("true",)))
    assert refused.value.code is RefusalCode.NOT_SIMULATED


async def test_task_when_told_to_stop_then_ends_within_its_grace(tmp_path: Path) -> None:
    runtime = SimulatedRuntime(tmp_path)
    await started(runtime, spec(stop_seconds=60))
    with pytest.raises(GroupNotEmpty):
        await runtime.remove("alloc-1")
    status = await runtime.stop("alloc-1", 0.05)
    assert (status.state, status.signal, status.stop_reason) == (TaskState.EXITED, 9, StopReason.REQUESTED)
    assert await runtime.stop("alloc-1", 0) == status


async def test_task_when_another_process_takes_over_then_it_is_where_it_was(tmp_path: Path) -> None:
    former = SimulatedRuntime(tmp_path)
    await started(former, spec())
    await started(former, spec(0, "alloc-0"))
    before = await former.status("alloc-1")
    latter = SimulatedRuntime(tmp_path)
    assert await latter.status("alloc-1") == before
    assert {run.terms for run in await latter.list_runs()} == {spec().terms, spec(0, "alloc-0").terms}
    assert latter.running()[0].simulation == spec().simulation


async def test_task_when_the_machine_was_restarted_then_nothing_of_it_is_left(tmp_path: Path) -> None:
    await started(SimulatedRuntime(tmp_path), spec())
    path = next((tmp_path / "runs").iterdir())
    document = runfolder.read_document(str(path))
    assert document is not None
    runfolder.write_document(str(path), {**document, "run": {**document["run"], "boot_id": "another"}})
    assert await SimulatedRuntime(tmp_path).list_runs() == []


async def test_task_when_nobody_renewed_the_lease_then_it_ended_at_the_fence(tmp_path: Path) -> None:
    runtime = SimulatedRuntime(tmp_path)
    await started(runtime, spec())
    fence = monotonic_ms() + 1
    await runtime.extend_lease(fence, fence + 100)
    while monotonic_ms() <= fence:
        pass
    # The process was dead meanwhile: the next one reads the fence before anything else.
    status = await SimulatedRuntime(tmp_path).status("alloc-1")
    assert (status.state, status.stop_reason, status.ended_monotonic_ms) == (
        TaskState.EXITED,
        StopReason.LEASE_EXPIRED,
        fence,
    )


async def test_log_when_read_in_pieces_then_whole(tmp_path: Path) -> None:
    runtime = SimulatedRuntime(tmp_path)
    await started(runtime, spec(0))
    whole = (await runtime.read_log("alloc-1", 0, 10_000)).data
    first = await runtime.read_log("alloc-1", 0, 7)
    rest = await runtime.read_log("alloc-1", first.next_offset, 10_000)
    assert first.data + rest.data == whole
    assert (await runtime.collect("alloc-1")).log_bytes == len(whole)
