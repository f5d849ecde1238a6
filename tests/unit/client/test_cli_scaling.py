"""`millpond scaling` on the screen: what was decided and why, where each ordered node is, policies from a file."""

import json
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from millpond_contracts.bodies.scaling import (
    NodeOrderState,
    NodeOrderView,
    NodeTemplate,
    ScalingAction,
    ScalingDecisionView,
    ScalingPolicyView,
    ScalingRule,
    ScalingRules,
)
from millpond_contracts.ids import NodeOrderId, ScalingDecisionId, ScalingPolicyId
from tests.architecture.tree import ROOT
from tests.unit.client.commands import run
from tests.unit.client.fake_api import FakeApi, page
from tests.unit.client.things import pool

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
POLICY = ScalingPolicyView(
    scaling_policy_id=ScalingPolicyId.new(),
    name="growing",
    pool_id=pool().pool_id,
    flavor="nvidia-a100-sxm4-80gb",
    template=NodeTemplate(model="A100 SXM4 80GB", devices=8, cpu_milli=64_000, memory_mib=262_144),
    rules=ScalingRules(max_nodes=6),
    enabled=True,
    created_at=NOW,
    generation=3,
)
DECISION = ScalingDecisionView(
    scaling_decision_id=ScalingDecisionId.new(),
    scaling_policy_id=POLICY.scaling_policy_id,
    policy="growing",
    pool_id=POLICY.pool_id,
    flavor=POLICY.flavor,
    decided_at=NOW,
    rule=ScalingRule.EMERGENCY,
    action=ScalingAction.ORDER_NODES,
    nodes=4,
    code="demand",
    reason="30000 device milli wait for capacity alone",
    load_ratio=0.9375,
    rules=POLICY.rules,
    template=POLICY.template,
    inputs={"nodes": 0, "ordered": 0, "demand": []},
)
ORDER = NodeOrderView(
    node_order_id=NodeOrderId.new(),
    scaling_policy_id=POLICY.scaling_policy_id,
    scaling_decision_id=DECISION.scaling_decision_id,
    pool_id=POLICY.pool_id,
    flavor=POLICY.flavor,
    number=7,
    state=NodeOrderState.PROVISIONING,
    state_since=NOW,
    provider="simulated",
    node_id=None,
    register_by=NOW,
    joined_at=None,
    drain_deadline=None,
    attempts=0,
    waits_for="the node: it has to join and be ready",
    created_at=NOW,
    generation=2,
)


def lines(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def test_decisions_when_listed_then_each_says_what_it_did_and_why() -> None:
    api = FakeApi().on("GET", "/v1/scaling-decisions", page([DECISION]))
    shown = lines(run(api, "scaling", "decisions").out)
    assert "growing emergency order nodes: 4 94 % 30000 device milli wait for capacity alone" in shown


def test_decision_when_asked_why_then_its_inputs_stand_below_it() -> None:
    path = f"/v1/scaling-decisions/{DECISION.scaling_decision_id}"
    shown = lines(run(FakeApi().on("GET", path, DECISION), "scaling", "why", str(DECISION.scaling_decision_id)).out)
    assert "rule emergency" in shown
    assert "nodes 0" in shown
    assert run(FakeApi(), "scaling", "why", "nonsense").code == 2


def test_nodes_when_listed_then_each_says_what_it_waits_for() -> None:
    api = FakeApi().on("GET", "/v1/node-orders", page([ORDER])).on("GET", "/v1/scaling-policies", page([POLICY]))
    shown = lines(run(api, "scaling", "nodes", "--policy", "growing").out)
    assert "7 provisioning for" in shown
    assert "simulated the node: it has to join and be ready" in shown
    (request,) = api.asked("GET", "/v1/node-orders")
    assert request.url.params["scaling_policy_id"] == str(POLICY.scaling_policy_id)


def test_policies_when_listed_and_shown_then_their_numbers_in_words() -> None:
    api = FakeApi().on("GET", "/v1/scaling-policies", page([POLICY]))
    assert "growing nvidia-a100-sxm4-80gb 0 to 6 80 % 45 % in force" in lines(run(api, "scaling", "policies").out)
    assert "one node 8 x A100 SXM4 80GB, from simulated" in lines(run(api, "scaling", "show", "growing").out)


def test_policy_when_set_from_a_file_then_made_or_replaced_and_its_pool_may_be_named(tmp_path: Path) -> None:
    file = tmp_path / "policy.json"
    spec = {"name": "growing", "pool_id": pool().name, "flavor": POLICY.flavor}
    file.write_text(json.dumps({**spec, "template": POLICY.template.model_dump(mode="json")}))
    api = FakeApi().on("GET", "/v1/pools", page([pool()])).on("GET", "/v1/scaling-policies", page([]))
    api.on("POST", "/v1/scaling-policies", POLICY)
    assert run(api, "scaling", "set", str(file)).out == "made scaling policy growing\n"
    (sent,) = api.asked("POST", "/v1/scaling-policies")
    assert json.loads(sent.content)["pool_id"] == str(pool().pool_id)

    path = f"/v1/scaling-policies/{POLICY.scaling_policy_id}"
    api.on("GET", "/v1/scaling-policies", page([POLICY])).on("PUT", path, POLICY)
    assert run(api, "scaling", "set", str(file)).out == "replaced scaling policy growing\n"
    (put,) = api.asked("PUT", path)
    assert put.headers["If-Match"] == '"3"'

    for text, said in (("{}", "flavor: missing\n"), ("{", "cannot be read as JSON")):
        file.write_text(text)
        refused = run(api, "scaling", "set", str(file))
        assert (refused.code, said in refused.err) == (2, True)


def test_policy_when_taken_from_the_readme_then_it_is_made(tmp_path: Path) -> None:
    readme = (ROOT / "services/autoscaler/millpond_autoscaler/README.md").read_text(encoding="utf-8")
    file = tmp_path / "policy.json"
    file.write_text(readme.partition("```json\n")[2].partition("```")[0])
    api = FakeApi().on("GET", "/v1/pools", page([pool()])).on("GET", "/v1/scaling-policies", page([]))
    api.on("POST", "/v1/scaling-policies", POLICY)
    assert run(api, "scaling", "set", str(file)).code == 0


def test_policy_when_paused_resumed_and_deleted_then_by_its_name() -> None:
    path = f"/v1/scaling-policies/{POLICY.scaling_policy_id}"
    api = FakeApi().on("GET", "/v1/scaling-policies", page([POLICY])).on("PUT", path, POLICY)
    api.on("DELETE", path, httpx.Response(204))
    assert run(api, "scaling", "pause", "growing").out == "scaling policy growing is paused\n"
    assert run(api, "scaling", "resume", "growing").out == "scaling policy growing is in force\n"
    assert [json.loads(request.content)["enabled"] for request in api.asked("PUT", path)] == [False, True]
    assert run(api, "scaling", "delete", "growing").out == "deleted scaling policy growing\n"
