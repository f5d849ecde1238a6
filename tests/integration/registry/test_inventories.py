"""What an agent reports: devices and their flavors, health, readiness, signs of life, signals."""

import asyncio
import json
from contextvars import Context
from datetime import UTC, datetime
from typing import Any

import pytest
from redis.asyncio import Redis

from millpond_contracts.ids import NodeId, PoolId
from millpond_contracts.resources import DeviceHealth, DeviceMemory, SignalSeries
from millpond_kernel.db import SYSTEM
from millpond_registry.clients.telemetry import TelemetryStream
from millpond_registry.usecases.reports import list_suspects, suspect_node
from tests.factories.registry import Agent, gpu, inventory
from tests.integration.databases import MigratedDatabase
from tests.integration.registry.conftest import Registry

pytestmark = pytest.mark.integration


async def silence(registry: Registry, agent: Agent, seconds: int) -> None:
    """Makes the node's last sign of life older, and lets the watch look once."""
    async with registry.database.begin(SYSTEM) as unit:
        await unit.execute(
            "UPDATE heartbeat SET at = clock_timestamp() - make_interval(secs => $1) WHERE node_id = $2",
            float(seconds),
            NodeId.parse(agent.node_id),
        )
        long_ago = await unit.fetchval("SELECT clock_timestamp() - interval '1 day'")
        now = await unit.fetchval("SELECT clock_timestamp()")
        for node_id in await list_suspects(unit, long_ago):
            await suspect_node(unit, node_id, now)


async def test_inventory_when_device_vanishes_then_it_stays_as_lost_and_neighbours_are_untouched(
    registry: Registry,
) -> None:
    agent, machine = registry.agent(), inventory([gpu(0), gpu(1)])
    await agent.become_ready(await registry.join_token(), machine)
    before = (await registry.node(agent))["devices"]
    await agent.push(inventory([gpu(1)]))
    after = (await registry.node(agent))["devices"]
    assert [device["health"] for device in after] == ["lost", "healthy"]
    assert after[1] == before[1]
    assert after[0]["device_id"] == before[0]["device_id"]
    listed = (await registry.get("/v1/devices?health=lost"))["items"]
    assert [(device["identity"], device["reported"]) for device in listed] == [("nvidia/GPU-0000", False)]
    await agent.push(machine)
    assert (await registry.node(agent))["devices"] == before
    events = await registry.events(agent.node_id)
    assert events[-2:] == ["device_health_changed", "device_health_changed"]


async def test_inventory_when_health_and_hardware_change_then_one_event_each(registry: Registry) -> None:
    agent = registry.agent()
    await agent.become_ready(await registry.join_token(), inventory([gpu(0), gpu(1)]))
    ill = gpu(0, health=DeviceHealth.UNHEALTHY, health_reason="double bit error")
    await agent.push(inventory([ill, gpu(1)], allocatable_cpu_milli=4000))
    assert (await registry.events(agent.node_id))[-2:] == ["inventory_changed", "device_health_changed"]
    async with registry.database.begin(SYSTEM) as unit:
        body = await unit.fetchval("SELECT body FROM outbox ORDER BY id DESC LIMIT 1")
    node = await registry.node(agent)
    assert body["device_ids"] == [node["devices"][0]["device_id"]]
    assert body["node"] == node


async def test_inventory_when_nothing_visible_changed_then_no_event_and_newest_is_kept(registry: Registry) -> None:
    agent, machine = registry.agent(), inventory([gpu(0)])
    await agent.become_ready(await registry.join_token(), machine)
    events, generation = await registry.events(agent.node_id), (await registry.node(agent))["generation"]
    await agent.push(inventory([gpu(0)], kernel="6.12"))
    assert await registry.events(agent.node_id) == events
    assert (await registry.node(agent))["generation"] == generation
    kept = await registry.get(f"/v1/nodes/{agent.node_id}/inventory")
    assert (kept["kernel"], kept["devices"][0]["identity"]) == ("6.12", "nvidia/GPU-0000")


