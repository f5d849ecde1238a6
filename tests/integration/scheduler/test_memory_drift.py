"""A leader whose memory is not what the rows say: found, told, and read anew."""

import pytest

from millpond_contracts.ids import TaskId
from millpond_kernel.observability import ALARMS
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
