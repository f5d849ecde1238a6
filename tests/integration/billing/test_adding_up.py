"""Everything adds up to the last digit: the capacity of nodes and the bill, through every complication."""

import itertools
import random
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from millpond_billing.domain.timeline import instant_of
from millpond_billing.store.capacity import note_node
from millpond_billing.store.prices import end_price_version, insert_price_version
from millpond_billing.usecases.reconciliations import conservation_lines
from millpond_contracts.bodies.allocations import AllocationView, EndReason
from millpond_contracts.bodies.nodes import DeviceView, NodeState, NodeView
from millpond_contracts.ids import DeviceId, NodeId, PoolId, PriceVersionId, TenantId
from millpond_contracts.resources import DeviceHealth, DeviceKind
from millpond_kernel.db import SYSTEM, Database
from tests.factories.billing import price_version
from tests.integration.billing.stage import START, Stage, allocation, seconds, share, states_of

pytestmark = pytest.mark.integration

FEBRUARY = "2024-01-31T16:00:00Z"


def make_node(node_id: NodeId, device_ids: list[DeviceId], **changes: object) -> NodeView:
    """A ready node of 8 cores and 16 GiB with these devices; `changes` say otherwise."""
    fields: dict[str, object] = {
        "node_id": node_id,
        "pool_id": PoolId(int=1),
        "name": "n1",
        "state": NodeState.READY,
        "state_since": START,
        "schedulable": True,
        "incarnation": 1,
        "boot_id": "boot-1",
        "arch": "x86_64",
        "cpu_milli": 8000,
        "memory_mib": 16_384,
        "devices": tuple(make_device(device) for device in device_ids),
        "created_at": START,
        "generation": 1,
    }
    return NodeView.model_validate(fields | changes)


def make_device(device_id: DeviceId, health: DeviceHealth = DeviceHealth.HEALTHY) -> DeviceView:
    return DeviceView(
        device_id=device_id,
        identity=f"nvidia/GPU-{device_id}",
        index=0,
        kind=DeviceKind.GPU,
        vendor="nvidia",
        model="H100",
        model_key="h100",
        flavor="h100",
        memory_mib=80_000,
        health=health,
    )


def held(
    tenant: TenantId, node: NodeId, device: DeviceId, start: float, end: float, **changes: object
) -> AllocationView:
    """An allocation of one core, 1 GiB and 400 thousandths of a device, started 0.7 s after it was bound."""
    fields: dict[str, object] = {
        "node_id": node,
        "cpu_milli": 1000,
        "memory_mib": 1024,
        "devices": (share(400, device_id=device),),
        "bound_at": START + seconds(start),
        "active_at": START + seconds(start + 0.7),
        "released_at": START + seconds(end),
    }
    return allocation(tenant, **(fields | changes))


async def change_prices(database: Database, tenant: TenantId, at: datetime) -> None:
    """New list prices in mid-run, and prices of the tenant's own a little later."""
    list_prices = {
        "device/*/on_demand": "0.000002777777777778",
        "device/h100/on_demand": "0.000003141592653589",
        "cpu/*/on_demand": "0.000000050000000001",
        "memory/*/on_demand": "0.000000004882812500",
    }
    async with database.begin(SYSTEM) as unit:
        first = await unit.fetchval("SELECT id FROM price_version WHERE valid_to IS NULL")
        await end_price_version(unit, PriceVersionId.of(first), instant_of(at))
        changed = price_version("changed", list_prices, instant_of(at), minimum_seconds=90)
        await insert_price_version(unit, changed, "")
        own = {"device/h100/on_demand": "0.000001999999999999", "cpu/*/on_demand": "0"}
        private = price_version("own", own, instant_of(at + seconds(33.3)), minimum_seconds=45)
        await insert_price_version(unit, replace(private, tenant_id=tenant), "")


async def assert_adds_up(stage: Stage, tenant: TenantId, end: datetime) -> list[dict[str, Any]]:
    """The reconciliation from an hour before the start to `end`: no difference anywhere."""
    start = START - seconds(3600)
    query = f"start_at={_text(start)}&end_at={_text(end)}&tenant_id={tenant}&period_start={FEBRUARY}"
    found = (await stage.operator("GET", f"/v1/reconciliations?{query}", expect=200)).json()
    assert [line["difference"] for line in found["conservation"]] == [0] * len(found["conservation"])
    for line in found["conservation"]:
        parts = sum(line[part] for part in ("active", "held_unbilled", "idle", "unavailable"))
        assert parts == line["capacity"]
        value = {name: Fraction(amount) for name, amount in line["value"].items() if name != "currency"}
        assert value["difference"] == 0
        assert value["active"] + value["held_unbilled"] + value["idle"] + value["unavailable"] == value["capacity"]
    assert Decimal(found["bill"]["difference"]["amount"]) == 0
    return list(found["conservation"])


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


