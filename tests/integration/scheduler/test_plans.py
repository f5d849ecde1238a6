"""Plans: offers from a copy that the HTTP process keeps, with prices; nothing is changed by them."""

import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.groups import DeviceRequest, Requirements
from millpond_contracts.bodies.jobs import JobSpec
from millpond_contracts.bodies.nodes import CordonReason, NodeState
from millpond_contracts.bodies.plans import PlanView
from millpond_contracts.bodies.tenants import Limit, VirtualPoolView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import TenantId
from millpond_contracts.quantities import plain_decimal
from millpond_kernel.db import SYSTEM, TenantScope
from millpond_kernel.problem import ProblemError
from millpond_scheduler.domain.distance import DistanceRules
from millpond_scheduler.usecases.distances import list_placed
from millpond_scheduler.usecases.jobs import submit_job
from millpond_scheduler.usecases.mirror import Mirror, refresh_mirror
from millpond_scheduler.usecases.plans import make_plan, read_asked
from tests.integration.scheduler.world import ONE_DEVICE, World, limits, make_device, make_spec, member

pytestmark = pytest.mark.integration

PRICES = {"device/*/on_demand": "9.00", "cpu/*/on_demand": "0.18", "memory/*/on_demand": "0.018"}
HALF_PRICE = {**PRICES, "device/*/on_demand": "4.50"}


async def plan(
    world: World, share: VirtualPoolView, spec: JobSpec, mirror: Mirror | None = None, tenant: TenantId | None = None
) -> PlanView:
    """A plan as the route makes it, on a copy that is read now."""
    chosen = mirror or Mirror()
    async with world.database.begin(TenantScope(tenant or share.tenant_id)) as unit:
        asked = await read_asked(unit, member(tenant or share.tenant_id), spec)
    await refresh(world, chosen)
    return make_plan(chosen, asked)


async def refresh(world: World, mirror: Mirror, lock_timeout_seconds: int | None = None) -> None:
    async with world.database.begin(SYSTEM, lock_timeout_seconds=lock_timeout_seconds) as unit:
        await refresh_mirror(unit, mirror)


async def hold_allocations(world: World, locked: asyncio.Event, enough: asyncio.Event) -> None:
    """Keeps everybody from the table of allocations until there is enough of it."""
    async with world.database.begin(SYSTEM) as unit:
        await unit.execute("LOCK TABLE allocation IN ACCESS EXCLUSIVE MODE")
        locked.set()
        await enough.wait()


async def test_plan_when_a_node_has_room_then_an_offer_with_its_price_and_nothing_changes(world: World) -> None:
    await world.add_node(devices=2)
    await world.add_price(per_hour=PRICES)
    share = await world.add_virtual_pool()
    before = await world.value("SELECT (SELECT count(*) FROM job) + (SELECT count(*) FROM outbox)")
    spec = make_spec(share.virtual_pool_id, devices=ONE_DEVICE, count=2, cpu=2000, memory=2048, time_limit=1800)
    told = await plan(world, share, spec)
    (offer,) = told.offers
    assert (offer.pool_id, offer.pool, offer.flavors) == (world.pool.pool_id, "main", ["t4"])
    assert (offer.tasks, offer.starts_now, offer.nodes, told.explanation) == (2, 2, 1, None)
    assert offer.quote is not None
    # Two tasks: 2 devices at 9, 4 cores at 0.18, 4 GiB at 0.018 an hour; half an hour of it.
    assert offer.quote.per_hour.model_dump(mode="json") == {"amount": "18.792", "currency": "CNY"}
    assert offer.quote.total is not None
    assert offer.quote.total.model_dump(mode="json") == {"amount": "9.396", "currency": "CNY"}
    assert await world.value("SELECT (SELECT count(*) FROM job) + (SELECT count(*) FROM outbox)") == before
    await world.assert_counters_are_true()


async def test_plan_when_nothing_fits_then_no_offer_but_what_explain_says(world: World) -> None:
    await world.add_node(devices=1)
    await world.add_node()
    share = await world.add_virtual_pool()
    told = await plan(world, share, make_spec(share.virtual_pool_id, devices=DeviceRequest(count=4)))
    assert told.offers == []
    assert told.explanation is not None
    assert sum(told.explanation.counts.values()) == told.explanation.nodes == 2
    leader = world.leader()
    job = await world.submit(share, devices=DeviceRequest(count=4))
    await leader.step()
    verdict = await world.value("SELECT body FROM verdict WHERE job_id = $1", job.job_id)
    shown = told.explanation.model_dump(mode="json")
    assert {name: shown[name] for name in verdict} == verdict


async def test_plan_when_asked_by_another_tenant_then_404(world: World) -> None:
    share = await world.add_virtual_pool()
    with pytest.raises(ProblemError) as refused:
        await plan(world, share, make_spec(share.virtual_pool_id), tenant=TenantId.new())
    assert refused.value.code is ErrorCode.VIRTUAL_POOL_UNKNOWN


