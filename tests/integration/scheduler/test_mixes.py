"""What usually comes to a pool is learned from the rows of its newest jobs."""

import pytest

from millpond_contracts.bodies.groups import DeviceRequest
from millpond_kernel.db import SYSTEM
from millpond_scheduler.domain.fragmentation import DemandClass, DemandMix
from millpond_scheduler.usecases.mirror import Mirror, refresh_mirror
from millpond_scheduler.usecases.mixes import refresh_mixes
from tests.integration.scheduler.world import ONE_DEVICE, World

pytestmark = pytest.mark.integration


async def test_mix_when_jobs_came_then_leader_and_plans_learn_the_same_of_them(world: World) -> None:
    await world.add_node(devices=2)
    share, rival = await world.add_virtual_pool(), await world.add_virtual_pool()
    await world.submit(share, count=3, devices=ONE_DEVICE)
    await world.submit(rival, count=2, devices=ONE_DEVICE, memory=2048)
    await world.submit(share, count=9)
    leader, mirror = world.leader(), Mirror()
    await leader.step()
    assert leader.shard is not None
    known = leader.shard.snapshot.packing_of(world.pool.pool_id)
    whole, pair = DemandClass(1000, 1, 1000, ("t4",)), DemandClass(1000, 2, 1000, ("t4",))
    assert known.mix == DemandMix(((whole, 5),), cpu_alone_milli=9_000)
    async with world.database.begin(SYSTEM) as unit:
        await refresh_mirror(unit, mirror)
    assert mirror.shard.snapshot.packing_of(world.pool.pool_id) == known

    await world.submit(share, count=5, devices=DeviceRequest(count=2))
    async with world.database.begin(SYSTEM) as unit:
        await refresh_mixes(unit, leader.shard)
    assert leader.shard.snapshot.packing_of(world.pool.pool_id).mix == DemandMix(
        ((whole, 5), (pair, 5)), cpu_alone_milli=9_000
    )
