"""Limits that the kernel enforces by the task's cgroup."""

import asyncio
import os

import pytest

from millpond_node_agent.runtimes.process import ProcessRuntime, ProcessSettings
from millpond_node_agent.runtimes.protocol import TaskState
from tests.integration.agent_runtime.task_runs import MakeSpec, launch, log_text, run_to_end, wait_until_over

pytestmark = pytest.mark.integration

# `tail` keeps a line until it ends, and /dev/zero has no line end.
_HOG = "tail /dev/zero"


@pytest.fixture(autouse=True)
def _limited(runtime: ProcessRuntime) -> None:
    if runtime.report().limits == "none":
        pytest.skip("no writable cgroup on this machine")


async def test_memory_when_a_task_passes_its_limit_then_it_ends_as_out_of_memory(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    status, _ = await run_to_end(runtime, make_spec(f"exec {_HOG}", memory_mib=32))

    assert (status.state, status.signal, status.oom_killed) == (TaskState.EXITED, 9, True)
    peak = (await runtime.collect(make_spec().allocation_id)).peak_memory_mib
    assert peak is not None
    assert 28 <= peak <= 32


async def test_memory_when_only_a_child_passes_it_and_the_task_succeeds_then_it_is_no_memory_end(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    status, _ = await run_to_end(runtime, make_spec(f"{_HOG}; exit 0", memory_mib=32))

    assert (status.exit_code, status.oom_killed) == (0, False)


async def test_memory_when_a_task_kills_itself_then_it_is_no_memory_end(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    status, _ = await run_to_end(runtime, make_spec("sh -c 'kill -9 $$'; exit 137"))

    assert (status.exit_code, status.oom_killed) == (137, False)


async def test_cpu_when_a_task_burns_then_it_gets_its_share_only(runtime: ProcessRuntime, make_spec: MakeSpec) -> None:
    spec = make_spec("while :; do :; done", cpu_milli=200)
    await launch(runtime, spec)
    await asyncio.sleep(1.0)
    status = await runtime.stop(spec.allocation_id, 0)
    used = (await runtime.collect(spec.allocation_id)).cpu_ms

    assert status.active_monotonic_ms is not None
    assert status.empty_monotonic_ms is not None
    assert used is not None
    # One period of 100 ms may start with a full quota beside the share.
    assert used <= 0.2 * (status.empty_monotonic_ms - status.active_monotonic_ms) + 60


async def test_processes_when_a_task_forks_without_end_then_forking_fails_and_a_stop_empties_it(
    settings: ProcessSettings, make_spec: MakeSpec
) -> None:
    runtime = ProcessRuntime(ProcessSettings(settings.state_dir, settings.work_dir, pids_limit=20))
    spec = make_spec("i=0; while [ $i -lt 40 ]; do sleep 300 & i=$((i+1)); done; wait")
    await launch(runtime, spec)
    status = await wait_until_over(runtime, spec.allocation_id)

    assert status.exit_code == 2, "the shell gives up at the first fork that fails"
    assert "fork" in await log_text(runtime, spec.allocation_id)
    assert not os.path.exists(f"/proc/{status.pid}")