async def test_plan_when_node_names_are_the_operator_s_then_a_tenant_sees_only_their_number(world: World) -> None:
    await world.add_node()
    share = await world.add_virtual_pool()
    told = await plan(world, share, make_spec(share.virtual_pool_id))
    assert (told.offers[0].nodes, told.offers[0].parts[0].node_names) == (1, [])
    mirror = Mirror()
    async with world.database.begin(SYSTEM) as unit:
        asked = await read_asked(unit, member(None), make_spec(share.virtual_pool_id))
    await refresh(world, mirror)
    assert make_plan(mirror, asked).offers[0].parts[0].node_names == ["node-0"]


async def test_mirror_when_refreshed_then_it_is_what_a_fresh_one_reads(world: World) -> None:
    first = await world.add_node(devices=2)
    share = await world.add_virtual_pool()
    spec = make_spec(share.virtual_pool_id, devices=ONE_DEVICE, count=8)
    mirror, leader = Mirror(), world.leader()
    assert (await plan(world, share, spec, mirror)).offers[0].starts_now == 2
    # A job takes a device, another node joins, the first one is cordoned, limits change: all is seen.
    await world.submit(share, devices=ONE_DEVICE)
    await leader.step()
    assert (await plan(world, share, spec, mirror)).offers[0].starts_now == 1
    second = await world.add_node(devices=4)
    assert (await plan(world, share, spec, mirror)).offers[0].starts_now == 5
    task = (await world.poll(first.node_id)).assignments[0]
    await world.run_task(first.node_id, task)
    await world.end_task(first.node_id, task)
    assert (await plan(world, share, spec, mirror)).offers[0].starts_now == 6
    await world.change_node(first.node_id, schedulable=False, state=NodeState.REMOVED)
    assert (await plan(world, share, spec, mirror)).offers[0].starts_now == 4
    await world.change_node(second.node_id, schedulable=False, cordon_reasons=(CordonReason.OPERATOR,))
    assert (await plan(world, share, spec, mirror)).offers == []
    fewer = share.model_copy(update={"limits": limits(devices=3000), "generation": share.generation + 1})
    await world.tell_virtual_pool(fewer)
    await world.change_node(second.node_id, schedulable=True, cordon_reasons=())
    told = await plan(world, share, spec, mirror)
    assert told.offers[0].starts_now == 3
    fresh = await plan(world, share, spec)
    assert told.model_dump(exclude={"as_of", "offers"}) == fresh.model_dump(exclude={"as_of", "offers"})
    assert [offer.model_dump(exclude={"expires_at"}) for offer in told.offers] == [
        offer.model_dump(exclude={"expires_at"}) for offer in fresh.offers
    ]


async def test_mirror_when_a_refresh_breaks_off_then_the_next_one_reads_everything_anew(world: World) -> None:
    node = await world.add_node(devices=2)
    share = await world.add_virtual_pool()
    spec = make_spec(share.virtual_pool_id, devices=ONE_DEVICE)
    mirror = Mirror()
    await plan(world, share, spec, mirror)
    former = mirror.shard
    locked, enough = asyncio.Event(), asyncio.Event()
    locking = asyncio.create_task(hold_allocations(world, locked, enough))
    await locked.wait()
    with pytest.raises(asyncpg.LockNotAvailableError):
        await refresh(world, mirror, lock_timeout_seconds=1)
    assert not mirror.is_fresh()
    enough.set()
    await locking
    await world.change_node(node.node_id, cordon_reasons=(CordonReason.OPERATOR,), schedulable=False)
    assert (await plan(world, share, spec, mirror)).offers == []
    assert mirror.shard is not former


async def test_plan_when_what_was_lent_would_come_back_then_it_says_so_and_keeps_what_is_claimed(world: World) -> None:
    node = (await world.add_node(devices=2)).node_id
    lent = limits().model_copy(update={"devices": {"t4": Limit(guaranteed=2000, lend=2000)}})
    owner = await world.add_virtual_pool(given=lent)
    borrowed = limits().model_copy(update={"devices": {"t4": Limit(borrow=2000)}})
    borrower, third = [await world.add_virtual_pool(given=borrowed) for _ in range(2)]
    for _ in range(2):
        await world.submit(borrower, devices=ONE_DEVICE)
    leader, mirror, two = world.leader(), Mirror(), DeviceRequest(count=2)
    await leader.step()
    tasks = (await world.poll(node)).assignments
    for task in tasks:
        await world.run_task(node, task)
    told = await plan(world, owner, make_spec(owner.virtual_pool_id, devices=two), mirror)
    assert told.offers == []
    assert told.explanation is not None
    assert told.explanation.dominant == "reclaiming"
    assert "would be taken back" in told.explanation.message
    assert await world.value("SELECT count(*) FROM allocation WHERE state = 'releasing'") == 0
    # Once it is really taken back, the room is the claimant's, though a part of it is free and others ask.
    job = await world.submit(owner, devices=two)
    await leader.step()
    await world.end_task(node, tasks[0], exit_code=-15, reason=EndReason.RECLAIMED)
    spec = make_spec(third.virtual_pool_id, devices=ONE_DEVICE)
    for each in (mirror, Mirror()):
        told = await plan(world, third, spec, each)
        assert told.offers == []
        assert told.explanation is not None
        assert told.explanation.dominant == "earmarked"
    await world.cancel(owner, job.job_id)
    for each in (mirror, Mirror()):
        assert [offer.starts_now for offer in (await plan(world, third, spec, each)).offers] == [1]
    await world.assert_counters_are_true()


