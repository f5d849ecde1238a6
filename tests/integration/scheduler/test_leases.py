"""Silent nodes: no new work, then their work is given up; restarts on either side; clocks of machines."""

import asyncio
from contextvars import Context
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.jobs import RetrySpec
from millpond_contracts.bodies.work import ReportKind
from millpond_contracts.errors import ErrorCode
from millpond_kernel.db import SYSTEM
from millpond_kernel.leases import acquire_lease
from millpond_kernel.problem import ProblemError
from millpond_scheduler.domain.freezing import FreezeRules
from millpond_scheduler.loops.upkeep import Upkeep, UpkeepRules
from millpond_scheduler.providers.bells import NodeBell
from millpond_scheduler.providers.log_folder import LogFolder
from millpond_scheduler.store import allocations, jobs
from millpond_scheduler.usecases.leases import find_expired, find_forgotten, give_up, mark_silent, settle_freezes
from tests.integration.scheduler.world import World

pytestmark = pytest.mark.integration

WATCHER = uuid4()


async def pass_time(world: World, seconds: float) -> None:
    """Lets the leases age by moving what is stored into the past."""
    await world.value(
        "UPDATE node_lease SET renewed_at = renewed_at - $1::interval, leased_until = leased_until - $1::interval,"
        " exchange_at = exchange_at - $1::interval RETURNING 1",
        timedelta(seconds=seconds),
    )
    await world.value(
        "WITH x AS (UPDATE allocation SET bound_at = bound_at - $1::interval, active_at = active_at - $1::interval"
        " RETURNING 1) SELECT count(*) FROM x",
        timedelta(seconds=seconds),
    )


async def watch(world: World) -> tuple[int, int]:
    """One look of the loop: how many nodes are newly silent, how many allocations were given up."""
    now = await world.database.now()
    async with world.database.begin(SYSTEM) as unit:
        silent = await mark_silent(unit, now)
        return silent, await give_up(unit, await find_expired(unit, now), now)


