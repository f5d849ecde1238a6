"""What a leader keeps in memory over a lapsed lease, and when it has to read everything anew."""

import asyncio

import pytest

from tests.integration.scheduler.world import World

pytestmark = pytest.mark.integration

LEASE_SECONDS = 0.4


async def test_memory_when_the_lease_lapsed_and_nobody_took_it_then_kept_and_right(world: World) -> None:
    await world.add_node()
    share = await world.add_virtual_pool()
    leader = world.leader(lease_seconds=LEASE_SECONDS)
    await leader.step()
    before, lease = leader.shard, leader.lease
    assert before is not None
    assert lease is not None
    await asyncio.sleep(2 * LEASE_SECONDS)
    await world.submit(share)
    assert await leader.step()
    assert leader.lease is not None
    assert leader.lease.epoch == lease.epoch + 1
    assert leader.shard is before
    assert len(before.live) == 1
    await world.assert_counters_are_true()


async def test_memory_when_another_leader_held_the_lease_then_read_anew(world: World) -> None:
    await world.add_node()
    share = await world.add_virtual_pool()
    first, second = (world.leader(lease_seconds=LEASE_SECONDS) for _ in range(2))
    await first.step()
    before = first.shard
    await asyncio.sleep(2 * LEASE_SECONDS)
    await world.submit(share)
    assert await second.step()
    await asyncio.sleep(2 * LEASE_SECONDS)
    await first.step()
    assert first.shard is not before
    assert first.shard is not None
    assert len(first.shard.live) == 1
    await world.assert_counters_are_true()