async def test_b8_plan_when_the_price_changes_after_the_offer_then_units_are_told_and_the_bind_keeps_its_version(
    world: World,
) -> None:
    """An offer of 8 devices: per device and for all of them; the allocation records what was shown at its bind."""
    node = await world.add_node(devices=8)
    shown = await world.add_price(per_hour=PRICES)
    share = await world.add_virtual_pool()
    spec = make_spec(share.virtual_pool_id, devices=DeviceRequest(count=8))
    offer = (await plan(world, share, spec)).offers[0]
    assert offer.quote is not None
    device = next(line for line in offer.quote.lines if line.sku == "device/t4/on_demand")
    assert (device.unit, plain_decimal(device.quantity)) == ("device", "8")
    assert [plain_decimal(each.amount) for each in (device.unit_per_hour, device.per_hour)] == ["9", "72"]
    assert (offer.quote.price_version_id, device.price_version_id) == (shown, shown)
    await world.submit(share, devices=DeviceRequest(count=8))
    leader = world.leader()
    await leader.step()
    (assignment,) = (await world.poll(node.node_id)).assignments
    bound = "SELECT price_version_id FROM allocation WHERE id = $1"
    assert await world.value(bound, assignment.allocation_id) == shown
    # Another price, later: what was bound keeps the version that was shown, the next offer shows the new one.
    later = await world.add_price(valid_from=datetime.now(UTC) - timedelta(seconds=1), per_hour=HALF_PRICE)
    assert await world.value(bound, assignment.allocation_id) == shown
    await world.add_node(devices=8)
    again = (await plan(world, share, spec)).offers[0]
    assert again.quote is not None
    assert again.quote.price_version_id == later


async def test_plan_when_a_price_begins_soon_then_the_offer_expires_with_the_present_one(world: World) -> None:
    await world.add_node()
    await world.add_price(per_hour=PRICES)
    soon = datetime.now(UTC) + timedelta(seconds=20)
    await world.add_price(valid_from=soon, per_hour=HALF_PRICE)
    share = await world.add_virtual_pool()
    told = await plan(world, share, make_spec(share.virtual_pool_id))
    assert told.offers[0].expires_at == soon


async def test_plan_when_a_price_is_known_only_by_its_version_then_there_is_no_quote(world: World) -> None:
    await world.add_node()
    version = await world.add_price(per_hour=PRICES)
    async with world.database.begin(SYSTEM) as unit:
        await unit.execute("UPDATE price_view SET lines = NULL WHERE id = $1", version)
    share = await world.add_virtual_pool()
    assert (await plan(world, share, make_spec(share.virtual_pool_id))).offers[0].quote is None


async def test_price_view_when_a_row_is_from_before_prices_were_kept_then_the_same_event_fills_it(world: World) -> None:
    price = await world.add_price(per_hour=PRICES)
    async with world.database.begin(SYSTEM) as unit:
        await unit.execute("UPDATE price_view SET lines = NULL, currency = NULL, minimum_seconds = NULL")
        await unit.execute("DELETE FROM change")
    await world.tell_price(world.prices[price])
    row = (await world.fetch("SELECT currency, minimum_seconds, lines FROM price_view"))[0]
    assert (row["currency"], row["minimum_seconds"], len(row["lines"])) == ("CNY", 60, 3)


async def test_explain_when_a_job_runs_then_how_near_its_devices_are(world: World) -> None:
    device = make_device().model_copy(update={"attributes": {"fp16_tflops": 65.0}})
    node = await world.add_node(devices=0)
    await world.change_node(node.node_id, devices=(device,))
    share = await world.add_virtual_pool()
    spec = make_spec(share.virtual_pool_id, devices=ONE_DEVICE)
    group = spec.groups[0].model_copy(update={"requires": Requirements(attributes={"fp16_tflops": ">=52"})})
    async with world.database.begin(TenantScope(share.tenant_id)) as unit:
        changed = spec.model_copy(update={"groups": (group,)})
        job = await submit_job(unit, member(share.tenant_id), changed)
    leader = world.leader()
    async with world.database.begin(SYSTEM) as unit:
        assert await list_placed(unit, job.job_id, DistanceRules()) == []
    await leader.step()
    async with world.database.begin(SYSTEM) as unit:
        (placed,) = await list_placed(unit, job.job_id, DistanceRules())
    assert (placed.group, placed.tasks, placed.flavor) == ("main", 1, "t4")
    (part,) = placed.distance.parts
    # A fifth of the device is too much, and too much counts a quarter.
    assert (part.attribute, part.wanted, part.offered, part.permille) == ("fp16_tflops", 52.0, 65.0, 50)
    assert placed.distance.permille == 50
