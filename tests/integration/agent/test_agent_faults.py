"""The control plane goes away, sessions end, the agent is killed, the lease runs out: work and reports survive."""

import asyncio
import json
import signal
import time

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.work import ReportKind
from millpond_node_agent.agent import Agent, NotJoined
from millpond_node_agent.client import Refused
from millpond_node_agent.heartbeat import Pulse
from millpond_node_agent.identity import FolderInUse
from millpond_node_agent.settings import ExitCode
from tests.integration.agent.conftest import Bench, wait_for_exit
from tests.integration.agent_runtime.task_runs import is_running
from tests.waiting import eventually

pytestmark = pytest.mark.integration

_LIFE = [ReportKind.STARTING, ReportKind.ACTIVE, ReportKind.RELEASED]


# Identity and sessions


async def test_join_when_repeated_then_it_is_the_same_node_and_needs_no_token(bench: Bench) -> None:
    ids = []
    for changes in ({}, {"url": None, "token": None}):
        agent = Agent(bench.settings(**changes))
        ids.append((await agent.join()).node_id)
        await agent.close()

    assert ids[0] == ids[1]
    assert bench.plane.joins == 1


async def test_join_when_the_token_is_wrong_then_it_is_refused_with_the_reason(bench: Bench) -> None:
    agent = Agent(bench.settings(token="not-the-right-token"))
    with pytest.raises(Refused, match="ask an operator"):
        await agent.join()
    await agent.close()


async def test_run_when_never_joined_and_without_a_token_then_it_says_so(bench: Bench) -> None:
    agent = Agent(bench.settings(token=None))
    with pytest.raises(NotJoined, match="join token"):
        await agent.run(asyncio.Event())
    await agent.close()


async def test_agent_when_another_runs_on_its_folder_then_it_does_not_start(bench: Bench) -> None:
    async with bench.agent():
        with pytest.raises(FolderInUse):
            Agent(bench.settings())


async def test_session_when_its_token_grows_old_then_it_is_renewed_and_the_incarnation_stays(bench: Bench) -> None:
    bench.plane.token_seconds = 3.0
    async with bench.agent():
        await eventually(lambda: bench.plane.renewals >= 2)

    assert bench.plane.incarnation == 1


async def test_session_when_its_token_is_refused_then_a_new_one_is_opened_and_work_goes_on(bench: Bench) -> None:
    plane = bench.plane
    async with bench.agent():
        await eventually(lambda: plane.ready)
        plane.expire_tokens()
        allocation = plane.assign("exit 0")
        await plane.wait_for_report(allocation, ReportKind.RELEASED)
        await eventually(lambda: len(plane.inventories) >= 2)

    assert plane.incarnation == 2


async def test_w3_agent_when_its_heartbeats_alone_die_then_it_ends_and_the_next_one_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = bench.plane

    async def die(pulse: Pulse) -> None:
        raise RuntimeError("the heartbeats died")

    with monkeypatch.context() as patched:
        patched.setattr(Pulse, "beat", die)
        async with bench.agent() as running:
            with pytest.raises(RuntimeError, match="heartbeats died"):
                await asyncio.wait_for(asyncio.shield(running), 15)
    async with bench.agent():  # as whoever supervises it starts it anew
        allocation = plane.assign("exit 0")
        await plane.wait_for_report(allocation, ReportKind.RELEASED)
    assert (plane.joins, plane.incarnation >= 1) == (1, True)


async def test_agent_when_superseded_then_it_ends_and_its_tasks_are_left_to_the_lease(bench: Bench) -> None:
    plane = bench.plane
    async with bench.agent() as running:
        allocation = plane.assign("sleep 30")
        await plane.wait_for_report(allocation, ReportKind.ACTIVE)
        plane.incarnation += 1
        assert await asyncio.wait_for(running, 10) is ExitCode.SUPERSEDED
        assert is_running(json.loads((bench.runs / str(allocation) / "started.json").read_text())["pid"])

    assert plane.kinds(allocation) == _LIFE[:2]


# Outages


async def test_reports_when_the_control_plane_is_away_then_they_wait_and_arrive_in_order(bench: Bench) -> None:
    plane = bench.plane
    async with bench.agent():
        allocation = plane.assign("echo before; sleep 1; echo after; exit 7")
        await plane.wait_for_report(allocation, ReportKind.ACTIVE)
        plane.away = True
        await asyncio.sleep(1.5)
        plane.away = False
        released = await plane.wait_for_report(allocation, ReportKind.RELEASED)
        await eventually(lambda: allocation in plane.ended_logs)

    assert (released.reason, released.exit_code) == (EndReason.EXIT_CODE, 7)
    assert plane.kinds(allocation) == _LIFE
    assert plane.logs[allocation] == b"before\nafter\n"
    sequences = [report.sequence for report in plane.reports]
    assert sequences == sorted(sequences)


async def test_agent_when_the_control_plane_is_away_at_the_start_then_it_waits_and_says_so_once(bench: Bench) -> None:
    bench.plane.away = True
    bench.spawn()
    await eventually(lambda: (bench.place / "agent.log").exists() and "control_plane_away" in bench.log_text())
    await asyncio.sleep(1.5)
    bench.plane.away = False
    await eventually(lambda: bench.plane.ready)

    assert bench.log_text().count("control_plane_away") == 1


async def test_agent_when_it_starts_again_while_the_control_plane_is_away_then_it_waits(bench: Bench) -> None:
    plane = bench.plane
    async with bench.agent():
        await eventually(lambda: plane.ready)
    sessions = plane.incarnation
    plane.away = True
    async with bench.agent() as running:
        await eventually(lambda: plane.refused_away > 2)
        assert not running.done()
        plane.away = False
        await eventually(lambda: plane.incarnation > sessions)


