"""A leader whose memory is not what the rows say: found, told, and read anew."""

import asyncio
from contextvars import Context

import pytest
from asyncpg import Record

from millpond_contracts.ids import TaskId
from millpond_kernel.observability import ALARMS
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store.guards import list_free
from tests.integration.scheduler.world import ONE_DEVICE, World, limits

pytestmark = pytest.mark.integration


async def test_memory_when_it_charges_what_ended_long_ago_then_alarmed_and_the_device_is_given_again_case_16(
    world: World,
) -> None:
    node = await world.add_node(devices=1)
    share = await world.add_virtual_pool(given=limits(devices=1000))
    leader = world.leader(compare_seconds=0.0)
    await world.submit(share, devices=ONE_DEVICE)
    await leader.step()
    (assignment,) = (await world.poll(node.node_id)).assignments
    await world.run_task(node.node_id, assignment)
    await world.end_task(node.node_id, assignment)
    await world.value("DELETE FROM change RETURNING 1")  # the leader is never told
    waiting = await world.submit(share, devices=ONE_DEVICE)
    before = ALARMS.labels("scheduler", "memory_drift")._value.get()
    for _ in range(5):
        await leader.step()
    assert leader.shard is not None
    bound = await world.value("SELECT id FROM allocation WHERE job_id = $1", waiting.job_id)
    assert list(leader.shard.live) == [bound]
    assert ALARMS.labels("scheduler", "memory_drift")._value.get() == before + 1
    told = {event["counter"]: (event["expected"], event["found"]) for event in await world.events("usage_drift_found")}
    assert told[f"memory/allocation/{assignment.allocation_id}"] == (0, 1)
    assert told[f"memory/node/{node.node_id}/device_milli"] == (1000, 0)
    await world.assert_counters_are_true()


async def test_memory_when_it_is_right_then_nothing_is_told_and_nothing_read_anew(world: World) -> None:
    await world.add_node(devices=2)
    share = await world.add_virtual_pool(given=limits(devices=1000))
    leader = world.leader(compare_seconds=0.0)
    for _ in range(3):
        await world.submit(share, devices=ONE_DEVICE)
        await leader.step()
    shard = leader.shard
    for _ in range(3):
        await leader.step()
    assert leader.shard is shard
    assert await world.events("usage_drift_found") == []


async def test_memory_when_every_step_places_something_then_it_is_compared_all_the_same(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    leader = world.leader(compare_seconds=0.0)
    await leader.step()
    await world.value("UPDATE node_guard SET free_cpu_milli = free_cpu_milli - 1 RETURNING 1")
    for _ in range(2):
        await world.submit(share)
        assert await leader.step(), "something was placed"
    (event,) = await world.events("usage_drift_found")
    assert event["counter"] == f"memory/node/{node.node_id}/cpu_milli"


async def test_memory_when_tasks_end_while_it_is_compared_then_that_is_no_difference(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = (await world.add_node()).node_id
    share = await world.add_virtual_pool()
    leader = world.leader(compare_seconds=0.0)
    await world.submit(share, count=4)
    await leader.step()
    tasks = (await world.poll(node)).assignments
    for task in tasks:
        await world.run_task(node, task)

    async def end_one_then_read(unit: UnitOfWork) -> list[Record]:
        # A transaction of its own beside the leader's.
        await asyncio.create_task(world.end_task(node, tasks.pop()), context=Context())
        return await list_free(unit)

    monkeypatch.setattr("millpond_scheduler.usecases.comparing.list_free", end_one_then_read)
    for _ in range(3):
        await leader.step()
    assert len(tasks) == 1
    assert await world.events("usage_drift_found") == []


async def test_memory_when_a_task_was_forgotten_then_it_is_found_and_placed(world: World) -> None:
    await world.add_node(devices=1)
    share = await world.add_virtual_pool()
    leader = world.leader(compare_seconds=0.0)
    await leader.step()
    job = await world.submit(share)
    await world.value("DELETE FROM change RETURNING 1")
    for _ in range(4):
        await leader.step()
    task = TaskId.of(await world.value("SELECT id FROM task WHERE job_id = $1", job.job_id))
    assert [event["counter"] for event in await world.events("usage_drift_found")] == [f"memory/waiting/{task}"]
    assert leader.shard is not None
    assert task in leader.shard.holders
