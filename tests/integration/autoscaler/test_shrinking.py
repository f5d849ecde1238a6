"""A pool that shrinks: only what is known to be idle, by handshake, and never what is needed again."""

import asyncio
from typing import Any

import pytest

from millpond_autoscaler.settings import Settings
from millpond_autoscaler.worker import create_worker
from millpond_kernel.db import SYSTEM
from millpond_kernel.worker import run_worker
from tests.factories.registry import Agent, gpu, inventory
from tests.integration.autoscaler.conftest import Growing
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def test_scale_in_when_the_load_stayed_low_then_drained_emptied_removed_and_given_back(
    growing: Growing,
) -> None:
    await growing.policy(rules={"min_nodes": 1})
    await growing.submit(30)
    await growing.wait_for(4, "joined")
    await _run(growing, 30)
    await growing.machines.end_everything()

    await growing.wait_for(3, "released", seconds=40)
    assert len(await growing.orders("joined")) == 1
    nodes = (await growing.operator("GET", "/v1/nodes?limit=200", expect=200)).json()["items"]
    assert len(nodes) == 1
    await eventually(lambda: len(growing.machines.by_order) == 1)
    told = await growing.outbox()
    assert told.count("node_release_announced") == told.count("node_released") == len(await growing.orders("released"))
    assert all(one["rule"] == "scale_in" for one in await growing.decisions("low_load"))


@pytest.mark.parametrize("told", ["nothing", "null"])
async def test_a6_signals_when_they_stop_or_are_null_then_the_size_is_held_and_it_says_so(
    growing: Growing, told: str
) -> None:
    growing.machines.signal = None
    await growing.policy()
    await growing.submit(9)
    await growing.wait_for(2, "joined")
    await _run(growing, 9)
    if told == "nothing":
        for machine in growing.machines.by_order.values():
            machine.beat_at = float("inf")
    await growing.machines.end_everything()

    decision, *_ = await eventually(lambda: growing.decisions("unknown_signals"), 30)
    assert "unknown is not idle" in decision["reason"]
    assert (decision["action"], decision["inputs"]["signals"]["told"]) == ("none", 0)
    await asyncio.sleep(1)
    assert len(await growing.orders("joined")) == 2

    # Known again, and the pool shrinks.
    growing.machines.signal = 0.0
    for machine in growing.machines.by_order.values():
        machine.beat_at = 0.0
    await growing.wait_for(2, "released", seconds=40)


async def test_emergency_when_nodes_are_being_drained_then_they_stay_and_none_is_bought(growing: Growing) -> None:
    await growing.policy(rules={"drain_busy_nodes": True, "min_nodes": 1})
    await growing.submit(8, devices=2)
    await growing.wait_for(2, "joined")
    await _run(growing, 8)
    # A task is left on each node, so that a drain lasts.
    for machine in list(growing.machines.by_order.values()):
        for allocation_id in list(machine.held)[1:]:
            await machine.end(allocation_id)
    (draining,) = await _draining(growing)

    # More than the other node has room for.
    await growing.submit(6, devices=2)
    await eventually(lambda: growing.outbox_has("node_release_cancelled"), 30)

    async def kept() -> bool:
        node = (await growing.operator("GET", f"/v1/nodes/{draining['node_id']}", expect=200)).json()
        return node["schedulable"] and not node["cordon_reasons"]

    await eventually(kept, 30)
    await _run(growing, 8)
    assert len(await growing.orders()) == 2


async def test_a8_worker_when_started_again_and_policy_edited_then_running_work_is_untouched(
    growing: Growing,
) -> None:
    policy = await growing.policy()
    jobs = [await growing.submit(1) for _ in range(20)]
    await growing.wait_for(3, "joined")
    await _run(growing, 20)
    settings = growing.services.settings["autoscaler"]
    assert isinstance(settings, Settings)
    for round_number in range(3):
        # A second copy comes and goes: whoever holds the lease decides alike.
        stop = asyncio.Event()
        copy = create_worker(settings, transport=growing.services.transport)
        task = asyncio.create_task(run_worker(copy, stop))
        spec = {name: policy[name] for name in ("name", "pool_id", "flavor", "template", "enabled")}
        spec["rules"] = {**policy["rules"], "max_nodes": 8 + round_number}
        path = f"/v1/scaling-policies/{policy['scaling_policy_id']}"
        await growing.operator("PUT", path, spec, headers={"If-Match": "*"}, expect=200)
        async with growing.database.begin(SYSTEM) as unit:
            await unit.execute("UPDATE lease SET expires_at = clock_timestamp() WHERE name = 'scaling'")
        await asyncio.sleep(1)
        stop.set()
        await task
    assert await growing.running() == 20
    assert {await growing.state_of(job) for job in jobs} == {"running"}
    assert len(await growing.orders()) == 3


async def test_node_when_an_operator_removes_it_then_its_machine_is_given_back(growing: Growing) -> None:
    await growing.policy(rules={"max_nodes": 1, "safety_window_seconds": 3600})
    await growing.submit(1)
    (order,) = await growing.wait_for(1, "joined")
    await _run(growing, 1)
    await growing.machines.end_everything()
    path = f"/v1/nodes/{order['node_id']}"
    await growing.operator("POST", f"{path}/drain", {"deadline_seconds": 0}, expect=202)

    async def removed() -> bool:
        return (await growing.operator("DELETE", path, headers={"If-Match": "*"})).status_code == 204

    await eventually(removed, 30)
    await growing.wait_for(1, "released")
    await eventually(lambda: not growing.machines.by_order)


async def test_node_of_other_origin_when_the_load_is_low_then_never_touched(growing: Growing) -> None:
    token = (await growing.operator("POST", "/v1/join-tokens", {"pool_id": growing.pool_id}, expect=201)).json()
    agent = Agent(growing.services.http)
    await agent.become_ready(token["token"], inventory([gpu(0), gpu(1)]), name="own")
    await growing.policy()
    await asyncio.sleep(3)
    node = (await growing.operator("GET", f"/v1/nodes/{agent.node_id}", expect=200)).json()
    assert (node["state"], node["cordon_reasons"]) == ("ready", [])
    assert await growing.orders() == []


async def _run(growing: Growing, count: int) -> None:
    async def running() -> bool:
        return (
            await growing.running() == count
            and sum(len(machine.held) for machine in growing.machines.by_order.values()) == count
        )

    await eventually(running, 30)


async def _draining(growing: Growing) -> list[dict[str, Any]]:
    async def found() -> Any:
        return [order for order in await growing.orders("releasing") if order["drain_deadline"] is not None]

    return list(await eventually(found, 30))
