"""Hardware partitions in rows: the guard on their slices, one mode at a time, and what a change of mode leaves."""

import asyncio

import asyncpg
import pytest

from millpond_contracts.bodies.groups import DeviceRequest
from millpond_contracts.bodies.nodes import DeviceView, NodeView
from millpond_contracts.partitions import PARTITION_MODE, find_geometry
from tests.integration.databases import MigratedDatabase
from tests.integration.scheduler.test_guards import commit, load, plan_each
from tests.integration.scheduler.world import ONE_DEVICE, World, make_device

pytestmark = pytest.mark.integration

MODEL = "A100 SXM4 80GB"
ALL_FREE = 0x11111111


def divided(device: DeviceView) -> DeviceView:
    """The same device in partition mode."""
    geometry = find_geometry(MODEL)
    assert geometry is not None
    names = tuple(profile.name for profile in geometry.profiles)
    return device.model_copy(update={"model_key": MODEL, "partition_mode": PARTITION_MODE, "profiles": names})


async def add_divided(world: World, devices: int = 1) -> NodeView:
    node = await world.add_node(cpu=1_000_000, memory=1_000_000)
    made = tuple(divided(make_device(memory_mib=81_920)) for _ in range(devices))
    return await world.change_node(node.node_id, devices=made)


def ask(profile: str) -> DeviceRequest:
    return DeviceRequest(profile=profile)


@pytest.mark.parametrize("profiles", [("4g.40gb",) * 20, ("1g.10gb", "1g.20gb") * 10])
async def test_last_place_when_twenty_connections_commit_then_exactly_one_wins(
    world: World, migrated: MigratedDatabase, profiles: tuple[str, ...]
) -> None:
    """Also where the places only overlap, and milli and memory would have been enough for all of them."""
    await add_divided(world)
    share = await world.add_virtual_pool()
    for profile in profiles:
        await world.submit(share, devices=ask(profile))
    database = migrated.database("scheduler", 20)
    await database.open()
    try:
        lease, shard = await load(database)
        outcomes = await asyncio.gather(*(commit(database, lease, shard, one) for one in plan_each(shard)))
    finally:
        await database.close()
    assert sorted(outcomes) == ["CheckViolationError"] * 19 + ["won"]
    assert await world.value("SELECT count(*) FROM allocation") == 1
    await world.assert_counters_are_true()


async def test_partitions_when_bound_and_ended_then_their_slices_follow_and_the_share_tells_them(world: World) -> None:
    node = await add_divided(world)
    share = await world.add_virtual_pool()
    leader = world.leader()
    for profile in ("3g.40gb", "1g.10gb", "2g.20gb", "1g.20gb"):
        await world.submit(share, devices=ask(profile))
        await leader.step()
    guard = (await world.fetch("SELECT free_milli, free_mib, free_slots FROM node_guard"))[0]
    # 4 to 7, then 0, then 2 and 3; the last finds slice 1 alone and waits.
    assert (list(guard["free_milli"]), list(guard["free_slots"])) == ([125], [0x10])
    assert list(guard["free_mib"]) == [10_240]
    await world.assert_counters_are_true()
    tasks = (await world.poll(node.node_id)).assignments
    told = {(own.profile, own.start, own.slices) for task in tasks if (own := task.devices[0].partition) is not None}
    assert told == {("3g.40gb", 4, 4), ("1g.10gb", 0, 1), ("2g.20gb", 2, 2)}
    assert await world.value("SELECT used FROM usage WHERE resource = 'device'") == 500 + 125 + 250
    reason = (await world.value("SELECT body FROM verdict"))["dominant"]
    assert reason == "not_enough_devices"
    for task in tasks:
        await world.run_task(node.node_id, task)
        await world.end_task(node.node_id, task)
    assert await world.value("SELECT free_slots[1] FROM node_guard") == ALL_FREE
    await leader.step()  # the one that waited
    assert await world.value("SELECT free_slots[1] FROM node_guard") == ALL_FREE - 0x11000000
    await world.assert_counters_are_true()


@pytest.mark.parametrize(
    "change",
    [
        "free_milli = ARRAY[750]",  # as if a share were lent beside partitions
        "free_slots = ARRAY[x'01111111'::bigint]",  # a partition without its milli
        "free_slots = ARRAY[x'0111110f'::bigint], free_milli = ARRAY[875]",  # a slice taken twice
        "free_slots = ARRAY[-1]",
        "free_slots = ARRAY[NULL]::bigint[]",
        "free_slots = '{}'",
        "slot_counts = ARRAY[0]",  # of a device that is not in partition mode
        "slot_counts = '{}'",
    ],
)
async def test_guard_when_a_device_would_be_in_two_modes_then_refused(world: World, change: str) -> None:
    await add_divided(world)
    with pytest.raises(asyncpg.CheckViolationError):
        await world.value(f"UPDATE node_guard SET {change} RETURNING 1")


async def test_commit_when_the_devices_mode_changed_meanwhile_then_refused(world: World) -> None:
    node = await world.add_node(devices=1)
    share = await world.add_virtual_pool()
    await world.submit(share, devices=ONE_DEVICE)
    lease, shard = await load(world.database)
    placement = plan_each(shard)[0]
    await world.change_node(node.node_id, devices=(divided(node.devices[0]),))
    assert await commit(world.database, lease, shard, placement) == "GuardFailed"


async def test_capacity_when_a_device_is_repartitioned_then_replaced_as_a_set_per_mode_case_26(world: World) -> None:
    """The device is never offered whole and in partitions at once, and never as what it was before."""
    whole = (await world.add_node(devices=1, cpu=1_000_000, memory=1_000_000)).devices[0]
    node = next(iter(world.nodes))
    share, leader = await world.add_virtual_pool(), world.leader()
    await world.submit(share, devices=DeviceRequest(milli=300))
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation") == 1

    # The agent's report wins, though the share's end was not told yet: nothing of either mode until it is.
    await world.change_node(node, devices=(divided(whole),))
    await world.submit(share, devices=ask("1g.10gb"))
    await world.submit(share, devices=ONE_DEVICE)
    await leader.step()
    guard = (await world.fetch("SELECT free_milli, free_slots, slot_counts, shrunk FROM node_guard"))[0]
    assert (list(guard["free_milli"]), list(guard["free_slots"]), list(guard["slot_counts"])) == ([0], [0], [8])
    assert guard["shrunk"]
    assert await world.value("SELECT count(*) FROM allocation") == 1
    (task,) = (await world.poll(node)).assignments
    await world.run_task(node, task)
    await world.end_task(node, task)

    await leader.step()  # the partition alone: the whole device is gone
    (task,) = (await world.poll(node)).assignments
    assert task.devices[0].partition is not None
    guard = (await world.fetch("SELECT free_milli, free_slots, shrunk FROM node_guard"))[0]
    assert (list(guard["free_milli"]), list(guard["free_slots"])) == ([875], [ALL_FREE - 0x1000000])
    assert not guard["shrunk"]

    # Rebooted without its partitions: the whole device is back once the lost one's end is told.
    await world.change_node(node, devices=(whole,))
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE state <> 'released'") == 1
    await world.end_task(node, task)
    await leader.step()
    assert await world.value("SELECT free_milli[1] FROM node_guard") == 0
    assert await world.value("SELECT free_slots FROM node_guard") == []
    await world.assert_counters_are_true()
