"""Cost reports: jobs add up to what nodes were used for, idle stands apart, commitments show what was not used."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.nodes import Market, NodeState
from millpond_contracts.ids import DeviceId, NodeId, PoolId, ProjectId
from tests.integration.billing.stage import START, Stage, allocation, seconds, share, states_of
from tests.integration.billing.test_adding_up import change_prices, held, make_node
from tests.integration.services import Caller

pytestmark = pytest.mark.integration

# The beginning of February 2024 in Shanghai.
PERIOD = datetime(2024, 1, 31, 16, tzinfo=UTC)


async def report(caller: Caller, start: datetime, end: datetime, query: str = "group_by=job") -> dict[str, Any]:
    """The report with all its groups, read three at a time."""
    path = f"/v1/reports/cost?start_at={_text(start)}&end_at={_text(end)}&{query}&limit=3"
    found = page = dict((await caller("GET", path, expect=200)).json())
    while page["next_cursor"] is not None:
        page = (await caller("GET", f"{path}&cursor={page['next_cursor']}", expect=200)).json()
        for told in ("end_at", "used", "charged"):
            assert page[told] == found[told]
        found["items"] += page["items"]
    return found


def total(found: dict[str, Any], field: str) -> Fraction:
    """The sum of a field over all groups."""
    return sum((Fraction(one[field]) for one in found["items"]), Fraction(0))


def assert_adds_up(found: dict[str, Any]) -> None:
    """Groups are the sums; the fleet's parts are what was provided; the groups' use is the fleet's."""
    for field in ("used", "held_unbilled", "charged"):
        assert total(found, field) == Fraction(found[field])
    fleet = found["fleet"]
    if fleet is None:
        return
    for part in (fleet, *fleet["shares"]):
        states = sum(Fraction(part[state]) for state in ("used", "held_unbilled", "idle", "unavailable"))
        assert states == Fraction(part["provided"])
    for field in ("used", "held_unbilled", "idle", "unavailable", "provided"):
        assert sum(Fraction(one[field]) for one in fleet["shares"]) == Fraction(fleet[field])
    assert Fraction(fleet["used"]) == Fraction(found["used"])
    assert Fraction(fleet["held_unbilled"]) == Fraction(found["held_unbilled"])
    assert Fraction(fleet["fixed"]) - Fraction(fleet["provided"]) == Fraction(fleet["saved"])
    assert fleet["left_out"] == []


async def test_b7_when_four_jobs_share_one_node_then_their_costs_are_the_nodes_and_idle_stands_apart(
    stage: Stage,
) -> None:
    tenant, _ = await stage.tenant("acme")
    node, device = NodeId.new(), DeviceId.new()
    await stage.tell_node(make_node(node, [device]), START - seconds(3600))
    minute = {"bound_at": START, "active_at": START, "released_at": START + seconds(60)}
    for _ in range(4):
        await stage.tell(
            allocation(
                tenant, node_id=node, cpu_milli=2000, memory_mib=4096, devices=(share(250, device_id=device),), **minute
            )
        )
    # 8 cores, 16 GiB and a device for a minute, at the example prices.
    minute_of_node = (8 * Fraction("0.18") + 16 * Fraction("0.018") + Fraction(9)) / 60
    busy = await report(stage.operator, START, START + seconds(60))
    assert_adds_up(busy)
    assert len(busy["items"]) == 4
    assert {Fraction(one["used"]) for one in busy["items"]} == {minute_of_node / 4}
    assert total(busy, "used") == Fraction(busy["fleet"]["provided"]) == minute_of_node
    assert (busy["fleet"]["idle"], busy["fleet"]["utilisation"]) == ("0", "1")
    longer = await report(stage.operator, START - seconds(60), START + seconds(120))
    assert_adds_up(longer)
    assert total(longer, "used") == minute_of_node
    assert Fraction(longer["fleet"]["idle"]) == 2 * minute_of_node
    assert longer["fleet"]["utilisation"] == "0.333333"