async def test_inventory_when_report_is_old_then_ignored(registry: Registry) -> None:
    agent = registry.agent()
    await agent.become_ready(await registry.join_token(), inventory(allocatable_cpu_milli=8000))
    await agent.push(inventory(allocatable_cpu_milli=6000))
    agent.sequence = 0
    await agent.push(inventory(allocatable_cpu_milli=1000))
    assert (await registry.node(agent))["cpu_milli"] == 6000


async def test_flavor_when_model_is_unknown_or_only_a_family_name_then_exactly_one_each(registry: Registry) -> None:
    agent = registry.agent()
    odd = gpu(0, vendor="acme", model="Warp 9", identity="pci/0000:01:00.0")
    family = gpu(1, vendor="huawei", model="910B4", kind="npu", memory=DeviceMemory(usable_mib=32_768))
    await agent.join(await registry.join_token(), inventory([odd, family, gpu(2)]))
    devices = (await registry.node(agent))["devices"]
    assert devices[0]["flavor"] == "unknown-acme"
    assert devices[1]["flavor"].startswith("huawei-")
    assert devices[1]["attributes"]["memory_bandwidth_gbs"] == 800
    assert devices[2]["flavor"] == "nvidia-a100-sxm4-80gb"
    assert devices[0]["attributes"] == {"memory_gib": 80.0}
    unknown = await registry.get("/v1/flavors/unknown-acme")
    assert unknown["builtin"] is True