async def test_node_when_silent_for_a_while_then_it_keeps_its_work_and_gets_no_more(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    leader = world.leader()
    job = await world.submit(share)
    await leader.step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    await pass_time(world, 60)
    assert await watch(world) == (1, 0)
    waiting = await world.submit(share)
    await leader.step()
    assert await world.job_state(waiting.job_id) == "pending"
    assert await world.job_state(job.job_id) == "running"
    answer = await world.poll(node.node_id, [task])
    assert answer.stops == []
    await leader.step()
    assert [item.job_id for item in (await world.poll(node.node_id, [task])).assignments] == [waiting.job_id]


async def test_node_when_lease_and_grace_are_over_then_work_ends_at_its_last_sign_and_is_retried_n8_b11(
    world: World,
) -> None:
    lost, other = await world.add_node(), await world.add_node(polls=False)
    share = await world.add_virtual_pool()
    leader = world.leader()
    job = await world.submit(share, retry=RetrySpec(max=1))
    await leader.step()
    task = (await world.poll(lost.node_id)).assignments[0]
    await world.run_task(lost.node_id, task)
    await pass_time(world, 325)
    assert await watch(world) == (1, 0)  # the lease is over, the grace is not
    await pass_time(world, 10)
    renewed = await world.value("SELECT renewed_at FROM node_lease")
    assert await watch(world) == (0, 1)
    row = (await world.fetch("SELECT * FROM allocation"))[0]
    assert (row["reason"], row["released_at"]) == ("node_lost", max(renewed, row["active_at"]))
    await world.poll(other.node_id)
    await leader.step()
    again = (await world.poll(other.node_id)).assignments[0]
    assert (again.task_id, again.attempt) == (task.task_id, 2)
    assert await world.job_state(job.job_id) in ("pending", "running")
    await world.assert_counters_are_true()


async def test_node_when_it_polls_between_the_look_and_the_giving_up_then_it_keeps_its_work(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    job = await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    await pass_time(world, 400)
    now = await world.database.now()
    async with world.database.begin(SYSTEM) as unit:
        found = await find_expired(unit, now)
    assert list(found) == [task.allocation_id]
    assert (await world.poll(node.node_id, [task])).stops == []
    async with world.database.begin(SYSTEM) as unit:
        assert await give_up(unit, found, now) == 0
    assert await world.job_state(job.job_id) == "running"


async def test_node_when_it_returns_after_its_work_was_given_up_then_it_is_told_to_stop(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    await pass_time(world, 400)
    await watch(world)
    stops = (await world.poll(node.node_id, [task])).stops
    assert [(stop.allocation_id, stop.epoch, stop.reason, stop.grace_seconds) for stop in stops] == [
        (task.allocation_id, task.epoch, EndReason.NODE_LOST, 0)
    ]
    answer = await world.report(node.node_id, world.make_report(task, ReportKind.RELEASED, exit_code=0))
    assert [item.code for item in answer.rejected] == [ErrorCode.ALLOCATION_EPOCH_STALE.value]


async def test_watch_when_it_begins_then_silence_before_it_ends_nobodys_work_v3(world: World, tmp_path: Path) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    job = await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    upkeep = Upkeep(world.database, UpkeepRules(), NodeBell(world.redis, world.prefix), LogFolder(tmp_path))
    states = []
    for epoch in (1, 2, 2):
        await world.value("UPDATE lease SET expires_at = clock_timestamp() WHERE epoch < $1", epoch)
        lease = await acquire_lease(world.database, "watch_leases", WATCHER, 60)
        assert lease is not None
        assert lease.epoch == epoch
        await pass_time(world, 4000)
        await upkeep.watch_leases(await world.database.now(), lease)
        states.append(await world.job_state(job.job_id))
    # Each beginning gives a whole lease; what passes afterwards is the node's own silence.
    assert states == ["running", "running", "failed"]
    await world.assert_counters_are_true()


async def test_nodes_when_half_fall_silent_together_then_nothing_is_given_up_and_people_are_told_k3_w4(
    world: World, tmp_path: Path
) -> None:
    nodes = [(await world.add_node(cpu=1000)).node_id for _ in range(6)]
    share = await world.add_virtual_pool()
    job = await world.submit(share, count=6, retry=RetrySpec(max=3))
    await world.leader().step()
    tasks = {node: (await world.poll(node)).assignments[0] for node in nodes}
    for node, task in tasks.items():
        await world.run_task(node, task)
    upkeep = Upkeep(world.database, UpkeepRules(), NodeBell(world.redis, world.prefix), LogFolder(tmp_path))
    lease = await acquire_lease(world.database, "watch_leases", WATCHER, 60)
    assert lease is not None
    await upkeep.watch_leases(await world.database.now(), lease)
    assert upkeep.unwell() is None
    silent, heard = nodes[:3], nodes[3:]
    for seconds in (160, 300):  # longer than the silence that a pool allows, then longer than lease and grace
        await pass_time(world, seconds)
        for node in heard:
            await world.poll(node, [tasks[node]])
        await upkeep.watch_leases(await world.database.now(), lease)
    assert "not given up" in str(upkeep.unwell())
    told = await world.events("evacuation_frozen")
    assert [(event["silent_nodes"], event["nodes"]) for event in told] == [(3, 6)]  # once, however long it lasts
    assert await world.value("SELECT count(*) FROM allocation WHERE state = 'active'") == 6
    assert await world.value("SELECT count(*) FROM node_lease WHERE silent") == 3

    stops = [(await world.poll(node, [tasks[node]])).stops for node in silent]
    await upkeep.watch_leases(await world.database.now(), lease)
    assert stops == [[], [], []]
    assert upkeep.unwell() is None
    assert len(await world.events("evacuation_resumed")) == 1
    assert await world.value("SELECT max(attempt) FROM task") == 1
    assert await world.job_state(job.job_id) == "running"


async def test_nodes_when_frozen_then_what_was_told_to_stop_and_what_is_silent_for_long_ends_k3(world: World) -> None:
    nodes = [(await world.add_node(cpu=1000)).node_id for _ in range(4)]
    share = await world.add_virtual_pool()
    cancelled = await world.submit(share)
    await world.submit(share, count=3)
    await world.leader().step()
    for node in nodes:
        await world.run_task(node, (await world.poll(node)).assignments[0])
    await world.cancel(share, cancelled.job_id)
    rules = FreezeRules(seconds=1000)
    released = []
    for seconds in (400, 800, 200):
        await pass_time(world, seconds)
        now = await world.database.now()
        async with world.database.begin(SYSTEM) as unit:
            await mark_silent(unit, now)
            frozen = await settle_freezes(unit, now, rules)
            released.append(await give_up(unit, await find_expired(unit, now, frozen, rules), now))
    assert released == [1, 0, 3]  # the cancelled one at the end of its lease, the others when nobody waits any more
    assert await world.job_state(cancelled.job_id) == "cancelled"
    assert await world.fetch("SELECT * FROM evacuation_freeze") == []
    await world.assert_counters_are_true()


async def test_machine_when_restarted_then_what_it_does_not_bring_along_ended(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    await world.submit(share, count=2)
    leader = world.leader()
    await leader.step()
    first, second = (await world.poll(node.node_id)).assignments
    await world.run_task(node.node_id, first)
    await world.run_task(node.node_id, second)
    before = await world.value("SELECT renewed_at FROM node_lease")
    world.boots[node.node_id] = "boot-2"
    await world.poll(node.node_id, [second])
    rows = await world.fetch("SELECT id, state, reason, active_at, released_at FROM allocation ORDER BY id")
    ended = next(row for row in rows if row["id"] == first.allocation_id)
    kept = next(row for row in rows if row["id"] == second.allocation_id)
    assert (ended["reason"], ended["released_at"]) == ("node_restarted", max(before, ended["active_at"]))
    assert kept["state"] == "active"
    await world.assert_counters_are_true()


async def test_agent_when_it_forgot_a_task_then_its_room_comes_back_after_a_while(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    job = await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    await world.poll(node.node_id, [])
    await world.poll(node.node_id, [task])
    assert await world.value("SELECT missing_since FROM allocation") is None
    await world.poll(node.node_id, [])
    await world.value("UPDATE allocation SET missing_since = missing_since - interval '1 hour' RETURNING 1")
    now = await world.database.now()
    async with world.database.begin(SYSTEM) as unit:
        assert await give_up(unit, await find_forgotten(unit, now), now) == 1
    assert await world.job_state(job.job_id) == "failed"
    await world.assert_counters_are_true()


async def test_poll_when_a_stop_of_the_same_jobs_is_under_way_then_neither_blocks_the_other(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    known, unknown = await world.submit(share), await world.submit(share)
    await world.leader().step()
    tasks = {task.job_id: task for task in (await world.poll(node.node_id)).assignments}
    await world.run_task(node.node_id, tasks[known.job_id])
    await world.cancel(share, unknown.job_id)
    await world.value(
        "UPDATE allocation SET stop_requested_at = stop_requested_at - interval '1 minute', bound_at = bound_at"
        " - interval '2 minutes' WHERE job_id = $1 RETURNING 1",
        unknown.job_id,
    )
    async with world.database.begin(SYSTEM) as unit:
        await jobs.lock_jobs(unit, [unknown.job_id])
        polling = asyncio.create_task(world.poll(node.node_id, []), context=Context())
        await asyncio.sleep(0.2)
        assert not polling.done()  # it is about to end what the agent never had, and waits for the job
        await allocations.lock_allocations(unit, [tasks[known.job_id].allocation_id])
    await polling
    assert await world.job_state(unknown.job_id) == "cancelled"
    assert await world.value("SELECT missing_since FROM allocation WHERE job_id = $1", known.job_id) is not None
    await world.assert_counters_are_true()


async def test_session_when_superseded_then_the_older_agent_is_refused(world: World) -> None:
    node = await world.add_node()
    await world.poll(node.node_id, incarnation=2)
    with pytest.raises(ProblemError) as refused:
        await world.poll(node.node_id, incarnation=1)
    assert refused.value.code is ErrorCode.NODE_SUPERSEDED


async def test_instants_when_reported_late_then_they_are_server_time_by_the_last_exchange(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    exchange = await world.value("SELECT exchange_at FROM node_lease")
    # An outage of ten minutes: nothing reaches the server while the task starts and ends.
    await pass_time(world, 600)
    exchange -= timedelta(seconds=600)
    active = world.make_report(task, ReportKind.ACTIVE, at_monotonic_ms=world.clock_ms + 2_000)
    released = world.make_report(task, ReportKind.RELEASED, exit_code=0, at_monotonic_ms=world.clock_ms + 62_345)
    world.clock_ms += 600_000
    await world.report(node.node_id, active, released)
    row = (await world.fetch("SELECT active_at, released_at FROM allocation"))[0]
    assert row["active_at"] == exchange + timedelta(seconds=2)
    assert row["released_at"] == exchange + timedelta(milliseconds=62_345)


async def test_instants_when_the_machines_clock_jumps_then_they_stay_between_bind_and_receipt(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.report(node.node_id, world.make_report(task, ReportKind.ACTIVE, at_monotonic_ms=0))
    await world.report(node.node_id, world.make_report(task, ReportKind.RELEASED, exit_code=0, at_monotonic_ms=2**53))
    row = (await world.fetch("SELECT bound_at, active_at, released_at, clock_timestamp() AS now FROM allocation"))[0]
    assert row["active_at"] == row["bound_at"]
    assert row["active_at"] <= row["released_at"] <= row["now"]
