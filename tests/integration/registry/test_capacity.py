"""Capacity adds up, follows what changes, repairs what drifted and says so."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from millpond_contracts.bodies.allocations import AllocationView
from millpond_contracts.ids import DeviceId, NodeId
from millpond_contracts.resources import DeviceHealth
from millpond_kernel.db import SYSTEM
from millpond_registry.store.capacity import mark_node
from millpond_registry.usecases import capacity
from tests.factories.registry import Agent, allocation, gpu, inventory
from tests.integration.registry.conftest import Registry

pytestmark = pytest.mark.integration

A100 = "nvidia-a100-sxm4-80gb"


async def count(registry: Registry) -> int:
    async with registry.database.begin(SYSTEM) as unit:
        return await capacity.count_marked(unit)


async def recount(registry: Registry, pool_id: str) -> bool:
    async with registry.database.begin(SYSTEM) as unit:
        await capacity.count_marked(unit)
        return await capacity.recount_pool(unit, _uuid(pool_id))


async def take(registry: Registry, view: dict[str, Any]) -> bool:
    async with registry.database.begin(SYSTEM) as unit:
        return await capacity.take_allocations(unit, [AllocationView.model_validate(view)]) == 1


async def two_gpus(registry: Registry) -> tuple[Agent, dict[str, Any]]:
    agent = registry.agent()
    await agent.become_ready(await registry.join_token(), inventory([gpu(0), gpu(1)]))
    return agent, await registry.node(agent)


async def figures(registry: Registry, pool_id: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The whole answer, the figures of A100s, the figures of CPU; each set adds up to its total."""
    answer = await registry.get(f"/v1/pools/{pool_id}/capacity")
    for item in answer["devices"]:
        parts = ("unschedulable", "allocated", "reserved", "fragmented", "available")
        assert item["total"] == sum(item[part] for part in parts)
    for item in answer["hosts"]:
        assert item["total"] == sum(item[part] for part in ("unschedulable", "allocated", "reserved", "available"))
    device: dict[str, Any] = next((item for item in answer["devices"] if item["flavor"] == A100), {})
    return answer, device, answer["hosts"][0]


async def test_capacity_when_work_comes_and_goes_then_figures_follow(registry: Registry) -> None:
    _, node = await two_gpus(registry)
    await count(registry)
    answer, device, cpu = await figures(registry, node["pool_id"])
    assert answer["nodes"] == {"ready": 1, "schedulable": 1}
    assert (device["total"], device["available"], device["fits"]["2x1000"]) == (2000, 2000, 1)
    held = allocation(node, [300])
    assert await take(registry, held)
    assert not await take(registry, held)
    await count(registry)
    _, device, cpu = await figures(registry, node["pool_id"])
    assert (device["allocated"], device["fragmented"], device["available"]) == (300, 700, 1000)
    assert (device["fits"]["250"], device["fits"]["2x1000"]) == (6, 0)
    assert (cpu["allocated"], cpu["available"]) == (1000, 7000)
    await take(registry, {**held, "state": "released", "generation": 3})
    assert not await take(registry, {**held, "generation": 2})
    await count(registry)
    answer, device, _ = await figures(registry, node["pool_id"])
    assert (device["available"], answer["generation"]) == (2000, 4)
    assert await registry.events(f"{node['pool_id']}/capacity") == ["capacity_changed"] * 3
    # Told together, in whatever order: the newest of each.
    first, second = allocation(node, [200]), allocation(node, [100])
    together = [{**first, "state": "released", "generation": 2}, first, second]
    async with registry.database.begin(SYSTEM) as unit:
        assert await capacity.take_allocations(unit, [AllocationView.model_validate(view) for view in together]) == 2
    await count(registry)
    assert (await figures(registry, node["pool_id"]))[1]["allocated"] == 100


async def test_capacity_when_node_or_device_takes_no_work_then_unschedulable(registry: Registry) -> None:
    agent, node = await two_gpus(registry)
    await take(registry, allocation(node, [300]))
    await agent.push(inventory([gpu(0), gpu(1, health=DeviceHealth.UNKNOWN)]))
    await count(registry)
    _, device, cpu = await figures(registry, node["pool_id"])
    assert (device["unschedulable"], device["allocated"], device["fragmented"]) == (1000, 300, 700)
    await registry.operator("POST", f"/v1/nodes/{agent.node_id}/cordon", {}, expect=200)
    await count(registry)
    answer, device, cpu = await figures(registry, node["pool_id"])
    assert (device["unschedulable"], device["allocated"], device["available"]) == (1700, 300, 0)
    assert (cpu["unschedulable"], cpu["allocated"]) == (7000, 1000)
    assert answer["nodes"] == {"ready": 1}


async def test_capacity_when_reference_task_is_smaller_then_less_is_fragmented(registry: Registry) -> None:
    _, node = await two_gpus(registry)
    await take(registry, allocation(node, [300]))
    pool = await registry.get(f"/v1/pools/{node['pool_id']}")
    spec = {"name": pool["name"], "reference_task_milli": 250}
    await registry.operator("PUT", f"/v1/pools/{node['pool_id']}", spec, headers={"If-Match": "*"}, expect=200)
    await count(registry)
    _, device, _ = await figures(registry, node["pool_id"])
    assert (device["fragmented"], device["available"]) == (200, 1500)


