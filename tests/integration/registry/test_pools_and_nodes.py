"""What operators do with pools and nodes, and what tenants see of it."""

import asyncio
from typing import Any

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.events.scheduler import NodeEmptied, NodeQuarantined
from millpond_contracts.ids import NodeId, TenantId
from millpond_kernel.db import SYSTEM, TenantScope
from millpond_registry.store.pools import read_all_pools
from millpond_registry.usecases.beginnings import prepare
from millpond_registry.usecases.nodes import take_emptied, take_quarantined
from tests.factories.registry import Agent, inventory
from tests.integration.registry.conftest import Registry

pytestmark = pytest.mark.integration


async def make_pool(registry: Registry, name: str, **spec: Any) -> dict[str, Any]:
    return dict((await registry.operator("POST", "/v1/pools", {"name": name, **spec}, expect=201)).json())


async def emptied(registry: Registry, agent: Agent, drain_generation: int) -> None:
    """What the consumer does with the scheduler's answer to a drain."""
    async with registry.database.begin(SYSTEM) as unit:
        event = NodeEmptied(
            node_id=NodeId.parse(agent.node_id), drain_generation=drain_generation, generation=drain_generation
        )
        await take_emptied(unit, event)


async def ready_agent(registry: Registry, name: str = "machine") -> Agent:
    agent = registry.agent()
    await agent.become_ready(await registry.join_token(), inventory(), name=name)
    return agent


async def test_start_when_many_processes_begin_together_then_one_default_pool(registry: Registry) -> None:
    await asyncio.gather(*(prepare(registry.database) for _ in range(6)))
    pools = (await registry.get("/v1/pools"))["items"]
    assert [(pool["name"], pool["priority"]) for pool in pools] == [("default", 0)]
    assert await registry.events(pools[0]["pool_id"]) == ["pool_changed"]


async def test_pool_when_created_twice_with_one_key_then_one_pool(registry: Registry) -> None:
    headers = {"Idempotency-Key": "once"}
    first = await registry.operator("POST", "/v1/pools", {"name": "fast"}, headers=headers, expect=201)
    again = await registry.operator("POST", "/v1/pools", {"name": "fast"}, headers=headers, expect=201)
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (first.json(), "true")
    assert first.headers["Location"] == f"/v1/pools/{first.json()['pool_id']}"
    other = await registry.operator("POST", "/v1/pools", {"name": "slow"}, headers=headers)
    assert other.status_code == 422
    taken = await registry.operator("POST", "/v1/pools", {"name": "fast"})
    assert (taken.status_code, taken.json()["code"]) == (409, "kernel.name.taken")


async def test_pool_when_replaced_then_if_match_guards_it(registry: Registry) -> None:
    pool = await make_pool(registry, "fast")
    path = f"/v1/pools/{pool['pool_id']}"
    assert (await registry.operator("PUT", path, {"name": "fast"})).status_code == 428
    await registry.operator("PUT", path, {"name": "faster"}, headers={"If-Match": '"1"'}, expect=200)
    await registry.operator("PUT", path, {"name": "fastest"}, headers={"If-Match": '"1"'}, expect=412)
    taken = await registry.operator("PUT", path, {"name": "default"}, headers={"If-Match": '"2"'})
    assert taken.status_code == 409
    found = await registry.operator("GET", path)
    assert (found.json()["name"], found.headers["ETag"]) == ("faster", '"2"')
    assert await registry.events(pool["pool_id"]) == ["pool_changed"] * 2


async def test_pool_when_it_holds_or_expects_nodes_then_not_deleted(registry: Registry) -> None:
    agent = await ready_agent(registry)
    target = await make_pool(registry, "target")
    path = f"/v1/pools/{target['pool_id']}"
    await registry.operator("POST", f"/v1/nodes/{agent.node_id}/move", {"pool_id": target["pool_id"]}, expect=202)
    refused = await registry.operator("DELETE", path, headers={"If-Match": "*"})
    assert (refused.status_code, refused.json()["code"]) == (409, "registry.pool.not_empty")
    home = (await registry.node(agent))["pool_id"]
    await registry.operator("POST", f"/v1/nodes/{agent.node_id}/move", {"pool_id": home}, expect=202)
    token = await registry.join_token(pool_id=target["pool_id"])
    await registry.operator("DELETE", path, headers={"If-Match": "*"}, expect=204)
    await registry.get(path, expect=404)
    await registry.agent().join(token, inventory(), expect=401)


