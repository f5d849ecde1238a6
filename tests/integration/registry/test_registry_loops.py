"""The registry's worker: silent nodes, capacity, and the scheduler's words, by the real loops and consumer."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.events.scheduler import AllocationBound, NodeEmptied
from millpond_contracts.ids import NodeId
from millpond_kernel.clients import ServiceClient
from millpond_kernel.db import SYSTEM
from millpond_kernel.leases import acquire_lease
from millpond_kernel.rebuild import rebuild
from millpond_kernel.worker import WorkerKernel
from millpond_registry.consumers.scheduler import scheduler_consumer
from millpond_registry.loops.nodes import NodeWatch
from millpond_registry.usecases.capacity import take_allocations
from tests.factories.registry import allocation, gpu, inventory
from tests.integration.databases import MigratedDatabase
from tests.integration.registry.conftest import Registry
from tests.integration.services import run_services
from tests.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
async def working(migrated: MigratedDatabase) -> AsyncIterator[Registry]:
    """Registry, quota and scheduler with their workers, looking often."""
    async with (
        migrated.opened("registry") as database,
        run_services(
            migrated,
            ("quota", "registry", "scheduler"),
            watch_interval_seconds=0.1,
            capacity_interval_seconds=0.1,
            recount_seconds=1.0,
        ) as services,
    ):
        yield Registry(services, services.as_key(), database)


async def test_worker_when_node_falls_silent_then_suspected_until_it_speaks(working: Registry) -> None:
    spec = {"name": "nervous", "priority": 1, "unreachable_after_seconds": 1}
    await working.operator("POST", "/v1/pools", spec, expect=201)
    agent = working.agent()
    await agent.become_ready(await working.join_token(), inventory())

    async def is_unreachable() -> bool:
        return bool((await working.node(agent))["state"] == "unreachable")

    for _ in range(8):
        await agent.beat()
        await asyncio.sleep(0.2)
        assert not await is_unreachable()
    await eventually(is_unreachable)
    assert (await agent.beat())["state"] == "ready"


async def test_watch_when_registry_does_not_answer_then_nobody_is_suspected(registry: Registry) -> None:
    agent = registry.agent()
    await agent.become_ready(await registry.join_token(), inventory())
    answers = registry.services.settings["registry"]
    clients = {
        "heard": ServiceClient("registry", "http://millpond", "", transport=registry.services.transport),
        "away": ServiceClient("registry", "http://127.0.0.1:1", ""),
    }
    lease = await acquire_lease(registry.database, "watch_nodes", uuid4(), 60)
    assert lease is not None
    for name, state in (("away", "ready"), ("heard", "unreachable")):
        kernel = WorkerKernel(answers, "registry", registry.database, Redis(), {"registry": clients[name]})
        watch = NodeWatch(kernel)
        await watch.run_pass(datetime(2020, 1, 1, tzinfo=UTC), lease)
        async with registry.database.begin(SYSTEM) as unit:
            await unit.execute("UPDATE heartbeat SET at = clock_timestamp() - interval '1 hour'")
        await watch.run_pass(await registry.database.now(), lease)
        assert (await registry.node(agent))["state"] == state
        await clients[name].close()


async def test_worker_when_scheduler_tells_then_capacity_and_drains_follow(
    working: Registry, migrated: MigratedDatabase
) -> None:
    agent = working.agent()
    await agent.become_ready(await working.join_token(), inventory([gpu(0), gpu(1)]))
    node = await working.node(agent)
    path = f"/v1/pools/{node['pool_id']}/capacity"

    async def allocated() -> Any:
        devices = (await working.get(path))["devices"]
        return devices and devices[0]["allocated"]

    async with migrated.opened("scheduler") as scheduler:
        held = AllocationView.model_validate(allocation(node, [250]))
        async with scheduler.begin(SYSTEM) as unit:
            unit.emit(AllocationBound(allocation=held))
        await eventually(lambda: _is(allocated, 250))
        await working.operator("POST", f"/v1/nodes/{agent.node_id}/drain", {}, expect=202)
        generation = (await working.node(agent))["drain"]["generation"]
        async with scheduler.begin(SYSTEM) as unit:
            node_id = NodeId.parse(agent.node_id)
            unit.emit(NodeEmptied(node_id=node_id, drain_generation=generation, generation=generation))

    async def emptied() -> Any:
        return (await working.node(agent))["drain"]["emptied_at"]

    await eventually(emptied)


async def test_worker_when_figures_are_corrupted_then_recount_repairs_them(working: Registry) -> None:
    agent = working.agent()
    await agent.become_ready(await working.join_token(), inventory([gpu(0)]))
    pool_id = (await working.node(agent))["pool_id"]

    async def total() -> Any:
        devices = (await working.get(f"/v1/pools/{pool_id}/capacity"))["devices"]
        return devices and devices[0]["total"]

    await eventually(lambda: _is(total, 1000))
    async with working.database.begin(SYSTEM) as unit:
        await unit.execute("UPDATE capacity SET tally = '{}'")
    await eventually(lambda: _is(total, 1000))
    assert "capacity_drift_found" in await working.events(f"{pool_id}/capacity")


async def test_rebuild_when_view_holds_a_ghost_then_gone_and_capacity_is_right(working: Registry) -> None:
    agent = working.agent()
    await agent.become_ready(await working.join_token(), inventory([gpu(0)]))
    node = await working.node(agent)
    ghost = AllocationView.model_validate(allocation(node, [250]))
    async with working.database.begin(SYSTEM) as unit:
        await take_allocations(unit, [ghost])
    settings = working.services.settings["registry"]
    key = settings.service_key.get_secret_value()
    feed = ServiceClient("scheduler", "http://millpond", key, transport=working.services.transport)
    await rebuild(working.database, feed, scheduler_consumer())
    await feed.close()

    async def allocated() -> Any:
        devices = (await working.get(f"/v1/pools/{node['pool_id']}/capacity"))["devices"]
        return [device["allocated"] for device in devices]

    await eventually(lambda: _is(allocated, [0]))
    async with working.database.begin(SYSTEM) as unit:
        assert await unit.fetchval("SELECT count(*) FROM allocation") == 0


async def _is(read: Any, wanted: object) -> bool:
    return bool(await read() == wanted)
