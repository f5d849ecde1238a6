"""A higher priority stops a lower one of its virtual pool, where that says so: durably, once, and never by turns."""

import pytest

from millpond_contracts.bodies.allocations import AllocationView, EndReason
from millpond_contracts.bodies.groups import DeviceRequest
from millpond_contracts.bodies.jobs import RetryReason, RetrySpec
from millpond_contracts.bodies.tenants import Preemption, VirtualPoolView
from millpond_contracts.ids import TaskId
from millpond_kernel.db import SYSTEM, TenantScope
from millpond_scheduler.domain.plans import Halted, Plan, Spared
from millpond_scheduler.usecases.jobs import explain_job
from millpond_scheduler.usecases.loading import load_evictions
from millpond_scheduler.usecases.reclaiming import tell_halted
from millpond_scheduler.usecases.shard import Shard
from tests.integration.scheduler.test_plans import plan
from tests.integration.scheduler.world import ONE_DEVICE, World, limits, make_spec

pytestmark = pytest.mark.integration

AGAIN = RetrySpec(max=3, on=(RetryReason.PREEMPTED, RetryReason.FAILED))


async def add_share(world: World, devices: int = 1000, **changes: object) -> VirtualPoolView:
    share = await world.add_virtual_pool(given=limits(devices=devices))
    share = share.model_copy(update={"preemption": Preemption.LOWER_PRIORITY, "generation": 2, **changes})
    await world.tell_virtual_pool(share)
    return share


async def test_preemption_when_the_limit_is_reached_then_the_lower_priority_stops_and_waits_behind(
    world: World,
) -> None:
    node = (await world.add_node(devices=2)).node_id
    share = await add_share(world)
    low = await world.submit(share, devices=ONE_DEVICE, priority=10, retry=AGAIN)
    leader = world.leader()
    await leader.step()
    (task,) = (await world.poll(node)).assignments
    await world.run_task(node, task)
    high = await world.submit(share, devices=ONE_DEVICE, priority=90)
    await leader.step()
    row = (await world.fetch("SELECT * FROM allocation"))[0]
    claimant = await world.value("SELECT id FROM task WHERE job_id = $1", high.job_id)
    assert (row["state"], row["stop_reason"], row["claimed_by"]) == ("releasing", "preempted", claimant)
    assert row["waived_from"] == row["stop_requested_at"]
    await leader.step()
    async with world.database.begin(TenantScope(share.tenant_id)) as unit:
        told = await explain_job(unit, high.job_id)
    assert (told.dominant, told.position) == ("preempting", 1)
    assert await world.value("SELECT sum(used) FROM usage WHERE resource = 'device'") == 1000, "until it is gone"
    await world.end_task(node, task, exit_code=-15, reason=EndReason.PREEMPTED)
    for _ in range(5):
        await leader.step()
    bound = await world.fetch("SELECT job_id, state FROM allocation WHERE state <> 'released'")
    assert [(each["job_id"], each["state"]) for each in bound] == [(high.job_id, "bound")]
    assert await world.value("SELECT state FROM task WHERE job_id = $1", low.job_id) == "pending"
    await world.assert_counters_are_true()
    assert leader.shard is not None
    remembered = leader.shard.evictions
    async with world.database.begin(SYSTEM) as unit:
        await load_evictions(unit, leader.shard)  # a new leader knows of it as well
    assert [(one.victim, one.claimant) for one in leader.shard.evictions] == [(task.task_id, TaskId.of(claimant))]
    assert [(one.victim, one.claimant) for one in remembered] == [(task.task_id, TaskId.of(claimant))]


async def test_preemption_when_the_victim_had_ended_before_it_was_asked_then_nothing_is_waived(world: World) -> None:
    node = (await world.add_node(devices=1)).node_id
    share = await add_share(world, devices=1000)
    low = await world.submit(share, devices=ONE_DEVICE, priority=10)
    leader = world.leader()
    await leader.step()
    (task,) = (await world.poll(node)).assignments
    await world.run_task(node, task)
    ended_at = world.clock_ms
    await world.submit(share, devices=ONE_DEVICE, priority=90)
    await leader.step()
    assert await world.value("SELECT waived_from FROM allocation WHERE id = $1", task.allocation_id) is not None
    # The agent had not been heard since: the task had come to its end a moment before.
    world.clock_ms += 60_000
    await world.end_task(node, task, at_monotonic_ms=ended_at)
    (released,) = await world.events("allocation_released")
    told = AllocationView.model_validate(released["allocation"])
    assert (told.reason, told.waived_from) == (EndReason.COMPLETED, None)
    assert told.released_at is not None
    assert told.stop_requested_at is not None
    assert told.released_at < told.stop_requested_at
    assert await world.job_state(low.job_id) == "succeeded"