async def test_pool_when_dedicated_then_other_tenants_do_not_see_it(registry: Registry) -> None:
    async def tenant(name: str) -> tuple[str, Any]:
        made = (await registry.operator("POST", "/v1/tenants", {"name": name}, expect=201)).json()
        spec = {"name": "viewer", "role": "viewer", "tenant_id": made["tenant_id"]}
        key = (await registry.operator("POST", "/v1/api-keys", spec, expect=201)).json()
        return made["tenant_id"], registry.services.as_key(key["secret"])

    owner_id, owner = await tenant("owner")
    _, stranger = await tenant("stranger")
    pool = await make_pool(registry, "theirs", isolation="dedicated", tenant_id=owner_id)
    path = f"/v1/pools/{pool['pool_id']}"
    for route in (path, f"{path}/capacity"):
        assert (await owner("GET", route)).status_code == 200
        assert (await stranger("GET", route)).json()["code"] == "registry.pool.not_found"
    assert len((await owner("GET", "/v1/pools")).json()["items"]) == 2
    assert [item["name"] for item in (await stranger("GET", "/v1/pools")).json()["items"]] == ["default"]
    assert (await stranger("GET", "/v1/flavors")).status_code == 200
    assert (await stranger("GET", "/v1/accelerators?vendor=nvidia")).json()["items"][0]["vendor"] == "nvidia"
    for route in ("/v1/nodes", "/v1/devices", "/v1/join-tokens"):
        assert (await owner("GET", route)).status_code == 403
    assert (await owner("POST", "/v1/pools", {"name": "mine"})).status_code == 403
    # The policy of the table, not the route, keeps the row away.
    async with registry.database.begin(TenantScope(TenantId.new())) as unit:
        assert [view.name for view in await read_all_pools(unit)] == ["default"]
        assert await unit.fetchval("SELECT count(*) FROM capacity") == 1


async def test_pool_when_isolation_and_tenant_contradict_then_refused(registry: Registry) -> None:
    for spec in ({"isolation": "dedicated"}, {"tenant_id": str(TenantId.new())}):
        answer = await registry.operator("POST", "/v1/pools", {"name": "odd", **spec})
        assert (answer.status_code, answer.json()["code"]) == (422, "kernel.body.invalid")


async def test_cordon_when_owners_differ_then_each_removes_only_its_own(registry: Registry) -> None:
    agent = await ready_agent(registry)
    path = f"/v1/nodes/{agent.node_id}"
    async with registry.database.begin(SYSTEM) as unit:
        await unit.execute("UPDATE node SET cordon_reasons = '{scale_in}'")
    both = (await registry.operator("POST", f"{path}/cordon", {}, expect=200)).json()
    assert (both["cordon_reasons"], both["schedulable"]) == (["operator", "scale_in"], False)
    again = (await registry.operator("POST", f"{path}/cordon", {}, expect=200)).json()
    assert again["generation"] == both["generation"]
    left = (await registry.operator("POST", f"{path}/uncordon", {}, expect=200)).json()
    assert (left["cordon_reasons"], left["schedulable"]) == (["scale_in"], False)
    stale = await registry.operator("POST", f"{path}/cordon", {"generation": 1})
    assert (stale.status_code, stale.json()["code"]) == (409, "kernel.generation.stale")