async def test_capacity_when_node_moves_or_leaves_then_both_pools_are_right(registry: Registry) -> None:
    agent, node = await two_gpus(registry)
    await count(registry)
    spec = {"name": "target", "priority": -1}
    target = (await registry.operator("POST", "/v1/pools", spec, expect=201)).json()["pool_id"]
    async with registry.database.begin(SYSTEM) as unit:
        await unit.execute("UPDATE node SET pool_id = $1, generation = generation + 1", _uuid(target))
        await mark_node(unit, NodeId.parse(agent.node_id))
    await count(registry)
    assert (await figures(registry, node["pool_id"]))[0]["devices"] == []
    assert (await figures(registry, target))[1]["total"] == 2000
    path = f"/v1/nodes/{agent.node_id}"
    async with registry.database.begin(SYSTEM) as unit:
        await unit.execute("UPDATE node SET state = 'unreachable'")
    await registry.operator("DELETE", path, headers={"If-Match": "*"}, expect=204)
    await count(registry)
    assert (await figures(registry, target))[0]["nodes"] == {}


async def test_removal_when_node_holds_work_then_refused(registry: Registry) -> None:
    agent, node = await two_gpus(registry)
    held = allocation(node, [300])
    await take(registry, held)
    async with registry.database.begin(SYSTEM) as unit:
        await unit.execute("UPDATE node SET state = 'unreachable'")
    path = f"/v1/nodes/{agent.node_id}"
    refused = await registry.operator("DELETE", path, headers={"If-Match": "*"})
    assert "holds 1 allocations" in refused.json()["detail"]
    await take(registry, {**held, "state": "released", "generation": 2})
    await registry.operator("DELETE", path, headers={"If-Match": "*"}, expect=204)


async def test_recount_when_figures_are_right_then_no_alarm(registry: Registry) -> None:
    _, node = await two_gpus(registry)
    await take(registry, allocation(node, [300]))
    await count(registry)
    before = await figures(registry, node["pool_id"])
    assert await recount(registry, node["pool_id"]) is False
    after = await figures(registry, node["pool_id"])
    assert after[0]["recounted_at"] is not None
    assert after[1:] == before[1:]
    assert after[0]["generation"] == before[0]["generation"]


async def test_recount_when_a_figure_was_corrupted_then_repaired_with_alarm(registry: Registry) -> None:
    _, node = await two_gpus(registry)
    await count(registry)
    before = (await figures(registry, node["pool_id"]))[0]["devices"]
    async with registry.database.begin(SYSTEM) as unit:
        await unit.execute("UPDATE capacity SET tally = jsonb_set(tally, $1, '5000')", ["flavors", A100, "free"])
    assert await recount(registry, node["pool_id"]) is True
    assert (await figures(registry, node["pool_id"]))[0]["devices"] == before
    events = await registry.events(f"{node['pool_id']}/capacity")
    assert events[-2:] == ["capacity_drift_found", "capacity_changed"]
    async with registry.database.begin(SYSTEM) as unit:
        detail = await unit.fetchval("SELECT body->>'detail' FROM outbox WHERE type LIKE '%drift%'")
    assert detail == f"flavors.{A100}.free: had 5000, counted 2000"
    assert await recount(registry, node["pool_id"]) is False


async def test_recount_when_a_change_is_not_counted_yet_then_no_alarm(registry: Registry) -> None:
    agent, node = await two_gpus(registry)
    await count(registry)
    await take(registry, allocation(node, [300]))
    other = registry.agent()
    await other.become_ready(await registry.join_token(), inventory([gpu(0)]))
    await registry.operator("POST", f"/v1/nodes/{agent.node_id}/cordon", {}, expect=200)
    async with registry.database.begin(SYSTEM) as unit:
        assert await capacity.recount_pool(unit, _uuid(node["pool_id"])) is False
    assert (await figures(registry, node["pool_id"]))[1]["available"] == 2000
    await count(registry)
    _, device, _ = await figures(registry, node["pool_id"])
    assert (device["total"], device["allocated"], device["unschedulable"]) == (3000, 300, 1700)
    assert await recount(registry, node["pool_id"]) is False


async def test_compare_when_view_of_allocations_is_wrong_then_repaired_with_alarm(registry: Registry) -> None:
    _, node = await two_gpus(registry)
    right, wrong = allocation(node, [300]), allocation(node, [0, 500])
    ghost, young = allocation(node, [200]), allocation(node, [100])
    for view in (right, wrong, ghost, young):
        await take(registry, view)
    async with registry.database.begin(SYSTEM) as unit:
        await unit.execute("UPDATE allocation SET updated_at = updated_at - interval '1 hour'")
        await unit.execute("UPDATE allocation SET cpu_milli = 9 WHERE id = $1", _uuid(wrong["allocation_id"]))
    late = allocation(node, [50])
    await take(registry, late)
    async with registry.database.begin(SYSTEM) as unit:
        released = AllocationView.model_validate({**young, "state": "released", "generation": 2})
        await capacity.take_allocations(unit, [released])
        # The list was read before `young` ended and `late` began.
        assert await capacity.compare_allocations(unit, [right, wrong, young]) == 2
    await count(registry)
    _, device, cpu = await figures(registry, node["pool_id"])
    assert (device["allocated"], cpu["allocated"]) == (850, 3000)
    assert "capacity_drift_found" in await registry.events(f"{node['pool_id']}/capacity")


async def test_count_when_many_write_and_count_at_once_then_nothing_is_lost(registry: Registry) -> None:
    _, node = await two_gpus(registry)
    views = [allocation(node, [10], cpu_milli=10) for _ in range(20)]

    async def bind(view: dict[str, Any]) -> None:
        await take(registry, view)
        await count(registry)

    await asyncio.gather(*(bind(view) for view in views))
    await count(registry)
    _, device, cpu = await figures(registry, node["pool_id"])
    assert (device["allocated"], cpu["allocated"]) == (200, 200)
    assert await recount(registry, node["pool_id"]) is False


def _uuid(text: str) -> UUID:
    """The UUID of any typed id."""
    prefix = text.partition("_")[0]
    return UUID(int=DeviceId.parse(text.replace(prefix, "dev", 1)).int)