async def test_b5_when_a_machine_was_stopped_then_its_cost_stays_what_it_was(stage: Stage) -> None:
    tenant, caller = await stage.tenant("acme")
    node, device = NodeId.new(), DeviceId.new()
    await stage.tell_node(make_node(node, [device]), START)
    one = allocation(tenant, node_id=node, bound_at=START, active_at=START, released_at=START + seconds(60))
    await stage.tell(*states_of(one))
    await stage.tell_node(make_node(node, [device], state=NodeState.REMOVED, generation=2), START + seconds(60))
    shown = []
    for later in (seconds(60), timedelta(hours=1), timedelta(days=300)):
        found = await report(stage.operator, START, START + later)
        assert_adds_up(found)
        own = await report(caller, START, START + later)
        shown.append((found["items"], found["fleet"]["provided"], own["items"], own["charged"]))
    assert shown[0] == shown[1] == shown[2]
    # A fixed fleet would have gone on costing: an hour of it less the minute that was there.
    hour = await report(stage.operator, START, START + timedelta(hours=1))
    assert Fraction(hour["fleet"]["saved"]) == 59 * Fraction(hour["fleet"]["provided"])


async def test_b10_when_a_device_is_held_and_hardly_used_then_what_is_held_is_charged_and_what_idles_has_its_name(
    stage: Stage,
) -> None:
    tenant, caller = await stage.tenant("acme")
    node, device = NodeId.new(), DeviceId.new()
    await stage.tell_node(make_node(node, [device]), START)
    one = allocation(
        tenant, node_id=node, active_at=START, released_at=START + seconds(3600), devices=(share(device_id=device),)
    )
    await stage.tell(one)
    # What the device measured of itself is a signal of the autoscaler's and no part of a bill.
    found = await report(stage.operator, START, START + timedelta(hours=1))
    assert_adds_up(found)
    use = {each["resource"]: each for each in found["fleet"]["flavors"]}
    assert (use["device"]["used_hours"], use["device"]["utilisation"]) == ("1", "1")
    assert (use["cpu"]["provided_hours"], use["cpu"]["used_hours"]) == ("8", "2")
    assert Fraction(found["fleet"]["idle"]) > 0
    lines = await stage.list_all(caller, f"/v1/charges?job_id={one.job_id}&period_start={_text(PERIOD)}")
    usage = [line for line in lines if line["kind"] == "usage"]
    assert {line["sku"].split("/")[0] for line in usage} == {"cpu", "memory", "device"}
    assert {(line["node_id"], line["allocation_id"], line["job_id"]) for line in usage} == {
        (str(node), str(one.allocation_id), str(one.job_id))
    }


async def test_b11_when_an_agent_vanishes_then_its_tenant_pays_to_the_last_sign_and_the_rest_is_unavailable(
    stage: Stage,
) -> None:
    tenant, caller = await stage.tenant("acme")
    node, device = NodeId.new(), DeviceId.new()
    await stage.tell_node(make_node(node, [device]), START)
    last_sign, noticed, hours = START + seconds(600), START + seconds(630), START + timedelta(hours=2)
    one = allocation(
        tenant,
        node_id=node,
        cpu_milli=8000,
        memory_mib=16_384,
        devices=(share(device_id=device),),
        bound_at=START,
        active_at=START,
        released_at=last_sign,
        reason=EndReason.NODE_LOST,
    )
    *alive, lost = states_of(one)
    await stage.tell(*alive)
    await stage.tell_node(
        make_node(node, [device], state=NodeState.UNREACHABLE, schedulable=False, generation=2), noticed
    )
    await stage.tell(lost)
    found = await report(stage.operator, START, hours)
    assert_adds_up(found)
    fleet = found["fleet"]
    of_all = Fraction(fleet["provided"]) / 7200
    assert Fraction(fleet["used"]) == Fraction(found["charged"]) == 600 * of_all
    assert Fraction(fleet["idle"]) == 30 * of_all  # between the last sign and its being noticed
    assert Fraction(fleet["unavailable"]) == (7200 - 630) * of_all
    own = await report(caller, START, START + timedelta(days=30))
    assert own["charged"] == found["charged"]


