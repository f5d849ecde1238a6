"""Counters that were corrupted, the watch over them, and rows that only their tenant may see."""

import pytest

from millpond_contracts.ids import TenantId
from millpond_kernel.db import SYSTEM, TenantScope
from millpond_kernel.observability import ALARMS
from millpond_scheduler.usecases.recount import recount
from millpond_scheduler.usecases.retention import delete_ended_jobs
from tests.integration.scheduler.world import ONE_DEVICE, World, limits

pytestmark = pytest.mark.integration

TENANT_TABLES = ("job", "task", "allocation", "usage", "virtual_pool_view", "verdict", "log", "admission")


async def test_counters_when_corrupted_then_repaired_with_an_event_and_an_alarm_each(world: World) -> None:
    await world.add_node(devices=2)
    share = await world.add_virtual_pool(given=limits(devices=1000))
    await world.submit(share, devices=ONE_DEVICE)
    await world.leader().step()
    before = ALARMS.labels("scheduler", "usage_drift")._value.get()
    await world.value("UPDATE usage SET used = 0 WHERE resource = 'device' RETURNING 1")
    await world.value("UPDATE usage SET hard = 10 WHERE resource = 'cpu' RETURNING 1")
    await world.value("UPDATE usage SET used = 7 WHERE resource = 'cpu' RETURNING 1")
    await world.value("UPDATE node_guard SET free_cpu_milli = 8000, free_milli = ARRAY[1000, 1000] RETURNING 1")
    async with world.database.begin(SYSTEM) as unit:
        assert await recount(unit) == 4
    await world.assert_counters_are_true()
    found = {
        item["counter"].split("/", 2)[-1]: (item["expected"], item["found"])
        for item in await world.events("usage_drift_found")
    }
    assert found == {
        "device/t4": (1000, 0),
        "cpu": (1000, 7),
        "cpu_milli": (7000, 8000),
        "device_milli": (1000, 2000),
    }
    assert ALARMS.labels("scheduler", "usage_drift")._value.get() == before + 4
    assert await world.value("SELECT hard FROM usage WHERE resource = 'cpu'") == 10


async def test_rows_when_read_by_another_tenant_then_none_is_there(world: World) -> None:
    await world.add_node(devices=1)
    share, other = await world.add_virtual_pool(given=limits(devices=1000)), await world.add_virtual_pool()
    leader = world.leader()
    await world.submit(share, devices=ONE_DEVICE)
    await world.submit(share, devices=ONE_DEVICE)
    for _ in range(3):
        await leader.step()
    await world.value(
        "INSERT INTO log (allocation_id, tenant_id, task_id, attempt) SELECT id, tenant_id, task_id, attempt"
        " FROM allocation RETURNING 1"
    )
    for table in TENANT_TABLES:
        async with world.database.begin(TenantScope(share.tenant_id)) as unit:
            assert await unit.fetchval(f"SELECT count(*) FROM {table}") > 0, table
    for table in TENANT_TABLES:
        async with world.database.begin(TenantScope(other.tenant_id)) as unit:
            rows = await unit.fetch(f"SELECT tenant_id FROM {table}")
        assert {row["tenant_id"] for row in rows} <= {other.tenant_id}, table
        async with world.database.begin(TenantScope(TenantId.new())) as unit:
            assert await unit.fetchval(f"SELECT count(*) FROM {table}") == 0, table


async def test_jobs_when_ended_long_ago_then_forgotten_with_everything_of_them(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    await world.end_task(node.node_id, task)
    kept = await world.submit(share)
    now = await world.database.now()
    async with world.database.begin(SYSTEM) as unit:
        assert await delete_ended_jobs(unit, now) == 1
    assert [row["id"] for row in await world.fetch("SELECT id FROM job")] == [kept.job_id]
    assert await world.value("SELECT count(*) FROM allocation") == 0
