"""The command line of operators: tenants, keys, limits, machines, prices, health, profiles."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from millpond.cli.limits import change_limits
from millpond.cli.prices import parse_prices
from millpond_contracts.bodies.nodes import CordonReason, JoinTokenView
from millpond_contracts.bodies.pools import CapacityFigures, HostCapacity, PoolCapacity
from millpond_contracts.bodies.tenants import (
    ApiKeyView,
    Limit,
    Limits,
    Me,
    Preemption,
    Role,
    VirtualPoolChange,
    VirtualPoolSpec,
)
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import ApiKeyId, JoinTokenId
from millpond_contracts.resources import SIMULATED_TAINT, Taint, Topology
from tests.unit.client.commands import run
from tests.unit.client.fake_api import FakeApi, page, problem
from tests.unit.client.things import NODE, NOW, POOL, TENANT, VIRTUAL_POOL, node, pool, tenant, virtual_pool

pytestmark = pytest.mark.unit

SECRET = "mp_secret_of_the_key"


def names() -> FakeApi:
    """An API that knows a tenant, a pool and a virtual pool by name."""
    api = FakeApi().on("GET", "/v1/tenants", page([tenant()])).on("GET", "/v1/pools", page([pool()]))
    return api.on("GET", "/v1/virtual-pools", page([virtual_pool()]))


def test_limit_create_when_named_in_words_then_sent_in_units() -> None:
    api = names().on("POST", "/v1/virtual-pools", virtual_pool())
    ran = run(
        api,
        *("limit", "create", "main", "--tenant", "acme", "--pool", "default", "--cpu", "2", "--memory", "4GiB"),
        *("--device", "h100-sxm=2", "--borrow", "cpu=0.5", "--borrow", "h100-sxm=1", "--hard", "memory=8GiB"),
    )
    sent = VirtualPoolSpec.model_validate_json(api.asked("POST", "/v1/virtual-pools")[0].content)
    assert (ran.code, sent.tenant_id, sent.pool_id) == (0, TENANT, POOL)
    assert sent.limits == Limits(
        cpu=Limit(guaranteed=2000, borrow=500),
        memory=Limit(guaranteed=4096, hard=8192),
        devices={"h100-sxm": Limit(guaranteed=2000, borrow=1000)},
    )
    assert "acme may use 2 cores, 4 GiB of default" in ran.out


def test_limit_set_when_one_part_is_named_then_the_others_stay() -> None:
    found = virtual_pool(limits=Limits(cpu=Limit(guaranteed=2000, borrow=1), memory=Limit(guaranteed=4096)))
    api = names().on("GET", "/v1/virtual-pools", page([found])).on("PATCH", f"/v1/virtual-pools/{VIRTUAL_POOL}", found)
    ran = run(api, "limit", "set", "main", "--memory", "1GiB", "--preemption", "lower_priority")
    assert (ran.code, "stops others: never" in ran.out) == (0, True)  # as the answer says
    (request,) = api.asked("PATCH", f"/v1/virtual-pools/{VIRTUAL_POOL}")
    sent = VirtualPoolChange.model_validate_json(request.content)
    assert sent.limits == Limits(cpu=Limit(guaranteed=2000, borrow=1), memory=Limit(guaranteed=1024))
    assert (sent.preemption, sent.policy) == (Preemption.LOWER_PRIORITY, None)
    assert request.headers["if-match"] == '"7"'


def test_limit_set_when_changed_in_between_then_says_to_repeat() -> None:
    stale = problem(ErrorCode.IF_MATCH_STALE, "it is at 8")
    ran = run(names().on("PATCH", f"/v1/virtual-pools/{VIRTUAL_POOL}", stale), "limit", "set", "main", "--cpu", "1")
    assert (ran.code, "repeat the command" in ran.err) == (1, True)


def test_change_limits_when_nothing_is_named_then_the_same() -> None:
    present = Limits(cpu=Limit(guaranteed=1), memory=Limit(hard=4), devices={"x": Limit(lend=0, borrow=3)})
    assert change_limits(present, None, None, [], [], [], []) == present


def test_limit_list_when_shown_then_by_names() -> None:
    line = run(names(), "limit", "list").out.splitlines()[2]
    assert line.split()[:3] == ["main", "acme", "default"]
    assert "2 cores, 4 GiB" in line


def test_key_create_when_made_then_its_secret_is_shown_once() -> None:
    key = ApiKeyView(
        api_key_id=ApiKeyId.new(),
        name="ci",
        role=Role.MEMBER,
        tenant_id=TENANT,
        project_id=None,
        secret=SECRET,
        expires_at=None,
        revoked_at=None,
        last_used_at=None,
        created_at=NOW,
        generation=1,
    )
    listed = page([key.model_copy(update={"secret": None})])
    api = names().on("POST", "/v1/api-keys", key).on("GET", "/v1/api-keys", listed)
    ran = run(api, "key", "create", "ci", "--tenant", "acme")
    assert (ran.out.count(SECRET), SECRET in ran.err) == (1, False)
    assert SECRET not in run(api, "key", "list").out
    api.on("POST", f"/v1/api-keys/{key.api_key_id}/revoke", key)
    assert "revoked ci" in run(api, "key", "revoke", "ci").out


def test_join_token_create_when_made_then_the_whole_command_is_shown() -> None:
    token = JoinTokenView(
        join_token_id=JoinTokenId.new(),
        token="mpj-token",
        pool_id=POOL,
        expires_at=NOW,
        max_uses=3,
        uses=0,
        labels={},
        revoked=False,
        created_at=NOW,
        generation=1,
    )
    api = names().on("POST", "/v1/join-tokens", token)
    ran = run(api, "join-token", "create", "--pool", "default", "--max-uses", "3", "--expires", "2h")
    assert "millpond join http://millpond.test mpj-token" in ran.out
    body = json.loads(api.asked("POST", "/v1/join-tokens")[0].content)
    assert (body["pool_id"], body["expires_in_seconds"], body["max_uses"]) == (str(POOL), 7200, 3)


def test_nodes_when_cordoned_then_says_that_nothing_new_starts() -> None:
    api = names().on("GET", "/v1/nodes", page([node("vm", CordonReason.OPERATOR)]))
    line = run(api, "nodes").out.splitlines()[2]
    assert "ready, no new work (operator)" in line
    assert " ".join(line.split()).startswith("vm ready, no new work (operator) default x86_64 3.9 15.5 GiB -")


def test_nodes_when_simulated_then_told_apart_from_machines() -> None:
    acted = node("gpu-0").model_copy(update={"taints": (Taint(key=SIMULATED_TAINT), Taint(key="use", value="ml"))})
    api = names().on("GET", "/v1/nodes", page([acted]))
    assert "ready, simulated" in run(api, "nodes").out
    api.on("GET", f"/v1/nodes/{NODE}/conditions", page([]))
    assert "simulated, use=ml" in run(api, "node", "show", "gpu-0").out


def test_node_drain_when_called_by_name_then_with_its_deadline() -> None:
    api = names().on("GET", "/v1/nodes", page([node()])).on("POST", f"/v1/nodes/{NODE}/drain", node())
    assert run(api, "node", "drain", "vm", "--deadline", "15m").code == 0
    (request,) = api.asked("POST", f"/v1/nodes/{NODE}/drain")
    assert json.loads(request.content) == {"deadline_seconds": 900}


def test_node_label_when_set_and_taken_back_then_one_change_and_where_it_stands() -> None:
    placed = node().model_copy(update={"labels": {"rack": "r7"}, "topology": Topology(zone="z1", rack="r7")})
    api = names().on("GET", "/v1/nodes", page([node()])).on("PATCH", f"/v1/nodes/{NODE}", placed)
    done = run(api, "node", "label", "vm", "rack=r7", "note=a-", "team-")
    assert (done.code, done.out.strip()) == (0, "vm: rack=r7; stands in zone z1, rack r7")
    (request,) = api.asked("PATCH", f"/v1/nodes/{NODE}")
    assert json.loads(request.content) == {"labels": {"team": None, "rack": "r7", "note": "a-"}}


def test_capacity_when_shown_then_every_figure_has_its_unit() -> None:
    figures = PoolCapacity(
        pool_id=POOL,
        as_of=NOW,
        nodes={"ready": 2, "unreachable": 1, "joined": 0, "schedulable": 2},
        hosts=[HostCapacity(resource="cpu", total=4000, unschedulable=0, allocated=1500, reserved=0, available=2500)],
        devices=[
            CapacityFigures(
                flavor="h100-sxm",
                total=16_000,
                unschedulable=0,
                allocated=9500,
                reserved=0,
                fragmented=500,
                available=6000,
                fits={"500": 13, "2x1000": 3},
                fragmented_by_size={"500": 0, "2x1000": 500},
            )
        ],
        generation=1,
    )
    api = names().on("GET", f"/v1/pools/{POOL}/capacity", figures)
    out = "\n".join(" ".join(line.split()) for line in run(api, "capacity", "default").out.splitlines())
    assert "machines 2 ready, 1 unreachable; 2 take new work" in out
    assert "cpu 4 cores 2.5 cores 1.5 cores 0 cores - 0 cores" in out
    assert "h100-sxm 16 6 9.5 0 0.5 0 13 of 0.5 device, 3 of 2 devices (no use of 8 %)" in out


def test_parse_prices_when_in_words_then_skus_on_demand() -> None:
    lines = parse_prices(["cpu=0.10", "memory=0.02", "h100-sxm=20", "device=5", "device/h200/reserved=9"])
    assert {line.sku: str(line.per_hour) for line in lines} == {
        "cpu/*/on_demand": "0.10",
        "memory/*/on_demand": "0.02",
        "device/h100-sxm/on_demand": "20",
        "device/*/on_demand": "5",
        "device/h200/reserved": "9",
    }


@pytest.mark.parametrize("text", ["cpu=NaN", "cpu=9e30", "cpu=-1", "cpu=cheap", "cpu", "CPU=1"])
def test_price_set_when_it_is_none_then_usage(text: str) -> None:
    api = names()
    assert run(api, "price", "set", text).code == 2
    assert api.asked("POST", "/v1/price-books") == []


def test_status_when_a_worker_is_away_then_degraded_and_what_to_do() -> None:
    well = {"status": "ok", "ready": True, "parts": {"database": {"ok": True}}}
    api = FakeApi()
    for name in ("registry", "quota", "billing", "autoscaler"):
        api.on("GET", f"/healthz/{name}", httpx.Response(200, json={"service": name, **well}))
    since = (datetime.now(UTC) - timedelta(minutes=3, seconds=5)).isoformat()
    advice = {"effect": "nothing new is placed", "remedy": "see the worker's log"}
    away = {"ok": False, "reason": "its worker, process 17, has told nothing", "since": since, **advice}
    ill = {"service": "scheduler", "status": "degraded", "ready": True, "parts": {"worker": away}}
    ran = run(api.on("GET", "/healthz/scheduler", httpx.Response(200, json=ill)), "status")
    line = next(each for each in ran.out.splitlines() if each.startswith("scheduler"))
    assert (ran.code, "degraded" in line, "has told nothing (since " in line, ", 3m 5s)" in line) == (1, *[True] * 3)
    assert "scheduler (worker): nothing new is placed\n  → see the worker's log" in ran.out
    api.on("GET", "/healthz/scheduler", httpx.Response(200, json={"service": "scheduler", **well}))
    assert run(api, "status").code == 0


def test_status_when_one_service_is_silent_then_down_and_when_all_are_then_unreachable() -> None:
    well = {"service": "quota", "status": "ok", "ready": True, "parts": {}}
    api = FakeApi().on("GET", "/healthz/quota", httpx.Response(200, json=well))
    for name in ("registry", "scheduler", "billing", "autoscaler"):
        api.on("GET", f"/healthz/{name}", httpx.ConnectError("refused"))
    ran = run(api, "status", "-o", "id")
    assert (ran.code, "quota ok" in ran.out, "billing down" in ran.out) == (1, True, True)
    assert run(api.on("GET", "/healthz/quota", httpx.ConnectError("refused")), "status").code == 3


def test_login_when_the_key_works_then_it_is_kept_for_this_user_alone(tmp_path: Path) -> None:
    me = Me(role=Role.MEMBER, tenant_id=TENANT, project_id=None, api_key_id=None, tenant_name="acme")
    api = FakeApi().on("GET", "/v1/me", me)
    ran = run(api, "login", "http://millpond.test/", stdin=f"{SECRET}\n", XDG_CONFIG_HOME=str(tmp_path))
    file = tmp_path / "millpond" / "config.json"
    saved = json.loads(file.read_text())
    assert (ran.code, SECRET in ran.out, file.stat().st_mode & 0o777) == (0, False, 0o600)
    assert saved["current"] == "acme"
    assert saved["profiles"]["acme"] == {"url": "http://millpond.test", "api_key": SECRET, "virtual_pool": None}
    assert api.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    listed = run(api, "profile", "list", XDG_CONFIG_HOME=str(tmp_path)).out
    assert ("acme" in listed, SECRET in listed) == (True, False)


def test_login_when_the_key_is_refused_then_nothing_is_kept(tmp_path: Path) -> None:
    api = FakeApi().on("GET", "/v1/me", problem(ErrorCode.CREDENTIALS_INVALID, "not valid"))
    assert run(api, "login", "http://millpond.test", stdin="wrong\n", XDG_CONFIG_HOME=str(tmp_path)).code == 1
    assert not (tmp_path / "millpond").exists()


def test_profile_use_when_unknown_then_names_the_known(tmp_path: Path) -> None:
    ran = run(None, "profile", "use", "nowhere", XDG_CONFIG_HOME=str(tmp_path))
    assert (ran.code, "no profile 'nowhere'" in ran.err) == (2, True)


def test_events_when_the_service_is_none_then_usage() -> None:
    assert "expected one of registry" in run(FakeApi(), "events", "--service", "weather").err_words