async def test_preemption_when_the_leader_is_replaced_after_the_last_victim_left_then_its_room_is_the_claimants(
    world: World,
) -> None:
    node = (await world.add_node(devices=2)).node_id
    share = await add_share(world, devices=2000)
    await world.submit(share, count=2, devices=ONE_DEVICE, priority=10)
    leader = world.leader()
    await leader.step()
    tasks = (await world.poll(node)).assignments
    for task in tasks:
        await world.run_task(node, task)
    high = await world.submit(share, devices=DeviceRequest(count=2), priority=80)
    await leader.step()
    for task in tasks:
        await world.end_task(node, task, exit_code=-15, reason=EndReason.PREEMPTED)
    leader.forget()
    await world.submit(share, devices=ONE_DEVICE, priority=90)  # goes before it, but not to what was freed for it
    await leader.step()
    bound = await world.fetch("SELECT job_id FROM allocation WHERE state <> 'released'")
    assert [each["job_id"] for each in bound] == [high.job_id]


async def test_preemption_when_one_of_two_victims_left_then_a_plan_offers_nobody_else_what_it_left(
    world: World,
) -> None:
    first, _ = [(await world.add_node(devices=1)).node_id for _ in range(2)]
    share = await add_share(world, devices=2000)
    await world.submit(share, count=2, devices=ONE_DEVICE, priority=10)
    leader = world.leader()
    await leader.step()
    running = {node: (await world.poll(node)).assignments[0] for node in world.nodes}
    for node, task in running.items():
        await world.run_task(node, task)
    await world.submit(share, devices=ONE_DEVICE, count=2, gang=True, priority=90)
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE state = 'releasing'") == 2
    await world.end_task(first, running[first], exit_code=-15, reason=EndReason.PREEMPTED)
    told = await plan(world, share, make_spec(share.virtual_pool_id, devices=ONE_DEVICE))
    assert told.offers == []


async def test_preemption_when_the_rules_changed_since_the_plan_then_nobody_is_stopped_case_5(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = (await world.add_node(devices=1)).node_id
    share = await add_share(world)
    await world.submit(share, devices=ONE_DEVICE, priority=10)
    leader = world.leader()
    await leader.step()
    (task,) = (await world.poll(node)).assignments
    await world.run_task(node, task)
    await world.submit(share, devices=ONE_DEVICE, priority=90)
    plan_alone = leader._plan

    async def plan_then_change(shard: Shard) -> Plan | None:
        found = await plan_alone(shard)
        await world.tell_virtual_pool(share.model_copy(update={"preemption": Preemption.NEVER, "generation": 3}))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(leader, "_plan", plan_then_change)
        await leader.step()
    await leader.step()
    assert await world.value("SELECT state FROM allocation") == "active"


async def test_preemption_when_the_same_two_meet_again_then_it_is_halted_with_an_alarm_and_explained_case_10(
    world: World,
) -> None:
    node = (await world.add_node(devices=1)).node_id
    share = await add_share(world)
    low = await world.submit(share, devices=ONE_DEVICE, priority=10, retry=AGAIN)
    leader = world.leader()
    for exit_code in (1, None):  # its first attempt is over, its second runs
        await leader.step()
        (task,) = (await world.poll(node)).assignments
        await world.run_task(node, task)
        if exit_code is not None:
            await world.end_task(node, task, exit_code=exit_code)
    high = await world.submit(share, devices=ONE_DEVICE, priority=90)
    await world.value(  # as if the first had been stopped for the one that waits now
        "INSERT INTO eviction (allocation_id, task_id, claimant_id, at) SELECT a.id, a.task_id, t.id, clock_timestamp()"
        " FROM allocation a, task t WHERE a.state = 'released' AND t.job_id = $1 RETURNING 1",
        high.job_id,
    )
    leader.forget()
    for _ in range(3):
        await leader.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE state = 'active'") == 1
    (event,) = await world.events("preemption_halted")
    assert (event["claimant_job_id"], event["victim_job_id"], event["why"]) == (
        str(high.job_id),
        str(low.job_id),
        "loop",
    )
    async with world.database.begin(TenantScope(share.tenant_id)) as unit:
        told = await explain_job(unit, high.job_id)
    assert told.dominant == "limit_reached"
    assert any("loop" in item.effect for item in told.would_unblock)


async def test_halted_when_two_are_told_at_one_instant_then_generations_of_the_pool_rise(world: World) -> None:
    node = (await world.add_node(devices=2)).node_id
    share = await add_share(world, devices=2000, preemption=Preemption.NEVER)
    await world.submit(share, count=2, devices=ONE_DEVICE)
    leader = world.leader()
    await leader.step()
    for task in (await world.poll(node)).assignments:
        await world.run_task(node, task)
    await world.submit(share, count=2, devices=ONE_DEVICE)
    await leader.step()
    shard = leader.shard
    assert shard is not None
    pairs = zip(shard.waiting, shard.holders, strict=True)
    halted = [Halted(claimant, victim, Spared.LOOP) for claimant, victim in pairs]
    async with world.database.begin(SYSTEM) as unit:
        await tell_halted(unit, shard, halted, 1_000_000)
    rows = await world.fetch("SELECT generation FROM outbox WHERE subject LIKE '%/preemption'")
    generations = [row["generation"] for row in rows]
    assert len(generations) == len(set(generations)) == 2
