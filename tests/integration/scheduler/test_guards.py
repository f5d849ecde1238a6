"""What the database itself refuses: two holders of one slice, a former leader, too much use, broken counters."""

import asyncio
from collections.abc import Sequence
from contextvars import Context
from datetime import UTC, datetime
from uuid import uuid4

import asyncpg
import pytest

from millpond_contracts.bodies.groups import DeviceRequest
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, LeaseLost, acquire_lease
from millpond_scheduler.domain.cycle import plan_batch
from millpond_scheduler.domain.plans import Placement
from millpond_scheduler.loops.leader import LEASE_NAME
from millpond_scheduler.store.guards import GuardFailed
from millpond_scheduler.usecases.cycle import Batch, commit_batch
from millpond_scheduler.usecases.loading import load_shard
from millpond_scheduler.usecases.shard import Shard
from tests.integration.databases import MigratedDatabase
from tests.integration.scheduler.world import ONE_DEVICE, World, limits

pytestmark = pytest.mark.integration

REFUSALS = (GuardFailed, asyncpg.CheckViolationError, LeaseLost)


async def load(database: Database) -> tuple[Lease, Shard]:
    """A leader of its own: a lease, and a memory loaded under it."""
    lease = await acquire_lease(database, LEASE_NAME, uuid4(), 30)
    assert lease is not None
    async with database.begin(SYSTEM) as unit:
        return lease, await load_shard(unit, lease)


def plan_each(shard: Shard) -> list[Placement]:
    """A plan for each waiting task as if it were alone."""
    placements: list[Placement] = []
    for task in shard.waiting.values():
        plan = plan_batch(shard.snapshot, [task.queued], shard.virtual_pools, 0, cache=shard.cache)
        placements += plan.placements
        shard.snapshot.undo_to(plan.mark)
    return placements


def make_batch(lease: Lease, shard: Shard, placements: Sequence[Placement]) -> Batch:
    return Batch(shard, lease.epoch, placements, datetime.now(UTC))


async def commit(database: Database, lease: Lease, shard: Shard, placement: Placement) -> str:
    try:
        async with database.begin(SYSTEM) as unit:
            await commit_batch(unit, lease, make_batch(lease, shard, [placement]))
    except REFUSALS as error:
        return type(error).__name__
    return "won"


async def expire_lease(world: World) -> None:
    await world.value("UPDATE lease SET expires_at = clock_timestamp() WHERE name = $1 RETURNING 1", LEASE_NAME)


async def test_one_slice_when_fifty_connections_commit_then_exactly_one_wins(
    world: World, migrated: MigratedDatabase
) -> None:
    await world.add_node(devices=1, cpu=1_000_000, memory=1_000_000)
    share = await world.add_virtual_pool()
    for _ in range(50):
        await world.submit(share, devices=ONE_DEVICE)
    database = migrated.database("scheduler", 50)
    await database.open()
    try:
        lease, shard = await load(database)
        placements = plan_each(shard)
        assert len({placement.holding.devices for placement in placements}) == 1
        outcomes = await asyncio.gather(*(commit(database, lease, shard, item) for item in placements))
    finally:
        await database.close()
    assert outcomes.count("won") == 1
    assert outcomes.count("CheckViolationError") == 49
    assert await world.value("SELECT count(*) FROM allocation") == 1
    assert len(await world.events("allocation_bound")) == 1
    await world.assert_counters_are_true()


async def test_one_slice_when_two_leaders_of_different_epochs_commit_then_the_newer_wins(world: World) -> None:
    await world.add_node(devices=1)
    share = await world.add_virtual_pool()
    for _ in range(2):
        await world.submit(share, devices=ONE_DEVICE)
    old_lease, old_shard = await load(world.database)
    old_plan = plan_each(old_shard)[0]
    await expire_lease(world)
    new_lease, new_shard = await load(world.database)
    assert new_lease.epoch > old_lease.epoch
    outcomes = await asyncio.gather(
        commit(world.database, old_lease, old_shard, old_plan),
        commit(world.database, new_lease, new_shard, plan_each(new_shard)[1]),
    )
    assert list(outcomes) == ["LeaseLost", "won"]
    await world.assert_counters_are_true()


async def test_takeover_when_the_former_leader_is_inside_its_commit_then_it_waits_for_the_end(world: World) -> None:
    await world.add_node(devices=1)
    share = await world.add_virtual_pool()
    await world.submit(share, devices=ONE_DEVICE)
    lease, shard = await load(world.database)
    async with world.database.begin(SYSTEM) as unit:
        await commit_batch(unit, lease, make_batch(lease, shard, plan_each(shard)))
        expiring = asyncio.create_task(expire_lease(world), context=Context())
        await asyncio.sleep(0.1)
        assert not expiring.done()  # the epoch is locked against a change until this transaction ends
    await expiring
    _, after = await load(world.database)
    assert len(after.live) == 1


async def test_commit_when_the_task_was_cancelled_meanwhile_then_nothing_is_bound(world: World) -> None:
    await world.add_node(devices=1)
    share = await world.add_virtual_pool()
    job = await world.submit(share, devices=ONE_DEVICE)
    lease, shard = await load(world.database)
    placement = plan_each(shard)[0]
    await world.cancel(share, job.job_id)
    assert await commit(world.database, lease, shard, placement) == "GuardFailed"
    assert await world.value("SELECT count(*) FROM allocation") == 0


async def test_commit_when_the_node_was_cordoned_or_reopened_meanwhile_then_refused(world: World) -> None:
    node = await world.add_node(devices=1)
    share = await world.add_virtual_pool()
    await world.submit(share, devices=ONE_DEVICE)
    lease, shard = await load(world.database)
    placement = plan_each(shard)[0]
    await world.change_node(node.node_id, schedulable=False)
    assert await commit(world.database, lease, shard, placement) == "GuardFailed"
    await world.change_node(node.node_id, schedulable=True, incarnation=2)
    assert await commit(world.database, lease, shard, placement) == "GuardFailed"


