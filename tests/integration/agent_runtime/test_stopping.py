"""Ends from outside: asked for, by time, by the lease, and with the supervisor dead."""

import asyncio
import json
import signal
import time
from pathlib import Path

import pytest

from millpond_node_agent.runtimes.boottime import monotonic_ms
from millpond_node_agent.runtimes.cgroups import CgroupHost
from millpond_node_agent.runtimes.process import ProcessRuntime, ProcessSettings
from millpond_node_agent.runtimes.protocol import GroupNotEmpty, StopReason, TaskState
from tests.integration.agent_runtime.task_runs import (
    MakeSpec,
    is_running,
    kill_hard,
    launch,
    log_text,
    wait_for_text,
    wait_until_over,
)

pytestmark = pytest.mark.integration

_STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
# Prints the pid of a process in a session of its own, whose parent is gone.
_DAEMON = "(setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' >/dev/null 2>&1 & echo $!); echo ready; "


def launcher_pid(settings: ProcessSettings, allocation_id: str) -> int:
    document = json.loads((settings.state_dir / "runs" / allocation_id / "launcher.json").read_text())
    return int(document["pid"])


async def test_stop_when_the_task_obeys_then_its_own_exit_code_counts(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    spec = make_spec("trap 'echo saved; exit 42' TERM; echo ready; while :; do sleep 0.05; done")
    await launch(runtime, spec)
    await wait_for_text(runtime, spec.allocation_id, "ready")
    status = await runtime.stop(spec.allocation_id, 5)

    assert (status.state, status.exit_code) == (TaskState.EXITED, 42)
    assert status.stop_reason is StopReason.REQUESTED
    assert "saved" in await log_text(runtime, spec.allocation_id)


async def test_stop_when_the_task_ignores_it_then_it_is_killed_after_the_grace(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    spec = make_spec(_STUBBORN)
    await launch(runtime, spec)
    await wait_for_text(runtime, spec.allocation_id, "ready")
    before = time.monotonic()
    status = await runtime.stop(spec.allocation_id, 0.4)

    assert status.signal == signal.SIGKILL
    assert 0.4 <= time.monotonic() - before < 3


async def test_stop_when_repeated_with_less_grace_then_the_shorter_grace_counts(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    spec = make_spec(_STUBBORN)
    await launch(runtime, spec)
    await wait_for_text(runtime, spec.allocation_id, "ready")
    patient = asyncio.create_task(runtime.stop(spec.allocation_id, 60))
    await asyncio.sleep(0.1)
    await runtime.stop(spec.allocation_id, 0)

    assert (await patient).signal == signal.SIGKILL


async def test_stop_when_children_made_themselves_daemons_then_they_are_gone_too(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    spec = make_spec(_DAEMON + "sleep 300")
    await launch(runtime, spec)
    daemon = int((await wait_for_text(runtime, spec.allocation_id, "ready")).split()[0])
    assert is_running(daemon)
    await runtime.stop(spec.allocation_id, 0.2)

    assert not is_running(daemon)


async def test_stop_when_the_shell_dies_first_then_its_child_keeps_the_grace(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    child = "trap 'sleep 0.3; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    spec = make_spec(f'sh -c "{child}"; echo never')
    await launch(runtime, spec)
    await wait_for_text(runtime, spec.allocation_id, "ready")
    await runtime.stop(spec.allocation_id, 5)

    assert "saved" in await log_text(runtime, spec.allocation_id)


async def test_stop_when_nothing_was_started_then_nothing_can_start_later(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    spec = make_spec("echo started")
    await runtime.prepare(spec)
    stopped = await runtime.stop(spec.allocation_id, 0)
    started = await runtime.start(spec)

    assert (stopped.state, stopped.active_monotonic_ms) == (TaskState.EXITED, None)
    assert started == stopped
    assert await log_text(runtime, spec.allocation_id) == ""


async def test_stop_when_the_launcher_was_killed_then_the_run_is_unknown_and_the_group_still_gets_empty(
    runtime: ProcessRuntime, settings: ProcessSettings, make_spec: MakeSpec
) -> None:
    spec = make_spec(_DAEMON + "trap '' TERM; while :; do sleep 0.1; done")
    await launch(runtime, spec)
    daemon = int((await wait_for_text(runtime, spec.allocation_id, "ready")).split()[0])
    kill_hard(launcher_pid(settings, spec.allocation_id))

    lost = await runtime.status(spec.allocation_id)
    assert lost.state is TaskState.UNKNOWN
    assert lost.pid is not None
    with pytest.raises(GroupNotEmpty):
        await runtime.remove(spec.allocation_id)
    stopped = await runtime.stop(spec.allocation_id, 0.1)

    assert (stopped.state, stopped.exit_code, stopped.signal) == (TaskState.EXITED, None, None)
    assert stopped.message is not None
    assert stopped.active_monotonic_ms == lost.active_monotonic_ms
    assert not is_running(daemon)
    assert not is_running(lost.pid)


async def test_stop_when_there_are_no_cgroups_then_daemons_are_found_all_the_same(
    place: Path, make_spec: MakeSpec
) -> None:
    settings = ProcessSettings(place / "state", place / "work", cgroups=CgroupHost(0, {}, ("none",)))
    runtime = ProcessRuntime(settings)
    spec = make_spec(_DAEMON + "sleep 300")
    await launch(runtime, spec)
    daemon = int((await wait_for_text(runtime, spec.allocation_id, "ready")).split()[0])
    kill_hard(launcher_pid(settings, spec.allocation_id))
    await runtime.stop(spec.allocation_id, 0.1)

    assert not is_running(daemon)
    assert runtime.report().limits == "none"


async def test_signal_when_sent_then_only_the_main_process_gets_it(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    spec = make_spec("sleep 300 & trap 'echo asked' USR1; echo ready; while :; do wait; done")
    await launch(runtime, spec)
    await wait_for_text(runtime, spec.allocation_id, "ready")

    assert await runtime.signal(spec.allocation_id, signal.SIGUSR1)
    await wait_for_text(runtime, spec.allocation_id, "asked")
    assert (await runtime.status(spec.allocation_id)).state is TaskState.RUNNING


async def test_time_limit_when_reached_then_the_task_is_stopped_and_the_reason_kept(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    spec = make_spec("sleep 300", time_limit=1)
    await launch(runtime, spec)
    status = await wait_until_over(runtime, spec.allocation_id)

    assert status.stop_reason is StopReason.TIME_LIMIT
    assert status.active_monotonic_ms is not None
    assert status.ended_monotonic_ms is not None
    assert status.ended_monotonic_ms - status.active_monotonic_ms >= 1000


async def test_lease_when_no_agent_extends_it_then_the_task_stops_by_itself(
    runtime: ProcessRuntime, make_spec: MakeSpec
) -> None:
    first = monotonic_ms() + 1500  # a busy machine needs a while to launch
    second, kill = first + 1500, first + 60_000
    await runtime.extend_lease(first, kill)
    spec = make_spec("sleep 300")
    await launch(runtime, spec)
    await runtime.extend_lease(second, kill)
    await asyncio.sleep((first - monotonic_ms()) / 1000 + 0.2)
    assert (await runtime.status(spec.allocation_id)).state is TaskState.RUNNING
    status = await wait_until_over(runtime, spec.allocation_id)

    assert status.stop_reason is StopReason.LEASE_EXPIRED
