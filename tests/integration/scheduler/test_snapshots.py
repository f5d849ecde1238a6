"""What other services read of the scheduler's present state."""

import pytest

from millpond_contracts.bodies.allocations import AllocationView
from millpond_kernel.db import SYSTEM
from millpond_scheduler.store.allocations import allocation_record
from millpond_scheduler.usecases.snapshots import SNAPSHOTS
from tests.integration.scheduler.world import ONE_DEVICE, World

pytestmark = pytest.mark.integration


async def test_snapshots_when_read_in_pages_then_the_items_are_what_the_models_write(world: World) -> None:
    nodes = [(await world.add_node(devices=2)).node_id for _ in range(2)]
    share = await world.add_virtual_pool()
    price = await world.add_price(share.tenant_id)
    project = await world.add_project(share.tenant_id)
    await world.submit(share, count=2, devices=ONE_DEVICE, project_id=project, labels={"team": 'vision "7"'})
    await world.submit(share, count=3)
    leader = world.leader()
    await leader.step()
    for node in nodes:
        for task in (await world.poll(node)).assignments:
            await world.run_task(node, task)
            if task.index == 1:
                await world.end_task(node, task, exit_code=3)

    rows = await world.fetch("SELECT * FROM allocation ORDER BY id")
    wanted = [allocation_record(row).view() for row in rows]
    assert {view.price_version_id for view in wanted} == {price}
    live = [view for view in wanted if view.released_at is None]
    assert 0 < len(live) < len(wanted) == 5
    assert await _read(world, "allocations") == [view.model_dump(mode="json") for view in wanted]
    items = await _read(world, "live-allocations")
    assert [AllocationView.model_validate(item) for item in items] == live
    told = [view.model_dump(mode="json", include={"allocation_id", "generation"}) for view in live]
    assert await _read(world, "live-generations") == told


async def _read(world: World, noun: str) -> list[dict[str, object]]:
    found, after = list[dict[str, object]](), ""
    while True:
        async with world.database.begin(SYSTEM) as unit:
            items, following = await SNAPSHOTS[noun](unit, after, 2)
        found += items
        if following is None:
            return found
        after = following
