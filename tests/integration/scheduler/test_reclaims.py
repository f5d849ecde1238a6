"""What was lent comes back: victims are stopped with grace, waived, claimed once, and nobody is over at any instant."""

from typing import Any
from uuid import UUID

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.groups import DeviceRequest
from millpond_contracts.bodies.jobs import RetryReason, RetrySpec
from millpond_contracts.bodies.tenants import Limit, Limits, VirtualPoolView
from millpond_contracts.bodies.work import Assignment
from millpond_contracts.ids import NodeId
from millpond_kernel.db import SYSTEM
from millpond_scheduler.loops.leader import Leader
from millpond_scheduler.usecases.reclaiming import find_above_limits
from millpond_scheduler.usecases.stopping import stop
from tests.integration.scheduler.world import ONE_DEVICE, World, limits

pytestmark = pytest.mark.integration

THREE = DeviceRequest(count=3)


def lender(milli: int) -> Limits:
    return with_devices(Limit(guaranteed=milli, lend=milli))


def with_devices(limit: Limit) -> Limits:
    return limits().model_copy(update={"devices": {"t4": limit}})


BORROWER = with_devices(Limit(borrow=64_000))


async def begin(world: World, node: NodeId) -> list[Assignment]:
    tasks = (await world.poll(node)).assignments
    for task in tasks:
        await world.run_task(node, task)
    return tasks


async def stopping(world: World) -> list[Any]:
    rows = await world.fetch(
        "SELECT id, claimed_by, stop_reason, waived_from, stop_requested_at FROM allocation"
        " WHERE state = 'releasing' ORDER BY id"
    )
    assert all(row["waived_from"] == row["stop_requested_at"] for row in rows)
    return rows


async def held(world: World) -> int:
    return int(await world.value("SELECT coalesce(sum(used), 0) FROM usage WHERE resource = 'device'"))


async def test_reclaim_when_two_claim_in_one_cycle_then_one_victim_each_and_never_more_than_there_is_q1(
    world: World,
) -> None:
    node = (await world.add_node(devices=6)).node_id
    borrower = await world.add_virtual_pool(given=BORROWER)
    second, third = [await world.add_virtual_pool(given=lender(3000)) for _ in range(2)]
    for _ in range(2):
        await world.submit(borrower, devices=THREE)
    leader = world.leader()
    await leader.step()
    borrowed = {task.allocation_id: task for task in await begin(world, node)}
    jobs = [await world.submit(share, devices=THREE) for share in (second, third)]
    await leader.step()
    victims = await stopping(world)
    assert {row["id"] for row in victims} == set(borrowed)
    claimants = await world.fetch("SELECT id FROM task WHERE job_id = ANY($1)", [job.job_id for job in jobs])
    assert {row["claimed_by"] for row in victims} == {row["id"] for row in claimants}
    assert {row["stop_reason"] for row in victims} == {"reclaimed"}
    for count, task in enumerate(borrowed.values(), start=1):
        await leader.step()
        assert await held(world) == 6000
        await world.end_task(node, task, exit_code=-15, reason=EndReason.RECLAIMED)
        await leader.step()
        assert await held(world) == 6000
        started = await world.value("SELECT count(*) FROM allocation WHERE state = 'bound'")
        assert started == count
    await world.assert_counters_are_true()
    assert {await world.job_state(job.job_id) for job in jobs} == {"pending"}  # bound: no agent has taken them yet


async def test_reclaim_when_the_claimant_waits_then_explain_says_so_and_what_is_freed_is_kept_for_it(
    world: World,
) -> None:
    node = (await world.add_node(devices=2)).node_id
    borrower = await world.add_virtual_pool(given=BORROWER)
    owner = await world.add_virtual_pool(given=lender(2000))
    retry = RetrySpec(max=3, on=(RetryReason.PREEMPTED,))
    lent = [await world.submit(borrower, devices=ONE_DEVICE, retry=retry) for _ in range(2)]
    leader = world.leader()
    await leader.step()
    tasks = await begin(world, node)
    job = await world.submit(owner, devices=DeviceRequest(count=2), priority=1)
    await leader.step()
    await leader.step()
    assert await world.value("SELECT dominant FROM verdict WHERE job_id = $1", job.job_id) == "reclaiming"
    # One of two has stopped and waits again, first in the order: what it left is not given back to it.
    await world.end_task(node, tasks[0], exit_code=-15, reason=EndReason.RECLAIMED)
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE state = 'bound'") == 0
    await world.end_task(node, tasks[1], exit_code=-15, reason=EndReason.RECLAIMED)
    await leader.step()
    bound = await world.fetch("SELECT job_id FROM allocation WHERE state = 'bound'")
    assert [row["job_id"] for row in bound] == [job.job_id]
    assert {await world.job_state(each.job_id) for each in lent} == {"running"}  # each waits for its next attempt
    for _ in range(5):
        await leader.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE stop_reason = 'reclaimed'") == 2
    await world.assert_counters_are_true()


