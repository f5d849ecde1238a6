"""Gangs through the leader and agents: whole or not at all, from the start to whatever ends a task of them."""

import asyncpg
import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.jobs import JobView, RetryReason, RetrySpec
from millpond_contracts.bodies.work import Assignment, ReportKind
from millpond_contracts.ids import NodeId
from millpond_kernel.db import SYSTEM, TenantScope
from millpond_scheduler.domain.cycle import plan_batch
from millpond_scheduler.loops.leader import Leader
from millpond_scheduler.store.guards import GuardFailed
from millpond_scheduler.usecases.cycle import commit_batch
from millpond_scheduler.usecases.jobs import submit_job
from millpond_scheduler.usecases.leases import give_up
from millpond_scheduler.usecases.stopping import stop
from tests.integration.scheduler.test_guards import load, make_batch
from tests.integration.scheduler.world import ONE_DEVICE, World, limits, make_spec, member

pytestmark = pytest.mark.integration

LOST_ONCE = RetrySpec(max=1, on=(RetryReason.NODE_LOST,))


async def start_gang(
    world: World, size: int = 3, retry: RetrySpec | None = None
) -> tuple[Leader, JobView, list[tuple[NodeId, Assignment]]]:
    """A gang of one device each, running on nodes of two devices, and the leader that started it."""
    for _ in range((size + 1) // 2):
        await world.add_node(devices=2)
    share = await world.add_virtual_pool()
    job = await world.submit(share, count=size, gang=True, devices=ONE_DEVICE, retry=retry or RetrySpec())
    leader = world.leader()
    await leader.step()
    return leader, job, await begin(world)


async def begin(world: World) -> list[tuple[NodeId, Assignment]]:
    """Every node starts what it is assigned; in the order of the tasks' places."""
    tasks = []
    for node in world.nodes:
        for task in (await world.poll(node)).assignments:
            await world.run_task(node, task)
            tasks.append((node, task))
    return sorted(tasks, key=lambda each: each[1].index)


async def task_states(world: World) -> list[tuple[str, int, str | None]]:
    rows = await world.fetch("SELECT state, attempt, reason FROM task ORDER BY index")
    return [(row["state"], row["attempt"], row["reason"]) for row in rows]


async def stops(world: World) -> list[tuple[str, bool]]:
    """Reason and waiver of every stop that was ordered and not yet carried out."""
    rows = await world.fetch(
        "SELECT stop_reason, waived_from FROM allocation WHERE state = 'releasing' ORDER BY index, attempt"
    )
    return [(row["stop_reason"], row["waived_from"] is not None) for row in rows]


async def test_gang_when_there_is_room_for_all_then_all_are_bound_in_one_transaction(world: World) -> None:
    _, job, tasks = await start_gang(world, 3)
    assert [task.index for _, task in tasks] == [0, 1, 2]
    assert await world.value("SELECT count(DISTINCT bound_at) FROM allocation") == 1
    assert await world.job_state(job.job_id) == "running"
    await world.assert_counters_are_true()


async def test_gang_when_one_task_has_no_room_then_none_is_bound_and_the_next_job_goes_on_s6(world: World) -> None:
    node = await world.add_node(devices=3)
    share = await world.add_virtual_pool()
    gang = await world.submit(share, count=4, gang=True, devices=ONE_DEVICE)
    small = await world.submit(share, devices=ONE_DEVICE, count=3)
    leader = world.leader()
    await leader.step()
    assert {task.job_id for task in (await world.poll(node.node_id)).assignments} == {small.job_id}
    await leader.step()
    body = await world.value("SELECT body FROM verdict WHERE job_id = $1", gang.job_id)
    assert body["dominant"] == "not_enough_devices"
    assert (body["gang"]["tasks"], body["gang"]["fitting"], body["gang"]["group"]) == (4, 0, None)
    assert await world.value("SELECT count(*) FROM allocation WHERE job_id = $1", gang.job_id) == 0
    assert await world.value("SELECT used FROM usage WHERE resource = 'device'") == 3000


async def test_gang_when_the_hard_limit_shrinks_between_plan_and_commit_then_no_part_of_it_is_bound(
    world: World,
) -> None:
    await world.add_node(devices=4)
    share = await world.add_virtual_pool(given=limits(devices=4000))
    await world.submit(share, count=4, gang=True, devices=ONE_DEVICE)
    lease, shard = await load(world.database)
    plan = plan_batch(shard.snapshot, shard.queue(), shard.virtual_pools, 0, cache=shard.cache)
    assert len(plan.placements) == 4
    lowered = {"limits": limits(devices=3000), "generation": 2}
    await world.tell_virtual_pool(share.model_copy(update=lowered))
    with pytest.raises(asyncpg.CheckViolationError):
        async with world.database.begin(SYSTEM) as unit:
            await commit_batch(unit, lease, make_batch(lease, shard, plan.placements))
    assert await world.value("SELECT count(*) FROM allocation") == 0
    await world.assert_counters_are_true()


async def test_commit_when_a_plan_holds_a_part_of_a_gang_then_refused(world: World) -> None:
    await world.add_node(devices=2)
    share = await world.add_virtual_pool()
    await world.submit(share, count=2, gang=True, devices=ONE_DEVICE)
    lease, shard = await load(world.database)
    plan = plan_batch(shard.snapshot, shard.queue(), shard.virtual_pools, 0, cache=shard.cache)
    with pytest.raises(GuardFailed, match="not whole"):
        async with world.database.begin(SYSTEM) as unit:
            await commit_batch(unit, lease, make_batch(lease, shard, plan.placements[:1]))
    assert await world.value("SELECT count(*) FROM allocation") == 0


async def test_gang_when_a_task_fails_then_the_others_are_stopped_and_the_job_tells_the_cause(world: World) -> None:
    _, job, tasks = await start_gang(world, 3)
    await world.end_task(*tasks[1], exit_code=3)
    assert await stops(world) == [("gang_stopped", False), ("gang_stopped", False)]
    for place in (0, 2):
        await world.end_task(*tasks[place], exit_code=-15, reason=EndReason.GANG_STOPPED)
    assert [state for state, _, _ in await task_states(world)] == ["failed"] * 3
    row = (await world.fetch("SELECT state, reason, message FROM job WHERE id = $1", job.job_id))[0]
    assert (row["state"], row["reason"]) == ("failed", "exit_code")
    assert row["message"].startswith("task main/1 ")
    await world.assert_counters_are_true()


async def test_gang_when_a_node_is_lost_then_all_wait_again_and_start_only_together(world: World) -> None:
    leader, job, tasks = await start_gang(world, 4, LOST_ONCE)
    lost = tasks[0][0]
    on_lost = [task for node, task in tasks if node == lost]
    on_other = [(node, task) for node, task in tasks if node != lost]
    await world.value(
        "UPDATE node_lease SET leased_until = clock_timestamp() - interval '1 minute' WHERE node_id = $1 RETURNING 1",
        lost,
    )
    now = await world.database.now()
    async with world.database.begin(SYSTEM) as unit:
        assert await give_up(unit, {task.allocation_id: now for task in on_lost}, now) == 2
    # What the provider's loss has stopped is waived from there, and nothing of the gang starts before all have stopped.
    assert await stops(world) == [("gang_stopped", True), ("gang_stopped", True)]
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE state = 'bound'") == 0
    await world.end_task(*on_other[0], exit_code=-15, reason=EndReason.GANG_STOPPED)
    await world.end_task(*on_other[1], exit_code=1)  # it died of its peers' silence: no failure of its own
    assert await task_states(world) == [("pending", 2, None)] * 4
    assert await world.job_state(job.job_id) == "running"
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE state = 'bound' AND attempt = 2") == 4
    await world.assert_counters_are_true()


async def test_gang_when_it_restarts_then_a_task_that_had_succeeded_runs_again(world: World) -> None:
    retry = RetrySpec(max=1, on=(RetryReason.FAILED,))
    leader, job, tasks = await start_gang(world, 3, retry)
    await world.end_task(*tasks[0])
    await world.end_task(*tasks[1], exit_code=1)
    await world.end_task(*tasks[2])  # faster than its stop
    assert await task_states(world) == [("pending", 2, None)] * 3
    await leader.step()
    for node, task in await begin(world):
        await world.end_task(node, task)
    assert await world.job_state(job.job_id) == "succeeded"
    await world.assert_counters_are_true()


async def test_gang_of_several_groups_when_a_task_fails_then_all_groups_start_anew_and_only_together_case_4(
    world: World,
) -> None:
    """The place of a lost member is not taken by others for ever: the gang is released whole and waits as a whole."""
    node = (await world.add_node(devices=2)).node_id
    share = await world.add_virtual_pool()
    spec = make_spec(
        share.virtual_pool_id,
        count=2,
        gang=True,
        devices=ONE_DEVICE,
        retry=RetrySpec(max=1, on=(RetryReason.FAILED,)),
    )
    (workers,) = spec.groups
    driver = workers.model_copy(
        update={"name": "driver", "count": 1, "resources": workers.resources.model_copy(update={"devices": ()})}
    )
    async with world.database.begin(TenantScope(share.tenant_id)) as unit:
        job = await submit_job(unit, member(share.tenant_id), spec.model_copy(update={"groups": (driver, workers)}))
    leader = world.leader()
    await leader.step()
    assert await world.value("SELECT count(DISTINCT bound_at) FROM allocation") == 1
    tasks = {(task.group, task.index): task for task in (await world.poll(node)).assignments}
    for task in tasks.values():
        await world.run_task(node, task)
    await world.end_task(node, tasks["driver", 0])
    await world.end_task(node, tasks["main", 0], exit_code=1)
    assert await stops(world) == [("gang_stopped", False)]
    small = await world.submit(share, devices=ONE_DEVICE, priority=99)
    await leader.step()
    await world.end_task(node, tasks["main", 1], exit_code=-15, reason=EndReason.GANG_STOPPED)
    assert (
        await world.fetch("SELECT 1 FROM task WHERE job_id = $1 AND (state, attempt) <> ('pending', 2)", job.job_id)
        == []
    )
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE state = 'bound' AND job_id = $1", job.job_id) == 0
    (other,) = [task for task in (await world.poll(node)).assignments if task.job_id == small.job_id]
    await world.end_task(node, other)
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE state = 'bound' AND job_id = $1", job.job_id) == 3
    await world.assert_counters_are_true()


async def test_gang_when_its_retries_are_used_up_then_it_ends_whole(world: World) -> None:
    retry = RetrySpec(max=1, on=(RetryReason.FAILED,))
    leader, job, tasks = await start_gang(world, 2, retry)
    for _ in range(2):
        await world.end_task(*tasks[0], exit_code=1)
        await world.end_task(*tasks[1], exit_code=-15, reason=EndReason.GANG_STOPPED)
        await leader.step()
        tasks = await begin(world) or tasks
    assert await world.job_state(job.job_id) == "failed"
    assert await world.value("SELECT reason FROM job") == "retries_exhausted"
    assert await world.value("SELECT max(attempt) FROM task") == 2


async def test_gang_when_one_task_is_drained_then_all_are_stopped_at_once_and_waived(world: World) -> None:
    _, _, tasks = await start_gang(world, 3)
    now = await world.database.now()
    async with world.database.begin(SYSTEM) as unit:
        nodes = await stop(unit, [tasks[0][1].allocation_id], EndReason.DRAINED, now)
    assert nodes == set(world.nodes)
    assert await stops(world) == [("drained", True), ("gang_stopped", True), ("gang_stopped", True)]


async def test_gang_when_cancelled_while_it_restarts_then_nothing_of_it_is_left(world: World) -> None:
    retry = RetrySpec(max=1, on=(RetryReason.FAILED,))
    _, job, tasks = await start_gang(world, 3, retry)
    await world.end_task(*tasks[0], exit_code=1)
    async with world.database.begin(SYSTEM) as unit:
        tenant = await unit.fetchval("SELECT tenant_id FROM job")
    share = type("Share", (), {"tenant_id": tenant})()
    await world.cancel(share, job.job_id)
    for place in (1, 2):
        await world.end_task(*tasks[place], exit_code=-15, reason=EndReason.GANG_STOPPED)
    assert await world.job_state(job.job_id) == "cancelled"
    assert await world.value("SELECT count(*) FROM task WHERE state = 'pending'") == 0
    await world.assert_counters_are_true()


async def test_gang_when_an_agent_refuses_a_task_then_the_others_do_not_go_on(world: World) -> None:
    node = await world.add_node(devices=2)
    share = await world.add_virtual_pool()
    job = await world.submit(share, count=2, gang=True, devices=ONE_DEVICE)
    await world.leader().step()
    first, second = (await world.poll(node.node_id)).assignments
    await world.run_task(node.node_id, second)
    await world.report(node.node_id, world.make_report(first, ReportKind.REFUSED, message="no"))
    assert await stops(world) == [("gang_stopped", False)]
    await world.end_task(node.node_id, second, exit_code=-15)
    assert await world.job_state(job.job_id) == "failed"
