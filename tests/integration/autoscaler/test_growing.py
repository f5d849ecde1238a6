"""A pool that grows under queued work: bound demand, providers that fail on plan, and what is remembered of it."""

import asyncio

import pytest

from millpond_autoscaler.usecases.deciding import decide_again
from millpond_contracts.bodies.scaling import ScalingDecisionView
from millpond_kernel.db import SYSTEM
from tests.integration.autoscaler.conftest import FLAVOR, Growing, make_share
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def test_a4_thirty_jobs_at_once_when_nodes_have_eight_devices_then_four_are_bought(growing: Growing) -> None:
    growing.machines.is_joining = False
    await growing.policy()
    await asyncio.gather(*(growing.submit(1) for _ in range(30)))

    await growing.wait_for(4, "provisioning")
    # Decided again and again while they boot: what waits is bound to them.
    await asyncio.sleep(1.5)
    assert len(await growing.orders()) == 4
    growing.machines.is_joining = True

    async def all_run() -> bool:
        return await growing.running() == 30

    await eventually(all_run, 30)
    joined = await growing.wait_for(4, "joined")
    nodes = (await growing.operator("GET", "/v1/nodes?limit=200", expect=200)).json()["items"]
    assert {node["node_id"] for node in nodes} == {order["node_id"] for order in joined}
    assert {node["labels"]["millpond/node-order"] for node in nodes} == {order["node_order_id"] for order in joined}
    assert {node["pool_id"] for node in nodes} == {growing.pool_id}
    bought = await growing.decisions("demand")
    assert sum(one["nodes"] for one in bought) == 4
    assert all(one["rule"] == "emergency" and one["inputs"]["demand"] for one in bought)
    assert (await growing.outbox()).count("node_provisioned") == 4


async def test_demand_when_a_limit_holds_it_back_then_no_node_is_bought_for_it(growing: Growing) -> None:
    tenant = (await growing.operator("POST", "/v1/tenants", {"name": "small"}, expect=201)).json()["tenant_id"]
    share = await make_share(growing.operator, tenant, growing.pool_id, devices=9)
    key = {"name": "k", "role": "member", "tenant_id": tenant}
    secret = (await growing.operator("POST", "/v1/api-keys", key, expect=201)).json()["secret"]
    growing.member, growing.virtual_pool_id = growing.services.as_key(secret), share
    await growing.policy()
    await growing.submit(40)

    async def nine_run() -> bool:
        return await growing.running() == 9

    await eventually(nine_run, 30)
    assert len(await growing.orders()) == 2


async def test_decisions_when_read_then_each_says_why_and_is_decided_again_alike(growing: Growing) -> None:
    policy = await growing.policy()
    await growing.submit(3)
    await growing.wait_for(1, "joined")
    found = await growing.decisions()
    assert found
    for one in found:
        assert one["reason"]
        assert one["scaling_policy_id"] == policy["scaling_policy_id"]
        path = f"/v1/scaling-decisions/{one['scaling_decision_id']}"
        read = ScalingDecisionView.model_validate((await growing.operator("GET", path, expect=200)).json())
        again = decide_again(read)
        kept = (read.rule, read.action, read.nodes, read.code, read.reason, read.load_ratio)
        assert (again.rule, again.action, again.nodes, again.code, again.reason, again.load_ratio) == kept


async def test_order_when_its_machine_never_comes_then_it_fails_is_given_back_and_another_is_bought(
    growing: Growing,
) -> None:
    await growing.policy(rules={"registration_seconds": 1}, template={"simulated": {"fail_orders": [1]}})
    await growing.submit(1)
    await growing.wait_for(1, "provisioning")
    async with growing.database.begin(SYSTEM) as unit:
        # As if the time had passed that a late join is waited for.
        await unit.execute("UPDATE node_order SET register_by = register_by - interval '10 seconds'")

    (failed,) = await growing.wait_for(1, "failed", seconds=40)
    assert (failed["number"], failed["waits_for"]) == (1, "no node joined in time")
    # Its machine is an orphan now, found by its tag.
    await eventually(lambda: not (growing.machines.folder / f"{failed['node_order_id']}.json").exists())
    (joined,) = await growing.wait_for(1, "joined", seconds=40)
    assert joined["number"] == 2


async def test_stock_out_when_the_provider_has_none_then_it_is_remembered_and_not_asked_again(
    growing: Growing,
) -> None:
    await growing.policy(template={"simulated": {"stock_nodes": 1}})
    await growing.submit(30)
    await growing.wait_for(1, "joined")
    failed = await growing.wait_for(3, "failed")
    assert all("in use" in order["waits_for"] for order in failed)
    await eventually(lambda: growing.decisions("stock_out"))
    assert len(await growing.orders()) == 4


async def test_policy_when_at_its_most_then_it_says_so_and_not_at_every_pass(growing: Growing) -> None:
    await growing.policy(rules={"max_nodes": 1})
    await growing.submit(30)
    await growing.wait_for(1, "joined")
    await eventually(lambda: growing.decisions("at_maximum"))
    await asyncio.sleep(2)
    # Decided ten times meanwhile, and told when the reason became another.
    assert len(await growing.decisions("at_maximum")) <= 3
    assert len(await growing.orders()) == 1


async def test_minimum_when_set_then_kept_without_any_demand(growing: Growing) -> None:
    await growing.policy(rules={"min_nodes": 2})
    await growing.wait_for(2, "joined")
    (decision,) = await growing.decisions("below_minimum")
    assert (decision["rule"], decision["nodes"], decision["flavor"]) == ("minimum", 2, FLAVOR)