async def test_reports_when_one_spoils_its_batch_then_only_that_one_is_dropped(bench: Bench) -> None:
    plane = bench.plane
    async with bench.agent():
        await eventually(lambda: plane.ready)
        plane.away = True
        await asyncio.sleep(0.1)
        spoiled, good = plane.assign("exit 0"), plane.assign("exit 0")
        plane.poison.add(spoiled)
        plane.away = False
        await plane.wait_for_report(good, ReportKind.RELEASED)

    assert plane.kinds(good) == _LIFE
    assert plane.kinds(spoiled) == []


# The agent dies


async def test_agent_when_killed_then_its_task_runs_on_and_the_next_agent_tells_its_end(bench: Bench) -> None:
    plane = bench.plane
    first = bench.spawn()
    runs_on = plane.assign("echo one; while [ ! -e go ]; do sleep 0.05; done; echo two; exit 4")
    ends_meanwhile = plane.assign("sleep 1; exit 5")
    await plane.wait_for_report(runs_on, ReportKind.ACTIVE)
    await plane.wait_for_report(ends_meanwhile, ReportKind.ACTIVE)
    await eventually(lambda: plane.logs.get(runs_on, bytearray()) == b"one\n")
    first.send_signal(signal.SIGKILL)
    first.wait()
    await asyncio.sleep(1.2)
    bench.spawn()
    await eventually(lambda: plane.incarnation == 2 and runs_on in {one.allocation_id for one in plane.polls[-1].held})
    (bench.place / "tasks" / str(runs_on) / "work" / "go").touch()
    released = await plane.wait_for_report(runs_on, ReportKind.RELEASED)
    other = await plane.wait_for_report(ends_meanwhile, ReportKind.RELEASED)
    await eventually(lambda: {runs_on, ends_meanwhile} <= plane.ended_logs)

    assert (released.exit_code, other.exit_code) == (4, 5)
    assert other.at_monotonic_ms < released.at_monotonic_ms
    assert plane.logs[runs_on] == b"one\ntwo\n"


async def test_agent_when_killed_while_it_starts_tasks_then_every_task_runs_exactly_once(bench: Bench) -> None:
    plane = bench.plane
    marks = bench.place / "marks"
    marks.mkdir()
    marks.chmod(0o777)
    first = bench.spawn()
    await eventually(lambda: plane.polls)
    allocations = [plane.assign(f"echo x >> {marks}/$MILLPOND_ALLOCATION_ID; sleep 0.5") for _ in range(8)]
    await eventually(lambda: len(list(marks.iterdir())) >= 2)
    first.send_signal(signal.SIGKILL)
    first.wait()
    bench.spawn()
    for allocation in allocations:
        await plane.wait_for_report(allocation, ReportKind.RELEASED, 20)

    assert {(marks / str(allocation)).read_text() for allocation in allocations} == {"x\n"}


async def test_agent_when_stopped_then_tasks_run_on_unless_it_was_told_to_stop_them(bench: Bench) -> None:
    plane = bench.plane
    first = bench.spawn()
    allocation = plane.assign("trap 'exit 0' TERM; while :; do sleep 0.05; done")
    await plane.wait_for_report(allocation, ReportKind.ACTIVE)
    first.send_signal(signal.SIGTERM)
    assert await wait_for_exit(first) == ExitCode.OK
    assert plane.kinds(allocation) == _LIFE[:2]

    second = bench.spawn("--stop-tasks")
    await eventually(lambda: plane.incarnation == 2 and len(plane.polls[-1].held) == 1)
    second.send_signal(signal.SIGINT)
    assert await wait_for_exit(second) == ExitCode.OK
    released = plane.find_report(allocation, ReportKind.RELEASED)
    assert released is not None
    assert released.reason is EndReason.DRAINED
    assert list((bench.place / "tasks").iterdir()) == []


# The lease


async def test_lease_when_it_runs_out_then_tasks_are_gone_before_its_end(bench: Bench) -> None:
    plane = bench.plane
    plane.lease_seconds = 3.0
    async with bench.agent():
        allocation = plane.assign("trap '' TERM; echo $$ > pid; while :; do sleep 0.05; done", grace_seconds=60)
        await plane.wait_for_report(allocation, ReportKind.ACTIVE)
        pid_file = bench.place / "tasks" / str(allocation) / "work" / "pid"
        await eventually(lambda: pid_file.exists() and pid_file.read_text().strip() != "")
        pid = int(pid_file.read_text())
        plane.away = True
        away_at = time.monotonic()
        await asyncio.sleep(0.5)
        assert is_running(pid)
        # The last poll was sent before the outage began, so its lease ends earlier than counted from there.
        await eventually(lambda: not is_running(pid), plane.lease_seconds)
        assert time.monotonic() - away_at < plane.lease_seconds
        plane.away = False
        released = await plane.wait_for_report(allocation, ReportKind.RELEASED)

    assert released.reason is EndReason.NODE_LOST


async def test_lease_when_the_agent_is_dead_then_the_task_is_gone_before_its_end_all_the_same(bench: Bench) -> None:
    plane = bench.plane
    plane.lease_seconds = 3.0
    agent = bench.spawn()
    allocation = plane.assign("trap '' TERM; while :; do sleep 0.05; done", grace_seconds=60)
    await plane.wait_for_report(allocation, ReportKind.ACTIVE)
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    pid = json.loads((bench.runs / str(allocation) / "started.json").read_text())["pid"]
    await eventually(lambda: not is_running(pid), plane.lease_seconds)
    bench.spawn()
    released = await plane.wait_for_report(allocation, ReportKind.RELEASED)

    assert (released.reason, released.exit_code) == (EndReason.NODE_LOST, -9)