async def test_node_when_jobs_fail_there_in_a_row_then_closed_with_the_reason_until_an_operator_opens_it_h11(
    registry: Registry,
) -> None:
    agent = await ready_agent(registry)
    path = f"/v1/nodes/{agent.node_id}"
    event = NodeQuarantined(
        node_id=NodeId.parse(agent.node_id),
        failures=5,
        within_seconds=10,
        last_reason=EndReason.START_FAILED,
        generation=1,
    )
    async with registry.database.begin(SYSTEM) as unit:
        await take_quarantined(unit, event)
    closed = await registry.node(agent)
    assert (closed["state"], closed["cordon_reasons"], closed["schedulable"]) == ("ready", ["health"], False)
    (condition,) = (await registry.get(f"{path}/conditions"))["items"]
    assert (condition["target"], condition["name"], condition["closed_at"]) == ("node", "quarantined", None)
    assert "5 different jobs in a row" in condition["evidence"]
    assert "start_failed" in condition["evidence"]
    opened = (await registry.operator("POST", f"{path}/uncordon", {}, expect=200)).json()
    assert (opened["cordon_reasons"], opened["schedulable"]) == ([], True)
    (condition,) = (await registry.get(f"{path}/conditions"))["items"]
    assert condition["closed_at"] is not None
    actions = [row["action"] for row in (await registry.get("/v1/audit/registry"))["items"]]
    assert "node.uncordon" in actions


async def test_drain_when_scheduler_says_empty_then_marked_and_only_for_this_drain(registry: Registry) -> None:
    agent = await ready_agent(registry)
    path = f"/v1/nodes/{agent.node_id}"
    first = (await registry.operator("POST", f"{path}/drain", {"deadline_seconds": 60}, expect=202)).json()
    assert first["drain"]["generation"] == first["generation"]
    assert (first["cordon_reasons"], first["schedulable"]) == (["drain"], False)
    second = (await registry.operator("POST", f"{path}/drain", {}, expect=202)).json()
    await emptied(registry, agent, first["drain"]["generation"])
    assert (await registry.node(agent))["drain"]["emptied_at"] is None
    assert (await registry.operator("DELETE", path, headers={"If-Match": "*"})).status_code == 409
    await emptied(registry, agent, second["drain"]["generation"])
    await emptied(registry, agent, second["drain"]["generation"])
    drained = await registry.node(agent)
    assert drained["drain"]["emptied_at"] is not None
    assert drained["generation"] == second["generation"] + 1
    await registry.operator("DELETE", path, headers={"If-Match": f'"{drained["generation"]}"'}, expect=204)
    assert (await registry.get("/v1/nodes"))["items"] == []
    assert (await registry.get("/v1/nodes?state=removed"))["items"][0]["node_id"] == agent.node_id
    await agent.beat(expect=404)
    events = await registry.events(agent.node_id)
    assert events[-4:] == ["node_drain_requested", "node_drain_requested", "node_cordoned", "node_removed"]
    old = agent.node_id
    await agent.join(await registry.join_token(), inventory())
    assert agent.node_id != old


async def test_drain_when_called_off_then_node_takes_work_again(registry: Registry) -> None:
    agent = await ready_agent(registry)
    path = f"/v1/nodes/{agent.node_id}"
    drain = (await registry.operator("POST", f"{path}/drain", {}, expect=202)).json()["drain"]
    back = (await registry.operator("POST", f"{path}/uncordon", {}, expect=200)).json()
    assert (back["drain"], back["schedulable"]) == (None, True)
    await emptied(registry, agent, drain["generation"])
    assert (await registry.node(agent))["generation"] == back["generation"]


async def test_move_when_emptied_then_node_is_in_new_pool_under_a_free_name(registry: Registry) -> None:
    target = await make_pool(registry, "target", priority=-1)
    resident = registry.agent()
    await resident.join(await registry.join_token(pool_id=target["pool_id"]), inventory(), name="rack")
    agent = await ready_agent(registry, "rack")
    home = (await registry.node(agent))["pool_id"]
    path = f"/v1/nodes/{agent.node_id}"
    moving = await registry.operator("POST", f"{path}/move", {"pool_id": target["pool_id"]}, expect=202)
    assert moving.json()["cordon_reasons"] == ["move"]
    assert moving.json()["pool_id"] == home
    other = await registry.operator("POST", f"{path}/drain", {})
    assert (other.status_code, other.json()["code"]) == (409, "registry.node.state")
    await emptied(registry, agent, moving.json()["drain"]["generation"])
    moved = await registry.node(agent)
    assert (moved["pool_id"], moved["name"], moved["schedulable"]) == (target["pool_id"], "rack-2", True)
    async with registry.database.begin(SYSTEM) as unit:
        body = await unit.fetchval("SELECT body FROM outbox WHERE type = 'registry.node_moved.v1'")
    assert (body["from_pool_id"], body["node"]) == (home, {**moved, "last_heartbeat_at": moved["last_heartbeat_at"]})
    renewed = await agent.send("POST", "/v1/agent/sessions/renew", {}, expect=200)
    assert renewed.json()["pool"]["name"] == "target"