async def test_reclaim_when_the_leader_is_replaced_then_the_claim_holds(world: World) -> None:
    node = (await world.add_node(devices=2)).node_id
    borrower = await world.add_virtual_pool(given=BORROWER)
    owner = await world.add_virtual_pool(given=lender(2000))
    for _ in range(2):
        await world.submit(borrower, devices=ONE_DEVICE)
    first = world.leader()
    await first.step()
    tasks = await begin(world, node)
    job = await world.submit(owner, devices=DeviceRequest(count=2))
    await first.step()
    await world.submit(borrower, devices=ONE_DEVICE, priority=900)
    await world.value("UPDATE lease SET expires_at = clock_timestamp() RETURNING 1")
    second = world.leader()
    await world.end_task(node, tasks[0], exit_code=-15, reason=EndReason.RECLAIMED)
    await second.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE state = 'bound'") == 0
    await world.end_task(node, tasks[1], exit_code=-15, reason=EndReason.RECLAIMED)
    await second.step()
    bound = await world.fetch("SELECT job_id FROM allocation WHERE state = 'bound'")
    assert [row["job_id"] for row in bound] == [job.job_id]


async def test_reclaim_when_a_victim_ends_between_plan_and_commit_then_the_next_plan_chooses_anew(
    world: World,
) -> None:
    node = (await world.add_node(devices=1)).node_id
    borrower = await world.add_virtual_pool(given=BORROWER)
    owner = await world.add_virtual_pool(given=lender(1000))
    await world.submit(borrower, devices=ONE_DEVICE)
    leader = world.leader()
    await leader.step()
    (task,) = await begin(world, node)
    job = await world.submit(owner, devices=ONE_DEVICE)
    shard = await leader._take_changes()
    plan = await leader._plan(shard)
    assert plan is not None
    assert len(plan.reclaims) == 1
    await world.end_task(node, task)
    await leader._reclaim(shard, plan)
    assert shard.claims == {}
    await leader.step()
    bound = await world.fetch("SELECT job_id FROM allocation WHERE state = 'bound'")
    assert [row["job_id"] for row in bound] == [job.job_id]
    assert await world.value("SELECT count(*) FROM allocation WHERE stop_reason = 'reclaimed'") == 0


async def lowered(world: World, share: VirtualPoolView, milli: int, *, reclaim_in_seconds: float | None) -> None:
    now = await world.database.now()
    at = None if reclaim_in_seconds is None else now.fromtimestamp(now.timestamp() + reclaim_in_seconds, now.tzinfo)
    await world.tell_virtual_pool(
        share.model_copy(update={"limits": limits(devices=milli), "reclaim_at": at, "generation": share.generation + 1})
    )


async def stop_above(world: World, leader: Leader) -> list[UUID]:
    now = await world.database.now()
    async with world.database.begin(SYSTEM) as unit:
        found = await find_above_limits(unit, now)
    if found:
        async with world.database.begin(SYSTEM) as unit:
            await stop(unit, found, EndReason.RECLAIMED, now)
    await leader.step()
    return found


async def test_limit_when_lowered_under_its_use_then_over_limit_nothing_new_and_reclaim_only_when_asked_q3(
    world: World,
) -> None:
    node = (await world.add_node(devices=10, cpu=64_000, memory=64_000)).node_id
    share = await world.add_virtual_pool(given=limits(devices=10_000))
    for priority in (90, 10):
        await world.submit(share, count=5, devices=ONE_DEVICE, priority=priority)
    leader = world.leader()
    await leader.step()
    tasks = {task.allocation_id: task for task in await begin(world, node)}
    assert len(tasks) == 10
    await lowered(world, share, 4000, reclaim_in_seconds=None)
    line = (await world.fetch("SELECT used, hard FROM usage WHERE resource = 'device'"))[0]
    assert (line["used"], line["hard"]) == (10_000, 4000)
    waiting = await world.submit(share, devices=ONE_DEVICE)
    assert await stop_above(world, leader) == []
    assert await world.job_state(waiting.job_id) == "pending"
    # With a grace that is not over, nothing either; then the six least costly, once.
    share = share.model_copy(update={"generation": share.generation + 1})
    await lowered(world, share, 4000, reclaim_in_seconds=3600)
    assert await stop_above(world, leader) == []
    share = share.model_copy(update={"generation": share.generation + 1})
    await lowered(world, share, 4000, reclaim_in_seconds=-1)
    victims = await stop_above(world, leader)
    assert len(victims) == 6
    assert await stop_above(world, leader) == []
    priorities = await world.fetch("SELECT priority FROM allocation WHERE state = 'active'")
    assert [row["priority"] for row in priorities] == [90] * 4
    for victim in victims:
        await world.end_task(node, next(task for key, task in tasks.items() if key == victim), -15)
    assert await held(world) == 4000
    await leader.step()
    assert await world.job_state(waiting.job_id) == "pending"
    await world.assert_counters_are_true()