async def test_everything_when_all_complications_mix_then_adds_up_before_and_after_the_close(stage: Stage) -> None:
    tenant, caller = await stage.tenant("acme")
    node, devices = NodeId.new(), [DeviceId.new(), DeviceId.new()]
    await stage.tell_node(make_node(node, devices), START - seconds(1800))
    await change_prices(stage.billing, tenant, START + seconds(50.123456))
    first, second = devices
    for one in (
        held(tenant, node, first, 0, 200.25),
        held(tenant, node, first, 10, 12.5),  # shorter than the minimum
        held(tenant, node, first, 210, 300, waived_from=START + seconds(260), reason=EndReason.PREEMPTED),
        held(tenant, node, first, 301, 330, active_at=None, reason=EndReason.NODE_RESTARTED),  # never started
        held(tenant, node, second, 5, 20, waived_from=START + seconds(5.1), reason=EndReason.DRAINED),
        held(tenant, node, second, 40.000001, 77.7, reason=EndReason.NODE_LOST),
        held(tenant, node, second, 60, 61, cpu_milli=0, memory_mib=0),
    ):
        await stage.tell(*states_of(one))
    running = held(tenant, node, second, 100, 100_000)
    await stage.tell(states_of(running)[1])
    # The second device fails, the node is cordoned, then it leaves while something is still held on it.
    sick = (make_device(first), make_device(second, DeviceHealth.UNHEALTHY))
    await stage.tell_node(make_node(node, devices, devices=sick, generation=2), START + seconds(350))
    await stage.tell_node(make_node(node, devices, schedulable=False, generation=3), START + seconds(400))
    await stage.tell_node(make_node(node, devices, state=NodeState.REMOVED, generation=4), START + seconds(500))
    lines = await assert_adds_up(stage, tenant, START + seconds(1000))
    by_item = {line["item"]: line for line in lines}
    assert set(by_item) == {"cpu", "memory", str(first), str(second)}
    # 500 s in the sight of the registry, half an hour before, and what was held to the end afterwards.
    assert by_item[str(first)]["capacity"] == 1000 * 2_300_000_000
    assert by_item[str(second)]["capacity"] == 1000 * 2_800_000_000
    # At the example's 9 an hour, then at the changed price of this flavor.
    changed = Fraction("50.123456")
    at_list = (1800 + changed) * 9 / 3600 + (500 - changed) * 1000 * Fraction("0.000003141592653589")
    assert Fraction(by_item[str(first)]["value"]["capacity"]) == at_list
    assert {line["value"]["currency"] for line in lines} == {"CNY"}
    await stage.tell(running.model_copy(update={"released_at": START + seconds(700), "generation": 5}))
    draft = (await caller("GET", f"/v1/statements/current?period_start={FEBRUARY}", expect=200)).json()
    assert {"usage", "round_up", "minimum", "price_difference", "waiver"} <= set(draft["subtotals"])
    await assert_adds_up(stage, tenant, START + seconds(1000))
    await stage.close_statements(tenant)
    closed = (await caller("GET", f"/v1/statements/current?period_start={FEBRUARY}", expect=200)).json()
    assert (closed["subtotals"], closed["total"]) == (draft["subtotals"], draft["total"])
    await assert_adds_up(stage, tenant, START + seconds(1000))


async def test_opencost_2862_when_more_is_held_than_there_is_then_the_difference_says_so(stage: Stage) -> None:
    tenant, _ = await stage.tenant("acme")
    node, device = NodeId.new(), DeviceId.new()
    await stage.tell_node(make_node(node, [device]), START)
    for _ in range(3):
        await stage.tell(held(tenant, node, device, 0, 10))
    end = START + seconds(100)
    query = f"start_at={_text(START)}&end_at={_text(end)}&node_id={node}"
    found = (await stage.operator("GET", f"/v1/reconciliations?{query}", expect=200)).json()
    differences = {line["item"]: line["difference"] for line in found["conservation"]}
    assert differences == {"cpu": 0, "memory": 0, str(device): 200 * 10_000_000}
    assert [line["item"] for line in found["conservation"] if line["value"] is None] == [str(device)]


async def test_capacity_when_told_twice_late_and_out_of_order_then_spans_never_overlap_and_cover(
    database: Database,
) -> None:
    chance = random.Random(7)
    node, device = NodeId.new(), DeviceId.new()
    told = [
        (
            make_node(
                node, [device] if chance.random() < 0.8 else [], schedulable=chance.random() < 0.5, generation=number
            ),
            # In the order of generations, but with clocks that step back now and then.
            START + seconds(number * 10 - chance.choice([0, 0, 0, 15, 40])),
        )
        for number in range(1, 60)
    ]
    late = [pair for pair in told for _ in range(chance.randint(1, 2))]
    for place in range(0, len(late) - 1, 5):
        late[place], late[place + 1] = late[place + 1], late[place]
    for view, at in late:
        async with database.begin(SYSTEM) as unit:
            await note_node(unit, view, at)
    async with database.begin(SYSTEM) as unit:
        rows = await unit.fetch("SELECT * FROM capacity_span ORDER BY item, start_at")
        end = START + seconds(1000)
        lines = await conservation_lines(unit, START, end, node)
    assert len(rows) > 20
    for before, after in itertools.pairwise(rows):
        if before["item"] == after["item"]:
            assert before["end_at"] is not None
            assert before["end_at"] <= after["start_at"]
    by_item = {line.item: line for line in lines}
    first = min(row["start_at"] for row in rows if row["item"] == "cpu")
    assert by_item["cpu"].capacity == 8000 * (instant_of(end) - max(instant_of(START), instant_of(first)))
    assert all(line.difference == 0 for line in lines)