async def test_nodes_when_listed_then_paged_and_filtered(registry: Registry) -> None:
    token = await registry.join_token()
    for number in range(3):
        await registry.agent().join(token, inventory(), name=f"node-{number}")
    await ready_agent(registry, "ready")
    first = await registry.get("/v1/nodes?limit=3")
    rest = await registry.get(f"/v1/nodes?limit=3&cursor={first['next_cursor']}")
    names = [node["name"] for node in first["items"] + rest["items"]]
    assert names == ["node-0", "node-1", "node-2", "ready"]
    assert [node["name"] for node in (await registry.get("/v1/nodes?state=ready"))["items"]] == ["ready"]
    await registry.get("/v1/nodes?cursor=nonsense", expect=400)
    await registry.get(f"/v1/nodes/{NodeId.new()}", expect=404)
    await registry.get("/v1/nodes/not-an-id", expect=422)


async def test_audit_when_operator_acts_then_recorded_without_the_token(registry: Registry) -> None:
    await registry.join_token()
    await make_pool(registry, "fast")
    rows = (await registry.get("/v1/audit/registry"))["items"]
    assert [row["action"] for row in rows] == ["join_token.create", "pool.create"]
    assert "mpj_" not in str(rows)


async def test_snapshot_when_read_then_same_as_the_last_events(registry: Registry) -> None:
    agent = await ready_agent(registry)
    service = registry.services.as_key(registry.services.settings["quota"].service_key.get_secret_value())
    pages = {}
    for noun in ("nodes", "pools", "flavors", "capacity"):
        response = await service("GET", f"/internal/v1/snapshot/registry/{noun}?limit=1000", expect=200)
        pages[noun] = response.json()["items"]
    async with registry.database.begin(SYSTEM) as unit:
        last = await unit.fetchval(
            "SELECT body->'node' FROM outbox WHERE subject = $1 ORDER BY id DESC LIMIT 1", agent.node_id
        )
        flavors = await unit.fetch("SELECT body->'flavor' AS flavor FROM outbox WHERE type LIKE '%flavor%'")
    heartbeat = {"last_heartbeat_at": None}
    assert [{**node, **heartbeat} for node in pages["nodes"]] == [{**last, **heartbeat}]
    assert pages["flavors"] == sorted((row["flavor"] for row in flavors), key=lambda flavor: flavor["name"])
    assert [pool["name"] for pool in pages["pools"]] == ["default"]
    assert len(pages["capacity"]) == 1


async def test_node_when_many_change_it_at_once_then_every_event_has_its_own_generation(registry: Registry) -> None:
    agent = await ready_agent(registry)
    path = f"/v1/nodes/{agent.node_id}"
    before = await registry.events(agent.node_id)

    async def operate(number: int) -> int:
        verb = ("cordon", "uncordon", "drain")[number % 3]
        return (await registry.operator("POST", f"{path}/{verb}", {})).status_code

    async def report(number: int) -> int:
        return (await agent.push(inventory(allocatable_cpu_milli=1000 + number))).status_code

    codes = await asyncio.gather(*(operate(number) for number in range(12)), *(report(number) for number in range(6)))
    assert set(codes) <= {200, 202, 204}
    events = await registry.events(agent.node_id)
    assert len(events) >= len(before) + 5
    async with registry.database.begin(SYSTEM) as unit:
        last = await unit.fetchrow("SELECT generation, body->'node' AS node FROM outbox ORDER BY id DESC LIMIT 1")
    node = await registry.node(agent)
    assert last is not None
    assert node["generation"] == last["generation"]
    assert {**node, "last_heartbeat_at": None} == {**last["node"], "last_heartbeat_at": None}
