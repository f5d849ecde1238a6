"""Reservations as the leader enforces them: kept free though idle, taken back when their window opens."""

from datetime import datetime, timedelta

import pytest

from millpond_contracts.bodies.reservations import ReservationView
from millpond_contracts.bodies.tenants import Limit, VirtualPoolView
from millpond_contracts.ids import ReservationId
from millpond_kernel.db import SYSTEM
from millpond_scheduler.domain.cycle import plan_batch
from millpond_scheduler.store.guards import GuardFailed
from millpond_scheduler.usecases.cycle import commit_batch
from millpond_scheduler.usecases.virtual_pools import take_reservation
from tests.integration.scheduler.test_guards import load, make_batch
from tests.integration.scheduler.test_reclaims import BORROWER, begin, with_devices
from tests.integration.scheduler.world import LONG_AGO, ONE_DEVICE, World

pytestmark = pytest.mark.integration

HOLDER = with_devices(Limit(hard=2000))


async def reserve(
    world: World, share: VirtualPoolView, starts_at: datetime = LONG_AGO, ends_at: datetime | None = None
) -> ReservationView:
    made = ReservationView(
        reservation_id=ReservationId.new(),
        tenant_id=share.tenant_id,
        virtual_pool_id=share.virtual_pool_id,
        pool_id=share.pool_id,
        flavor="t4",
        device_milli=2000,
        starts_at=starts_at,
        ends_at=ends_at,
        labels={},
        cancelled_at=None,
        created_at=LONG_AGO,
        generation=1,
    )
    await tell(world, made)
    return made


async def tell(world: World, reservation: ReservationView) -> None:
    async with world.database.begin(SYSTEM) as unit:
        await take_reservation(unit, reservation)


async def test_reservation_when_it_idles_then_others_leave_it_free_and_its_holder_uses_it(world: World) -> None:
    node = (await world.add_node(devices=3)).node_id
    holder = await world.add_virtual_pool(given=HOLDER)
    other = await world.add_virtual_pool(given=BORROWER)
    reservation = await reserve(world, holder)
    await world.submit(other, count=3, devices=ONE_DEVICE)
    leader = world.leader()
    await leader.step()
    await leader.step()
    assert len(await begin(world, node)) == 1
    assert await world.value("SELECT dominant FROM verdict") == "guarantee_of_others"
    await world.submit(holder, count=2, devices=ONE_DEVICE)
    await leader.step()
    assert len(await begin(world, node)) == 2
    # Cancelled: what its holder has is borrowed now, and nothing is kept for it any more.
    cancelled = reservation.model_copy(update={"cancelled_at": LONG_AGO, "generation": 2})
    await tell(world, cancelled)
    await tell(world, reservation)  # late: changes nothing
    await leader.step()
    assert leader.shard is not None
    assert leader.shard.virtual_pools[holder.virtual_pool_id].limits == holder.limits


async def test_reservation_when_its_window_is_to_come_then_all_is_lent_and_taken_back_when_it_opens(
    world: World,
) -> None:
    node = (await world.add_node(devices=2)).node_id
    holder = await world.add_virtual_pool(given=HOLDER)
    other = await world.add_virtual_pool(given=BORROWER)
    now = await world.database.now()
    later = await reserve(world, holder, now + timedelta(hours=1), now + timedelta(hours=2))
    await world.submit(other, count=2, devices=ONE_DEVICE)
    leader = world.leader()
    await leader.step()
    assert len(await begin(world, node)) == 2
    job = await world.submit(holder, devices=ONE_DEVICE)
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE state = 'releasing'") == 0
    assert await world.value("SELECT dominant FROM verdict WHERE job_id = $1", job.job_id) == "not_enough_devices"
    await world.value("UPDATE reservation_view SET starts_at = $1 RETURNING 1", now)
    await tell(world, later.model_copy(update={"generation": 2}))
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE stop_reason = 'reclaimed'") == 1


async def test_commit_when_a_window_opened_since_the_plan_then_refused(world: World) -> None:
    await world.add_node(devices=2)
    holder = await world.add_virtual_pool(given=HOLDER)
    other = await world.add_virtual_pool(given=BORROWER)
    await world.submit(other, count=2, devices=ONE_DEVICE)
    lease, shard = await load(world.database)
    plan = plan_batch(shard.snapshot, shard.queue(), shard.virtual_pools, 0, cache=shard.cache)
    assert len(plan.placements) == 2
    await reserve(world, holder)
    with pytest.raises(GuardFailed, match="reservations"):
        async with world.database.begin(SYSTEM) as unit:
            await commit_batch(unit, lease, make_batch(lease, shard, plan.placements))
    assert await world.value("SELECT count(*) FROM allocation") == 0
