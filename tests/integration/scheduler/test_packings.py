"""A packing is proposed by replays of the pool's own jobs, and is the leader's only while an operator wants it."""

import pytest

from millpond_contracts.bodies.groups import DeviceRequest
from millpond_contracts.bodies.packings import PackingScore, PackingSetting, PackingState, PackingView
from millpond_contracts.ids import PackingId
from millpond_kernel.db import SYSTEM
from millpond_kernel.problem import ProblemError
from millpond_scheduler.domain.scarcity import Scarcity, Setting
from millpond_scheduler.store import packings
from millpond_scheduler.store.packings import Replay
from millpond_scheduler.usecases.mixes import refresh_mixes
from millpond_scheduler.usecases.packings import (
    accept_packing,
    compute_packing,
    request_packing,
    tell_packing,
    withdraw_packing,
)
from tests.integration.scheduler.test_partitions import add_divided, divided
from tests.integration.scheduler.world import ONE_DEVICE, World, make_device, member

pytestmark = pytest.mark.integration

OPERATOR = member(None)
OURS = PackingSetting(quantum_milli=50, core_price=5000, device_price=0)
DEFAULT = PackingSetting(
    quantum_milli=Setting().quantum_milli,
    core_price=Setting().scarcity.core,
    device_price=Setting().scarcity.device,
)


async def ask(world: World) -> PackingId:
    async with world.database.begin(SYSTEM) as unit:
        return (await request_packing(unit, OPERATOR, world.pool.pool_id)).packing_id


async def read(world: World, packing: PackingId) -> PackingView:
    async with world.database.begin(SYSTEM) as unit:
        return await tell_packing(unit, packing)


async def test_packing_when_computed_then_the_pools_own_jobs_were_replayed_on_its_nodes(world: World) -> None:
    await world.add_node(devices=2)
    await world.add_node(devices=2)
    share = await world.add_virtual_pool()
    for _ in range(3):
        await world.submit(share, devices=ONE_DEVICE)
    await world.submit(share, devices=DeviceRequest(count=2))
    await world.submit(share)
    packing = await ask(world)
    with pytest.raises(ProblemError, match="being computed"):
        await ask(world)
    assert await compute_packing(world.database, packing)
    assert not await compute_packing(world.database, packing)  # a doubled message
    found = await read(world, packing)
    assert (found.state, found.jobs, found.nodes, found.error) == (PackingState.READY, 5, 2, None)
    assert found.scores is not None
    assert found.gain_points is not None
    scores = {score.setting: score.allocated_percent for score in found.scores}
    assert found.setting == found.scores[0].setting
    assert found.gain_points == pytest.approx(scores[found.scores[0].setting] - scores[DEFAULT])
    assert found.gain_points >= 0
    assert (found.demand_change_permille, found.is_stale) == (0, False)


async def test_packing_when_there_is_nothing_to_replay_then_it_says_why(world: World) -> None:
    packing = await ask(world)
    assert await compute_packing(world.database, packing)
    found = await read(world, packing)
    assert (found.state, found.setting) == (PackingState.FAILED, None)
    assert found.error == "The pool has no nodes with devices of one flavor."
    async with world.database.begin(SYSTEM) as unit:
        with pytest.raises(ProblemError, match="it has no setting"):
            await accept_packing(unit, OPERATOR, packing)


async def test_packing_when_devices_are_divided_then_only_the_others_are_replayed(world: World) -> None:
    for devices in ((), (False, True), (False, False)):
        node = await world.add_node(cpu=1_000_000, memory=1_000_000)
        made = tuple(make_device(memory_mib=81_920) for _ in devices)
        chosen = tuple(divided(each) if is_it else each for each, is_it in zip(made, devices, strict=True))
        await world.change_node(node.node_id, devices=chosen)
    await add_divided(world, devices=2)
    share = await world.add_virtual_pool()
    await world.submit(share, devices=DeviceRequest(count=2))
    packing = await ask(world)
    assert await compute_packing(world.database, packing)
    found = await read(world, packing)
    assert found.nodes == 2
    assert found.scores is not None
    # Two of the three whole devices are on one node.
    assert [score.allocated_percent for score in found.scores] == pytest.approx([200 / 3] * len(found.scores), abs=0.01)


