"""Emptying nodes: the handshake of a drain, and stops at time limits."""

from datetime import timedelta

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.jobs import RetrySpec
from millpond_kernel.db import SYSTEM
from millpond_scheduler.usecases.stopping import find_emptied, find_over_limit, find_overdue, stop, tell_emptied
from tests.integration.scheduler.world import World

pytestmark = pytest.mark.integration


async def emptied(world: World) -> int:
    now = await world.database.now()
    async with world.database.begin(SYSTEM) as unit:
        return await tell_emptied(unit, await find_emptied(unit), now)


async def overdue(world: World) -> int:
    now = await world.database.now()
    async with world.database.begin(SYSTEM) as unit:
        return len(await stop(unit, await find_overdue(unit, now), EndReason.DRAINED, now))


async def test_drain_when_work_is_left_then_it_is_stopped_at_the_deadline_and_empty_is_told_once(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    leader = world.leader()
    job = await world.submit(share, retry=RetrySpec(max=1))
    await leader.step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    later = await world.database.now() + timedelta(hours=1)
    drained = await world.drain(node.node_id, later)
    waiting = await world.submit(share)
    await leader.step()
    assert await world.job_state(waiting.job_id) == "pending"
    assert (await overdue(world), await emptied(world)) == (0, 0)
    await world.value("UPDATE node_view SET drain_deadline = clock_timestamp() - interval '1 s' RETURNING 1")
    assert await overdue(world) == 1
    stop = (await world.poll(node.node_id, [task])).stops[0]
    assert (stop.reason, stop.grace_seconds) == (EndReason.DRAINED, 7)
    asked = (await world.events("allocation_stop_requested"))[0]["allocation"]
    assert asked["waived_from"] == asked["stop_requested_at"]
    assert await emptied(world) == 0
    await world.end_task(node.node_id, task, -15, reason=EndReason.DRAINED)
    assert (await emptied(world), await emptied(world)) == (1, 0)
    assert drained.drain is not None
    told = await world.events("node_emptied")
    assert [(item["node_id"], item["drain_generation"]) for item in told] == [
        (str(node.node_id), drained.drain.generation)
    ]
    # Drained work is retried elsewhere.
    row = (await world.fetch("SELECT state, attempt FROM task WHERE job_id = $1", job.job_id))[0]
    assert (row["state"], row["attempt"]) == ("pending", 2)
    await world.assert_counters_are_true()


async def test_drain_when_asked_again_later_then_told_again(world: World) -> None:
    node = await world.add_node()
    now = await world.database.now()
    await world.drain(node.node_id, now)
    assert await emptied(world) == 1
    await world.change_node(node.node_id, schedulable=True, cordon_reasons=(), drain=None)
    assert await emptied(world) == 0
    await world.drain(node.node_id, now)
    assert await emptied(world) == 1
    generations = [item["generation"] for item in await world.events("node_emptied")]
    assert generations == sorted(set(generations))


async def test_time_limit_when_the_agent_does_not_stop_it_then_it_is_ordered_to(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    job = await world.submit(share, time_limit=60, retry=RetrySpec(max=5, on=("failed",)))
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    assert task.time_limit_seconds == 60
    await world.run_task(node.node_id, task)
    for seconds, expected in ((60, 0), (66, 1), (70, 0)):
        async with world.database.begin(SYSTEM) as unit:
            now = await unit.fetchval("SELECT active_at FROM allocation") + timedelta(seconds=seconds)
            due = await find_over_limit(unit, now)
            assert len(await stop(unit, due, EndReason.TIME_LIMIT, now)) == expected
    assert (await world.poll(node.node_id, [task])).stops[0].reason is EndReason.TIME_LIMIT
    asked = (await world.events("allocation_stop_requested"))[0]["allocation"]
    assert asked["waived_from"] is None
    await world.value("UPDATE allocation SET stop_requested_at = clock_timestamp() RETURNING 1")
    await world.end_task(node.node_id, task, -9, reason=EndReason.TIME_LIMIT)
    row = (await world.fetch("SELECT state, reason FROM job WHERE id = $1", job.job_id))[0]
    assert (row["state"], row["reason"]) == ("failed", "time_limit")


async def test_node_when_it_loses_devices_that_are_held_then_counters_stay_true_until_all_is_free(world: World) -> None:
    node = await world.add_node(devices=2, cpu=4000)
    share = await world.add_virtual_pool()
    await world.submit(share, cpu=3000)
    leader = world.leader()
    await leader.step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    await world.change_node(node.node_id, cpu_milli=2000, devices=node.devices[1:])
    row = (await world.fetch("SELECT free_cpu_milli, shrunk, free_milli FROM node_guard"))[0]
    assert (row["free_cpu_milli"], row["shrunk"], list(row["free_milli"])) == (0, True, [1000])
    await world.assert_counters_are_true()
    await world.end_task(node.node_id, task)
    row = (await world.fetch("SELECT free_cpu_milli, shrunk FROM node_guard"))[0]
    assert (row["free_cpu_milli"], row["shrunk"]) == (2000, False)
    await world.assert_counters_are_true()