async def test_report_when_everything_happens_then_all_adds_up_by_every_group_and_for_every_market(
    stage: Stage,
) -> None:
    tenant, caller = await stage.tenant("acme")
    other, stranger = await stage.tenant("globex")
    node, second_node = NodeId.new(), NodeId.new()
    first, second = DeviceId.new(), DeviceId.new()
    pools = [PoolId(int=1), PoolId(int=2)]
    await stage.tell_node(make_node(node, [first], market=Market.COMMITTED), START - seconds(100))
    await stage.tell_node(make_node(second_node, [second]), START - seconds(50))
    await change_prices(stage.billing, tenant, START + seconds(50.123456))
    project = ProjectId.new()
    for one in (
        held(tenant, node, first, 0, 200.25, project_id=project, pool_id=pools[0]),
        held(tenant, node, first, 210, 300, waived_from=START + seconds(260), reason=EndReason.PREEMPTED),
        held(other, second_node, second, 5, 20, waived_from=START + seconds(5.1), reason=EndReason.DRAINED),
        held(other, second_node, second, 301, 330, active_at=None, reason=EndReason.NODE_RESTARTED),
    ):
        await stage.tell(*states_of(one))
    await stage.tell(states_of(held(other, second_node, second, 400, 100_000, pool_id=pools[1]))[1])
    # A node that was paid for by use is committed from then on, in another pool, cordoned, and then gone.
    moved = make_node(second_node, [second], market=Market.COMMITTED, pool_id=pools[1], generation=2)
    await stage.tell_node(moved, START + seconds(350))
    await stage.tell_node(
        make_node(node, [first], market=Market.COMMITTED, schedulable=False, generation=2), START + seconds(600)
    )
    await stage.tell_node(make_node(node, [first], state=NodeState.REMOVED, generation=3), START + seconds(700))
    start, end = START - seconds(200), START + seconds(1000)
    for by in ("job", "project", "tenant", "pool"):
        found = await report(stage.operator, start, end, f"group_by={by}")
        assert_adds_up(found)
        assert len({one[f"{by}_id"] for one in found["items"]}) == len(found["items"])
    fleet = found["fleet"]
    assert [(one["pool_id"], one["market"]) for one in fleet["shares"]] == [
        (str(pools[0]), "committed"), (str(pools[0]), "on_demand"), (str(pools[1]), "committed")
    ]  # fmt: skip
    committed = [one for one in fleet["shares"] if one["market"] == "committed"]
    unused = sum(Fraction(one["idle"]) + Fraction(one["unavailable"]) for one in committed)
    assert Fraction(fleet["unused_commitment"]) == unused > 0
    assert fleet["nodes"] == 2
    hours = {(one["resource"], one["flavor"]): Fraction(one["provided_hours"]) for one in fleet["flavors"]}
    assert hours["device", "h100"] == round(Fraction(800 + 1050, 3600), 6)
    # What tenants see: their own, without the fleet, and the same figures.
    by_tenant = {
        one["tenant_id"]: one for one in (await report(stage.operator, start, end, "group_by=tenant"))["items"]
    }
    for who, whose in ((caller, tenant), (stranger, other)):
        own = await report(who, start, end)
        assert_adds_up(own)
        assert own["fleet"] is None
        for field in ("used", "held_unbilled", "charged"):
            assert Fraction(own[field]) == Fraction(by_tenant[str(whose)][field])
    refused = await stranger("GET", f"/v1/reports/cost?tenant_id={tenant}")
    assert (refused.status_code, refused.json()["code"]) == (404, "kernel.object.not_found")
    narrowed = await report(stage.operator, start, end, f"group_by=job&tenant_id={tenant}")
    assert (narrowed["fleet"], narrowed["charged"]) == (None, by_tenant[str(tenant)]["charged"])
    # And what is charged is what the sums of charges say.
    sums = await stage.operator("GET", f"/v1/charges/sums?start_at={_text(start)}&end_at={_text(end)}", expect=200)
    assert Fraction(sums.json()["total"]["amount"]) == sum(Fraction(one["charged"]) for one in by_tenant.values())


async def test_report_when_more_is_held_than_there_is_then_the_item_is_left_out_and_named(stage: Stage) -> None:
    tenant, _ = await stage.tenant("acme")
    node, device = NodeId.new(), DeviceId.new()
    await stage.tell_node(make_node(node, [device]), START)
    for _ in range(4):
        await stage.tell(held(tenant, node, device, 0, 10))
    found = await report(stage.operator, START, START + seconds(100))
    assert found["fleet"]["left_out"] == [f"{node}/{device}"]
    # The end is not yet: every page ends where the first one did.
    assert len((await report(stage.operator, START, datetime(2999, 1, 1, tzinfo=UTC)))["items"]) == 4
    assert {one["resource"] for one in found["fleet"]["flavors"]} == {"cpu", "memory"}


async def test_report_when_the_interval_is_none_then_422(stage: Stage) -> None:
    for query in ("start_at=2999-01-01T00:00:00Z", "start_at=2024-02-02T00:00:00Z&end_at=2024-02-01T00:00:00Z"):
        assert (await stage.operator("GET", f"/v1/reports/cost?{query}")).status_code == 422
    assert (await stage.operator("GET", "/v1/reports/cost?group_by=colour")).status_code == 422
    assert (await stage.operator("GET", "/v1/reports/cost")).json()["items"] == []


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