async def test_packing_when_its_computing_is_killed_then_it_is_handed_out_again_and_fails_at_last(world: World) -> None:
    packing = await ask(world)
    for pool in (world.pool.pool_id, world.pool.pool_id, None):
        async with world.database.begin(SYSTEM) as unit:
            assert await packings.take_overdue(unit, 60) == []
            await unit.execute(
                "UPDATE packing SET handed_at = handed_at - interval '1 h', begun_at = begun_at - interval '1 h'"
            )
            assert await packings.take_overdue(unit, 60) == [packing]
            assert await packings.begin_packing(unit, packing, 900, 2) == pool
            assert await packings.begin_packing(unit, packing, 900, 2) is None  # somebody is at it
    assert (await read(world, packing)).state is PackingState.FAILED


async def test_packing_when_accepted_then_the_leader_packs_by_it_until_it_is_withdrawn(world: World) -> None:
    await world.add_node(devices=2, cpu=8_000)
    await world.add_node(devices=1, cpu=16_000)
    share = await world.add_virtual_pool()
    await world.submit(share, devices=ONE_DEVICE)
    leader = world.leader()
    await leader.step()
    assert leader.shard is not None
    shard = leader.shard

    async def decide(packing: PackingId, is_accepted: bool) -> None:
        async with world.database.begin(SYSTEM) as unit:
            await (accept_packing if is_accepted else withdraw_packing)(unit, OPERATOR, packing)
        async with world.database.begin(SYSTEM) as unit:
            await refresh_mixes(unit, shard)

    made = []
    for setting in (OURS, OURS.model_copy(update={"quantum_milli": 60, "shadow_permille": 500})):
        made.append(await ask(world))
        async with world.database.begin(SYSTEM) as unit:
            await packings.begin_packing(unit, made[-1], 900, 3)
            scores = (PackingScore(setting=setting, allocated_percent=90.0),)
            await packings.end_packing(unit, made[-1], Replay(scores, 0.5, 1, 1), {"former": 1})
    first, second = made
    before = shard.snapshot.packing_of(world.pool.pool_id)
    await decide(first, True)
    packing = shard.snapshot.packing_of(world.pool.pool_id)
    prices = {size.devices: (price.core, price.device) for size, price in packing.prices.items()}
    assert prices == {2: (5_000, 0), 1: (0, 40_000)}  # 8 cores beside a device on the average
    assert (packing.quantum_milli, packing.mix) == (50, before.mix)
    assert (await read(world, first)).accepted_by == OPERATOR.subject
    await decide(second, True)
    sizes = shard.snapshot.count_sizes(world.pool.pool_id)
    tuned = Setting(60, Scarcity(core=5_000, shadow_permille=500))
    assert shard.snapshot.packing_of(world.pool.pool_id) == tuned.pack(sizes, before.mix)
    assert (await read(world, first)).state is PackingState.WITHDRAWN
    with pytest.raises(ProblemError, match="is withdrawn"):
        await decide(first, False)
    assert shard.snapshot.packing_of(world.pool.pool_id).quantum_milli == 60
    await decide(second, False)
    assert shard.snapshot.packing_of(world.pool.pool_id) == before
    told = await read(world, second)
    assert (told.demand_change_permille, told.is_stale) == (1000, True)  # what was replayed comes no more
    actions = await world.fetch("SELECT action FROM audit WHERE object = $1 ORDER BY seq", str(second))
    assert [row["action"] for row in actions] == ["packing.request", "packing.accept", "packing.withdraw"]