async def test_commit_when_the_limit_was_lowered_meanwhile_then_the_trigger_refuses(world: World) -> None:
    await world.add_node(devices=2)
    share = await world.add_virtual_pool()
    await world.submit(share, devices=ONE_DEVICE)
    lease, shard = await load(world.database)
    placement = plan_each(shard)[0]
    await world.tell_virtual_pool(share.model_copy(update={"limits": limits(devices=500), "generation": 2}))
    assert await commit(world.database, lease, shard, placement) == "CheckViolationError"
    assert await world.value("SELECT count(*) FROM allocation") == 0


async def test_limit_when_lowered_below_use_then_only_growth_is_refused(world: World) -> None:
    node = await world.add_node(devices=2)
    share = await world.add_virtual_pool()
    await world.submit(share, devices=ONE_DEVICE, count=2)
    await world.leader().step()
    await world.tell_virtual_pool(share.model_copy(update={"limits": limits(devices=500), "generation": 2}))
    with pytest.raises(asyncpg.CheckViolationError, match="would be 2001 of at most 500"):
        await world.value("UPDATE usage SET used = used + 1 WHERE resource = 'device' RETURNING 1")
    first, _ = (await world.poll(node.node_id)).assignments
    await world.run_task(node.node_id, first)
    await world.end_task(node.node_id, first)
    assert await world.value("SELECT used FROM usage WHERE resource = 'device'") == 1000
    await world.assert_counters_are_true()


@pytest.mark.parametrize(
    "change",
    [
        "free_cpu_milli = -1",
        "free_memory_mib = -1",
        "free_milli = ARRAY[1000, -1]",
        "free_milli = ARRAY[1000, NULL]::int[]",
        "free_milli = ARRAY[1000, 1000, 1000]",
        "free_milli = '{}'",
        "free_milli[9] = 0",
        "free_milli = ARRAY[[1000], [1000]]",
        "free_mib = ARRAY[NULL, 1]::int[]",
        "free_mib = ARRAY[-1, 0]",
        "device_ids = ARRAY['one']",
    ],
)
async def test_guard_when_a_counter_would_be_impossible_then_refused(world: World, change: str) -> None:
    await world.add_node(devices=2)
    with pytest.raises(asyncpg.CheckViolationError):
        await world.value(f"UPDATE node_guard SET {change} RETURNING 1")


async def test_usage_when_it_would_fall_below_zero_then_refused(world: World) -> None:
    await world.add_virtual_pool()
    with pytest.raises(asyncpg.CheckViolationError):
        await world.value("UPDATE usage SET used = -1 RETURNING 1")


async def test_task_when_it_lives_on_a_node_then_a_second_allocation_is_refused(world: World) -> None:
    await world.add_node()
    share = await world.add_virtual_pool()
    await world.submit(share)
    await world.leader().step()
    with pytest.raises(asyncpg.UniqueViolationError):
        await world.value(
            "INSERT INTO allocation SELECT (jsonb_populate_record(a, jsonb_build_object('id', gen_random_uuid()))).*"
            " FROM allocation a RETURNING 1"
        )


async def test_leader_when_a_counter_is_corrupt_then_it_repairs_alarms_and_places(world: World) -> None:
    await world.add_node(devices=1)
    share = await world.add_virtual_pool()
    await world.submit(share, devices=ONE_DEVICE)
    await world.value("UPDATE node_guard SET free_milli = ARRAY[0] RETURNING 1")
    leader = world.leader()
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation") == 0
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation") == 1
    drift = (await world.events("usage_drift_found"))[0]
    assert drift["counter"].endswith("/device_milli")
    assert (drift["expected"], drift["found"]) == (1000, 0)
    await world.assert_counters_are_true()


async def test_slices_when_placed_and_released_then_milli_and_memory_follow_exactly(world: World) -> None:
    node = await world.add_node(devices=1)
    share = await world.add_virtual_pool()
    leader = world.leader()
    await world.submit(share, devices=DeviceRequest(milli=300))
    await world.submit(share, devices=DeviceRequest(milli=250, memory_mib=5000))
    await leader.step()
    guard = (await world.fetch("SELECT free_milli, free_mib FROM node_guard"))[0]
    assert (list(guard["free_milli"]), list(guard["free_mib"])) == ([450], [16_000 - 4800 - 5000])
    for task in (await world.poll(node.node_id)).assignments:
        await world.run_task(node.node_id, task)
        await world.end_task(node.node_id, task)
    guard = (await world.fetch("SELECT free_milli, free_mib FROM node_guard"))[0]
    assert (list(guard["free_milli"]), list(guard["free_mib"])) == ([1000], [16_000])


async def test_leader_when_one_task_is_refused_again_and_again_then_the_others_are_placed(world: World) -> None:
    await world.add_node(cpu=2000)
    await world.add_node(cpu=64_000)
    share = await world.add_virtual_pool()
    bad = await world.submit(share, cpu=1500, priority=90)
    # Something that no recount repairs: the node that fits best takes nothing, and the leader's view does not know it.
    await world.value("UPDATE node_guard SET open = false WHERE total_cpu_milli = 2000 RETURNING 1")
    good = await world.submit(share, cpu=32_000)
    leader = world.leader()
    for _ in range(6):
        await leader.step()
    rows = await world.fetch("SELECT job_id FROM allocation")
    assert [row["job_id"] for row in rows] == [good.job_id]
    assert await world.job_state(bad.job_id) == "pending"
