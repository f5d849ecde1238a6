"""A machine becomes a node: tokens, names, keys, sessions."""

import asyncio

import pytest

from millpond_contracts.bodies.scaling import NODE_ORDER_LABEL
from millpond_kernel.db import SYSTEM
from tests.factories.registry import Agent, gpu, inventory
from tests.integration.registry.conftest import Registry

pytestmark = pytest.mark.integration


async def test_join_when_machine_is_new_then_node_is_unschedulable_until_ready_case_22(registry: Registry) -> None:
    agent, machine = registry.agent(), inventory([gpu(0), gpu(1)])
    await agent.join(await registry.join_token(), machine)
    joined = await registry.node(agent)
    assert (joined["state"], joined["schedulable"], joined["incarnation"]) == ("joined", False, 0)
    answer = await agent.open_session()
    assert (answer["incarnation"], answer["pool"]["name"]) == (1, "default")
    assert (await registry.node(agent))["state"] == "checking"
    await agent.push(machine)
    await agent.ready()
    ready = await registry.node(agent)
    assert (ready["state"], ready["schedulable"], ready["cpu_milli"]) == ("ready", True, 8000)
    assert [device["flavor"] for device in ready["devices"]] == ["nvidia-a100-sxm4-80gb"] * 2
    assert ready["devices"][0]["attributes"]["bf16_tflops"] == 312
    assert await registry.events(agent.node_id) == ["node_registered", "node_session_opened", "node_became_ready"]


async def test_join_when_repeated_with_one_key_then_same_node_even_after_last_use(registry: Registry) -> None:
    agent, token = registry.agent(), await registry.join_token(max_uses=1)
    first = await agent.join(token, inventory())
    again = await agent.join(token, inventory(), name="other")
    assert again == first
    assert len((await registry.get("/v1/nodes"))["items"]) == 1


async def test_join_when_name_is_taken_then_suffix_and_pool_stays_unique(registry: Registry) -> None:
    token = await registry.join_token()
    agents = [registry.agent() for _ in range(6)]
    answers = await asyncio.gather(*(agent.join(token, inventory(), name="rack") for agent in agents))
    assert sorted(answer["name"] for answer in answers) == ["rack", *(f"rack-{number}" for number in range(2, 7))]


async def test_w1_machines_when_alike_in_everything_but_their_keys_then_two_nodes_that_leave_one_another_alone(
    registry: Registry,
) -> None:
    token, agents = await registry.join_token(), [registry.agent(), registry.agent()]
    for agent in agents:
        await agent.become_ready(token, inventory(), name="twin")
    for agent in (*agents, *agents):
        assert (await agent.beat())["state"] == "ready"
    nodes = [await registry.node(agent) for agent in agents]
    assert [node["name"] for node in nodes] == ["twin", "twin-2"]
    assert [(node["incarnation"], node["boot_id"]) for node in nodes] == [(1, nodes[0]["boot_id"])] * 2


async def test_join_when_one_key_joins_many_times_at_once_then_one_node(registry: Registry) -> None:
    agent, token = registry.agent(), await registry.join_token(max_uses=1)
    answers = await asyncio.gather(*(agent.join(token, inventory()) for _ in range(8)))
    assert len({answer["node_id"] for answer in answers}) == 1
    assert (await registry.get("/v1/join-tokens"))["items"][0]["uses"] == 1


async def test_join_when_token_has_fewer_uses_than_machines_then_exactly_those_join(registry: Registry) -> None:
    token = await registry.join_token(max_uses=3)
    agents = [registry.agent() for _ in range(8)]

    async def try_to_join(agent: Agent) -> int:
        body: dict[str, object] = {"token": token, "public_key": agent.public_key, "name": "m"}
        body["inventory"] = inventory().model_dump(mode="json")
        return (await agent.send("POST", "/v1/nodes/join", body)).status_code

    codes = await asyncio.gather(*(try_to_join(agent) for agent in agents))
    assert sorted(codes) == [201] * 3 + [401] * 5


async def test_join_when_token_is_wrong_expired_or_revoked_then_refused(registry: Registry) -> None:
    assert (await registry.agent().join("mpj_wrong-token", inventory(), expect=401))[
        "code"
    ] == "registry.join_token.invalid"
    expired = await registry.join_token()
    async with registry.database.begin(SYSTEM) as unit:
        await unit.execute("UPDATE join_token SET expires_at = clock_timestamp() - interval '1 second'")
    assert "expired" in (await registry.agent().join(expired, inventory(), expect=401))["detail"]
    revoked = await registry.join_token()
    listed = (await registry.get("/v1/join-tokens"))["items"]
    assert all(token["token"] is None for token in listed)
    path = f"/v1/join-tokens/{listed[-1]['join_token_id']}"
    await registry.operator("DELETE", path, headers={"If-Match": '"1"'}, expect=204)
    assert "revoked" in (await registry.agent().join(revoked, inventory(), expect=401))["detail"]
    assert (await registry.get("/v1/nodes"))["items"] == []


async def test_join_when_pools_compete_then_selector_of_highest_priority_takes_it(registry: Registry) -> None:
    async def pool(name: str, priority: int, selector: dict[str, object]) -> str:
        body = {"name": name, "priority": priority, "selector": selector}
        return str((await registry.operator("POST", "/v1/pools", body, expect=201)).json()["pool_id"])

    nvidia = await pool("nvidia", 5, {"vendor": "nvidia"})
    a100 = await pool("a100", 10, {"model_key": "A100 SXM4 80GB", "labels": {"tier": "gold"}})
    named = await pool("named", 0, {"region": "nowhere"})
    token = await registry.join_token()
    gold = await registry.agent().join(token, inventory([gpu()]), labels={"tier": "gold"})
    plain = await registry.agent().join(token, inventory([gpu()]))
    bare = await registry.agent().join(token, inventory())
    fixed = await registry.agent().join(await registry.join_token(pool_id=named), inventory([gpu()]))
    default = (await registry.get("/v1/pools?name=default"))["items"][0]["pool_id"]
    assert [gold["pool_id"], plain["pool_id"], bare["pool_id"], fixed["pool_id"]] == [a100, nvidia, default, named]


