"""Why jobs wait: verdicts, places in the queue, limits that begin and cease to block."""

import pytest

from millpond_contracts.bodies.groups import DeviceRequest
from millpond_contracts.bodies.nodes import CordonReason
from millpond_contracts.bodies.tenants import QueuePolicy, VirtualPoolView
from millpond_contracts.bodies.verdicts import Explanation
from millpond_contracts.ids import JobId
from millpond_kernel.db import TenantScope
from millpond_scheduler.loops import leader as leading
from millpond_scheduler.loops import telling
from millpond_scheduler.store.verdicts import list_queue
from millpond_scheduler.usecases.jobs import explain_job
from tests.integration.scheduler.world import ONE_DEVICE, World, limits

pytestmark = pytest.mark.integration


async def explain(world: World, share: VirtualPoolView, job: JobId) -> Explanation:
    async with world.database.begin(TenantScope(share.tenant_id)) as unit:
        return await explain_job(unit, job)


async def test_explain_when_the_pool_is_full_then_counts_sum_to_its_nodes_and_the_place_is_told(world: World) -> None:
    await world.add_node(devices=1)
    await world.add_node(devices=0)
    await world.add_node(devices=1, schedulable=False, cordon_reasons=(CordonReason.OPERATOR,))
    share = await world.add_virtual_pool()
    leader = world.leader()
    await world.submit(share, devices=ONE_DEVICE)
    first = await world.submit(share, devices=ONE_DEVICE, priority=10)
    second = await world.submit(share, devices=ONE_DEVICE, priority=20)
    await leader.step()
    await leader.step()
    told = await explain(world, share, first.job_id)
    assert (told.position, told.nodes, sum(told.counts.values())) == (2, 3, 3)
    assert told.dominant == "not_enough_devices"
    assert told.counts == {"not_enough_devices": 1, "no_matching_device": 1, "cordoned": 1}
    assert any("uncordon" in item.action for item in told.would_unblock)
    assert (await explain(world, share, second.job_id)).position == 1
    line = next(line for line in told.admission if line.resource == "device")
    assert (line.used, line.requested, line.missing) == (1000, 1000, 0)


async def test_explain_when_submitted_just_now_then_it_says_that_nobody_has_looked(world: World) -> None:
    share = await world.add_virtual_pool()
    job = await world.submit(share)
    told = await explain(world, share, job.job_id)
    assert (told.dominant, told.position) == ("undecided", 1)