async def test_flavor_when_operator_describes_devices_better_then_they_change_and_return(registry: Registry) -> None:
    agent = registry.agent()
    await agent.become_ready(await registry.join_token(), inventory([gpu(0)]))
    spec = {
        "name": "big",
        "selector": {"vendor": "nvidia", "model_prefix": "nvidia a100", "memory_mib_min": 80_000},
        "profiles": ["1g.10gb"],
    }
    made = await registry.operator("POST", "/v1/flavors", spec, expect=201)
    assert (await registry.node(agent))["devices"][0]["flavor"] == "big"
    stale = await registry.operator("DELETE", "/v1/flavors/big", headers={"If-Match": '"9"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "kernel.if_match.stale")
    narrower = {**spec, "selector": {"model_prefix": "H100"}}
    await registry.operator("PUT", "/v1/flavors/big", narrower, headers={"If-Match": made.headers["ETag"]}, expect=200)
    assert (await registry.node(agent))["devices"][0]["flavor"] == "nvidia-a100-sxm4-80gb"
    await registry.operator("DELETE", "/v1/flavors/big", headers={"If-Match": '"2"'}, expect=204)
    await registry.get("/v1/flavors/big", expect=404)
    refused = await registry.operator("DELETE", "/v1/flavors/nvidia-a100-sxm4-80gb", headers={"If-Match": "*"})
    assert (refused.status_code, refused.json()["code"]) == (409, "registry.flavor.builtin")
    assert (await registry.events(agent.node_id))[-2:] == ["inventory_changed"] * 2


async def test_device_when_taken_out_for_good_then_operator_forgets_it(registry: Registry) -> None:
    agent = registry.agent()
    await agent.become_ready(await registry.join_token(), inventory([gpu(0), gpu(1)]))
    lost = (await registry.node(agent))["devices"][0]["device_id"]
    assert (await registry.operator("DELETE", f"/v1/devices/{lost}")).status_code == 409
    await agent.push(inventory([gpu(1)]))
    await registry.operator("DELETE", f"/v1/devices/{lost}", expect=204)
    assert [device["index"] for device in (await registry.node(agent))["devices"]] == [1]
    await registry.operator("DELETE", f"/v1/devices/{lost}", expect=404)


async def test_heartbeat_when_node_is_well_then_neither_event_nor_change_of_the_node(registry: Registry) -> None:
    agent = registry.agent()
    await agent.become_ready(await registry.join_token(), inventory())
    before, events = await registry.node(agent), await registry.events(agent.node_id)
    answer = await agent.beat()
    assert (answer["state"], answer["send_inventory"], answer["heartbeat_seconds"]) == ("ready", False, 10)
    after = await registry.node(agent)
    assert after.pop("last_heartbeat_at") > before.pop("last_heartbeat_at")
    assert after == before
    assert await registry.events(agent.node_id) == events


async def test_silence_when_longer_than_pool_allows_then_suspected_and_heartbeat_recovers(registry: Registry) -> None:
    agent = registry.agent()
    await agent.become_ready(await registry.join_token(), inventory())
    await silence(registry, agent, 29)
    assert (await registry.node(agent))["state"] == "ready"
    await silence(registry, agent, 31)
    suspected = await registry.node(agent)
    assert (suspected["state"], suspected["schedulable"]) == ("unreachable", False)
    assert (await agent.beat())["state"] == "ready"
    assert (await registry.node(agent))["schedulable"] is True
    assert (await registry.events(agent.node_id))[-2:] == ["node_suspected", "node_recovered"]


async def test_w6_silence_when_another_machine_speaks_from_the_address_then_the_dead_one_is_suspected_all_the_same(
    registry: Registry,
) -> None:
    dead, heir = registry.agent(), registry.agent()  # one client, one address, one name
    for agent in (dead, heir):
        await agent.become_ready(await registry.join_token(), inventory())
    await silence(registry, dead, 31)
    assert (await heir.beat())["state"] == "ready"
    assert [(await registry.node(agent))["state"] for agent in (dead, heir)] == ["unreachable", "ready"]


async def test_heartbeats_when_noted_together_then_each_has_its_own_answer_and_a_kept_row_keeps_nobody_else(
    registry: Registry,
) -> None:
    kept, good, old, gone = (registry.agent() for _ in range(4))
    for agent in (kept, good, old, gone):
        await agent.become_ready(await registry.join_token(), inventory())
    former = old.token
    await old.open_session()
    old.token, old.sequence = former, 1
    async with registry.database.begin(SYSTEM) as unit:
        await unit.execute("UPDATE node SET state = 'removed' WHERE id = $1", NodeId.parse(gone.node_id))
    async with registry.database.begin(SYSTEM) as unit:
        await unit.execute("SELECT FROM heartbeat WHERE node_id = $1 FOR UPDATE", NodeId.parse(kept.node_id))
        calls = (kept.beat(), good.beat(), old.beat(expect=409), gone.beat(expect=404), good.beat())
        waiting, *others = (asyncio.create_task(call, context=Context()) for call in calls)
        answers = await asyncio.gather(*others)
        assert not waiting.done()
    codes = [answer.get("code", answer.get("state")) for answer in [*answers, await waiting]]
    assert codes == ["ready", "registry.node.superseded", "registry.node.not_found", "ready", "ready"]


async def test_silence_when_nobody_listened_then_not_suspected(registry: Registry) -> None:
    agent = registry.agent()
    await agent.become_ready(await registry.join_token(), inventory())
    async with registry.database.begin(SYSTEM) as unit:
        await unit.execute("UPDATE heartbeat SET at = clock_timestamp() - interval '1 hour'")
        just_now = await unit.fetchval("SELECT clock_timestamp() - interval '5 seconds'")
        assert await list_suspects(unit, just_now) == []


async def test_heartbeat_when_signals_have_gaps_then_forwarded_with_null(
    registry: Registry, migrated: MigratedDatabase
) -> None:
    agent = registry.agent()
    await agent.become_ready(await registry.join_token(), inventory([gpu(0)]))
    signals = [
        {"target": "node", "name": "cpu_ratio", "at_monotonic_ms": 800, "value": 0.5},
        {"target": "nvidia/GPU-0000", "name": "power_w", "at_monotonic_ms": 950, "value": None},
        {"target": "node", "name": "cpu_ratio", "at_monotonic_ms": 900, "value": 0.25},
    ]
    answer = await agent.beat(signals=signals)
    assert answer["takes_series"] is True
    cpu = {"target": "node", "name": "cpu_ratio", "at_monotonic_ms": [800, 900], "values": [0.5, 0.25]}
    power = {"target": "nvidia/GPU-0000", "name": "power_w", "at_monotonic_ms": [950], "values": [None]}
    await agent.beat(series=[cpu, power])
    redis = Redis.from_url(migrated.redis_url, decode_responses=True)
    entries: Any = await redis.xrange(f"{migrated.redis_prefix}:telemetry")
    await redis.aclose()
    # Sample by sample or as series: the same is passed on.
    assert [(fields["node"], fields["monotonic_ms"], json.loads(fields["series"])) for _, fields in entries] == 2 * [
        (
            agent.node_id,
            "1000",
            [["node", "cpu_ratio", [800, 900], [0.5, 0.25]], ["nvidia/GPU-0000", "power_w", [950], [None]]],
        )
    ]
    for wrong in ({**cpu, "values": [0.5]}, {**cpu, "at_monotonic_ms": [], "values": []}):
        assert (await agent.beat(series=[wrong], expect=422))["code"] == "kernel.body.invalid"
    many = {**cpu, "at_monotonic_ms": [800] * 8192, "values": [0.5] * 8192}
    assert (await agent.beat(series=[many], expect=200))["state"] == "ready"
    assert (await agent.beat(series=[many, power], expect=422))["code"] == "kernel.body.invalid"
    raw = '{"boot_id": "b", "monotonic_ms": 1, "inventory_sequence": 1, "signals": [%s]}'
    nan = '{"target": "node", "name": "x", "at_monotonic_ms": 1, "value": NaN}'
    headers = {"Authorization": f"Bearer {agent.token}", "Content-Type": "application/json"}
    response = await agent.http.post("/v1/agent/heartbeat", content=raw % nan, headers=headers)
    assert response.status_code == 422


async def test_conditions_when_opened_and_closed_then_listed_with_their_times(registry: Registry) -> None:
    agent = registry.agent()
    await agent.become_ready(await registry.join_token(), inventory())
    stuck = {"target": "node", "name": "probe_stuck", "open": True, "evidence": "no answer for 30 s"}
    await agent.beat(conditions=[stuck, {"target": "node", "name": "never_seen", "open": False}])
    await agent.beat(conditions=[stuck])
    listed = (await registry.get(f"/v1/nodes/{agent.node_id}/conditions"))["items"]
    assert [(item["name"], item["closed_at"]) for item in listed] == [("probe_stuck", None)]
    await agent.beat(conditions=[{**stuck, "open": False, "evidence": ""}])
    closed = (await registry.get(f"/v1/nodes/{agent.node_id}/conditions"))["items"][0]
    assert closed["closed_at"] > closed["opened_at"]
    assert closed["evidence"] == "no answer for 30 s"


async def test_telemetry_when_stream_is_full_then_kept_to_its_bytes(migrated: MigratedDatabase) -> None:
    redis = Redis.from_url(migrated.redis_url)
    stream = TelemetryStream(redis, migrated.redis_prefix, 200_000)
    instants, values = tuple(range(1000)), (0.5,) * 1000
    series = [SignalSeries(target="node", name="cpu_ratio", at_monotonic_ms=instants, values=values)]
    for number in range(200):
        now = datetime(2026, 1, 1, tzinfo=UTC)
        assert await stream.forward(NodeId.new(), PoolId.new(), now, number, series)
    entries: Any = await redis.xrange(stream.key)
    held = sum(len(fields[b"series"]) for _, fields in entries)
    await redis.aclose()
    assert 100_000 < held < 400_000
    assert entries[-1][1][b"monotonic_ms"] == b"199"


async def test_telemetry_when_redis_is_away_then_lost_without_an_error() -> None:
    redis = Redis.from_url("redis://127.0.0.1:1/0", socket_connect_timeout=1)
    stream = TelemetryStream(redis, "x", 200_000)
    series = SignalSeries(target="node", name="cpu_ratio", at_monotonic_ms=(1,), values=(None,))
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert await stream.forward(NodeId.new(), PoolId.new(), now, 1, [series]) is False
    await redis.aclose()