async def test_join_when_a_machine_claims_an_order_then_only_its_token_may_say_so(registry: Registry) -> None:
    claim = {NODE_ORDER_LABEL: "norder_01m8mrpz00000000000000000z", "use": "any"}
    plain = await registry.join_token()
    ordered = await registry.join_token(labels={NODE_ORDER_LABEL: "norder_01m8mrpz00000000000000000a"})
    for token in (plain, ordered):
        await registry.agent().join(token, inventory(labels=claim), labels=claim)
    labels = [node["labels"] for node in (await registry.get("/v1/nodes"))["items"]]
    assert labels == [{"use": "any"}, {"use": "any", NODE_ORDER_LABEL: "norder_01m8mrpz00000000000000000a"}]


async def test_join_when_body_is_bad_then_problem_and_no_node(registry: Registry) -> None:
    token, agent = await registry.join_token(), registry.agent()
    await agent.join(token, inventory([gpu(0), gpu(0)]), expect=422)
    await agent.join(token, inventory(), name="Bad Name", expect=422)
    await agent.join(token, inventory(), surprise=1, expect=422)
    for field, value in (("memory_mib", -1), ("memory_mib", 2**62), ("memory_mib", 9e30), ("memory_mib", 1.5)):
        machine = {**inventory().model_dump(mode="json"), field: value}
        body = {"token": token, "public_key": agent.public_key, "name": "m", "inventory": machine}
        await agent.send("POST", "/v1/nodes/join", body, expect=422)
    assert (await registry.get("/v1/nodes"))["items"] == []


async def test_session_when_signature_or_nonce_is_wrong_then_refused_and_nothing_changes(registry: Registry) -> None:
    agent, other = registry.agent(), registry.agent()
    token = await registry.join_token()
    await agent.join(token, inventory())
    await other.join(token, inventory())
    nonce = (await agent.send("POST", "/v1/agent/challenges", {"node_id": agent.node_id}, expect=201)).json()["nonce"]
    forged = {**other.signed(nonce), "node_id": agent.node_id}
    answer = await agent.send("POST", "/v1/agent/sessions", forged, expect=401)
    assert answer.json()["code"] == "registry.signature.invalid"
    await agent.send("POST", "/v1/agent/sessions", other.signed(nonce), expect=401)
    assert (await registry.node(agent))["incarnation"] == 0
    await agent.send("POST", "/v1/agent/sessions", agent.signed(nonce), expect=201)
    await agent.send("POST", "/v1/agent/sessions", agent.signed(nonce), expect=401)
    assert (await registry.node(agent))["incarnation"] == 1


async def test_session_when_second_agent_has_same_key_then_first_is_superseded(registry: Registry) -> None:
    agent, machine = registry.agent(), inventory()
    await agent.become_ready(await registry.join_token(), machine)
    twin = registry.agent()
    twin.key, twin.node_id = agent.key, agent.node_id
    assert (await twin.open_session())["incarnation"] == 2
    for call in (agent.beat(expect=409), agent.send("POST", "/v1/agent/sessions/renew", {}, expect=409)):
        answer = await call
        code = answer["code"] if isinstance(answer, dict) else answer.json()["code"]
        assert code == "registry.node.superseded"
    await agent.push(machine, expect=409)
    await agent.ready(expect=409)
    assert (await twin.beat())["send_inventory"] is True
    await twin.push(machine)
    assert (await twin.beat())["send_inventory"] is False
    # A restart of the agent alone leaves a ready node ready.
    assert (await registry.node(agent))["state"] == "ready"


async def test_session_when_machine_was_booted_then_ready_node_is_checked_again(registry: Registry) -> None:
    agent, machine = registry.agent(), inventory()
    await agent.become_ready(await registry.join_token(), machine)
    await agent.open_session(boot_id="boot-2")
    assert (await registry.node(agent))["state"] == "checking"
    await agent.ready(expect=409)
    await agent.push(inventory(boot_id="boot-2"))
    await agent.ready()
    assert (await registry.node(agent))["state"] == "ready"


async def test_renew_when_session_is_current_then_fresh_token_of_same_incarnation(registry: Registry) -> None:
    agent = registry.agent()
    await agent.become_ready(await registry.join_token(), inventory())
    answer = (await agent.send("POST", "/v1/agent/sessions/renew", {}, expect=200)).json()
    assert answer["incarnation"] == 1
    agent.token = answer["token"]
    await agent.beat()


async def test_node_token_when_used_for_operator_routes_then_forbidden(registry: Registry) -> None:
    agent = registry.agent()
    await agent.become_ready(await registry.join_token(), inventory())
    await agent.send("GET", "/v1/nodes", None, expect=403)
    await agent.send("POST", f"/v1/nodes/{agent.node_id}/uncordon", {}, expect=403)
    registry_operator = await registry.operator("POST", "/v1/agent/heartbeat", {})
    assert registry_operator.status_code == 403


async def test_challenge_when_asked_without_end_then_bounded(registry: Registry) -> None:
    agent = registry.agent()
    await agent.join(await registry.join_token(), inventory())
    codes = [
        (await agent.send("POST", "/v1/agent/challenges", {"node_id": agent.node_id})).status_code for _ in range(18)
    ]
    assert codes == [201] * 16 + [429] * 2