async def test_explain_when_running_or_ended_then_nothing_waits(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    job = await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    told = await explain(world, share, job.job_id)
    assert (told.dominant, told.position) == ("running", None)
    await world.end_task(node.node_id, task)
    assert (await explain(world, share, job.job_id)).dominant == "succeeded"


async def test_explain_when_an_image_is_asked_for_and_no_node_can_then_that_is_the_reason(world: World) -> None:
    await world.add_node()
    share = await world.add_virtual_pool()
    job = await world.submit(share, image="registry.example/train:1")
    await world.leader().step()
    assert (await explain(world, share, job.job_id)).dominant == "no_container_runtime"


async def test_explain_when_no_machine_could_ever_hold_it_then_it_queues_and_says_so(world: World) -> None:
    await world.add_node(devices=2)
    share = await world.add_virtual_pool()
    job = await world.submit(share, devices=DeviceRequest(count=8))
    await world.leader().step()
    told = await explain(world, share, job.job_id)
    assert told.state.value == "pending"
    assert "even with nothing running" in told.message


async def test_verdict_when_the_job_starts_then_it_is_removed(world: World) -> None:
    share = await world.add_virtual_pool()
    leader = world.leader()
    await world.submit(share)
    await leader.step()
    assert await world.value("SELECT dominant FROM verdict") == "pool_empty"
    await world.add_node()
    await leader.step()
    await leader.step()
    assert await world.value("SELECT count(*) FROM verdict") == 0


async def test_verdicts_when_nothing_changed_then_nothing_is_written(world: World) -> None:
    share = await world.add_virtual_pool()
    leader = world.leader()
    await world.submit(share)
    await leader.step()
    before = await world.value("SELECT as_of FROM verdict")
    decided = await world.value("SELECT decided_at FROM shard_state")
    await leader.step()
    assert await world.value("SELECT as_of FROM verdict") == before
    assert await world.value("SELECT decided_at FROM shard_state") > decided


async def test_limit_when_it_begins_and_ceases_to_block_then_one_event_each(world: World) -> None:
    node = await world.add_node(devices=4)
    share = await world.add_virtual_pool(given=limits(devices=1000))
    leader = world.leader()
    await world.submit(share, devices=ONE_DEVICE)
    blocked = await world.submit(share, devices=ONE_DEVICE)
    for _ in range(3):
        await leader.step()
    told = await explain(world, share, blocked.job_id)
    assert told.dominant == "limit_reached"
    began = await world.events("admission_changed")
    assert [(item["resource"], item["flavor"], item["blocked"]) for item in began] == [("device", "t4", True)]
    assert (began[0]["used"], began[0]["hard"], began[0]["missing"]) == (1000, 1000, 1000)
    await world.value("UPDATE lease SET expires_at = clock_timestamp() RETURNING 1")
    successor = world.leader()
    await successor.step()  # a new leader does not tell the same crossing again
    assert len(await world.events("admission_changed")) == 1
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    await world.end_task(node.node_id, task)
    for _ in range(3):
        await successor.step()
    events = await world.events("admission_changed")
    assert [(item["blocked"], item["generation"]) for item in events] == [(True, 1), (False, 2)]


async def test_queue_when_fifo_then_age_alone_orders_it(world: World) -> None:
    share = await world.add_virtual_pool()
    jobs = [await world.submit(share, priority=priority) for priority in (10, 90, 50)]
    async with world.database.begin(TenantScope(share.tenant_id)) as unit:
        by_priority = await list_queue(unit, share.virtual_pool_id, QueuePolicy.PRIORITY, 0, 10)
        by_age = await list_queue(unit, share.virtual_pool_id, QueuePolicy.FIFO, 1, 10)
    assert [entry.job_id for entry in by_priority] == [jobs[1].job_id, jobs[2].job_id, jobs[0].job_id]
    assert [(entry.position, entry.job_id) for entry in by_age] == [(2, jobs[1].job_id), (3, jobs[2].job_id)]


async def started(world: World) -> set[JobId]:
    return {JobId.of(row["job_id"]) for row in await world.fetch("SELECT job_id FROM allocation")}


async def test_queue_when_the_shortest_job_goes_first_then_positions_and_starts_follow_the_time_limits(
    world: World,
) -> None:
    await world.add_node(devices=2)
    share = await world.add_virtual_pool(policy=QueuePolicy.SHORTEST_JOB_FIRST)
    two = DeviceRequest(count=2)
    unbounded = await world.submit(share, devices=two, priority=99)
    wide = await world.submit(share, devices=two, time_limit=600)
    long = await world.submit(share, devices=ONE_DEVICE, time_limit=3600)
    short = await world.submit(share, devices=ONE_DEVICE, time_limit=900)
    wanted = [short.job_id, wide.job_id, long.job_id, unbounded.job_id]
    async with world.database.begin(TenantScope(share.tenant_id)) as unit:
        assert [entry.job_id for entry in await list_queue(unit, share.virtual_pool_id, share.policy, 0, 10)] == wanted
    assert [(await explain(world, share, job)).position for job in wanted] == [1, 2, 3, 4]
    await world.leader().step()  # two do not fit beside the shortest, and hold up nobody
    assert await started(world) == {short.job_id, long.job_id}


async def test_queue_when_projects_share_fairly_then_positions_are_as_the_leader_goes(world: World) -> None:
    await world.add_node(devices=2)
    share = await world.add_virtual_pool(policy=QueuePolicy.FAIR_SHARE)
    project = await world.add_project(share.tenant_id)
    flood = [await world.submit(share, devices=ONE_DEVICE, priority=90, project=project) for _ in range(4)]
    mine = [await world.submit(share, devices=ONE_DEVICE) for _ in range(2)]
    leader = world.leader()
    assert (await explain(world, share, mine[0].job_id)).position == 6, "nobody has looked: near the end"
    await leader.step()
    assert await started(world) == {flood[0].job_id, mine[0].job_id}
    await leader.step()
    wanted = [flood[1].job_id, mine[1].job_id, flood[2].job_id, flood[3].job_id]
    async with world.database.begin(TenantScope(share.tenant_id)) as unit:
        assert [entry.job_id for entry in await list_queue(unit, share.virtual_pool_id, share.policy, 0, 10)] == wanted
    assert [(await explain(world, share, job)).position for job in wanted] == [1, 2, 3, 4]


async def test_verdict_when_every_step_places_something_then_who_waits_is_told_why_and_keeps_what_was_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "BATCHES_SECONDS", -1.0)  # others' changes come after every batch
    monkeypatch.setattr(telling, "VERDICT_PAUSES", 0)
    await world.add_node(devices=1, cpu=100_000)
    share = await world.add_virtual_pool()
    leader = world.leader(batch_tasks=1)
    behind = await world.submit(share, devices=DeviceRequest(count=3), priority=1)
    await leader.step()
    ahead = await world.submit(share, devices=DeviceRequest(count=2), priority=90)
    told = []
    for _ in range(3):
        await world.submit(share)
        assert await leader.step(), "something was placed"
        told.append([(await explain(world, share, job.job_id)).dominant for job in (ahead, behind)])
    assert told == [["not_enough_devices", "not_enough_devices"]] * 3
