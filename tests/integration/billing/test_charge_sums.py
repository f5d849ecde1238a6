"""Sums of charges: by anything, to the last digit what the statement says, page by page, and nobody else's."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.ids import DeviceId, JobId, NodeId, PoolId, ProjectId, TenantId
from tests.integration.billing.stage import START, Stage, allocation, seconds, share, states_of
from tests.integration.billing.test_adding_up import change_prices, held
from tests.integration.services import Caller

pytestmark = pytest.mark.integration

FEBRUARY = "2024-01-31T16:00:00Z"
DIVISIONS: tuple[Sequence[str], ...] = (
    (),
    ("job",),
    ("project",),
    ("pool", "node"),
    ("resource", "flavor"),
    ("label:team",),
    ("hour",),
    ("day",),
    ("month",),
    ("tenant", "label:team", "flavor", "day"),
    ("job", "resource", "hour"),
)


async def list_groups(caller: Caller, group_by: Sequence[str], query: str, limit: int = 40) -> list[dict[str, Any]]:
    """Every group, page by page; each page must tell the same total."""
    path = "/v1/charges/sums?" + "&".join([*(f"group_by={one}" for one in group_by), query])
    items: list[dict[str, Any]] = []
    totals, cursor = set(), ""
    while True:
        page = (await caller("GET", f"{path}&limit={limit}{cursor}", expect=200)).json()
        items += page["items"]
        totals.add(page["total"]["amount"])
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert len(totals) == 1
    assert sum(Fraction(one["amount"]["amount"]) for one in items) == Fraction(totals.pop())
    return items


def assert_is_statement(groups: Sequence[dict[str, Any]], statement: dict[str, Any]) -> None:
    """The groups are the statement: in all, by cause, and in seconds."""
    subtotals = {kind: Fraction(money["amount"]) for kind, money in statement["subtotals"].items()}
    rounding = subtotals.pop("rounding", Fraction(0))
    owed = sum(Fraction(one["amount"]["amount"]) for one in groups)
    assert owed + rounding == Fraction(statement["total"]["amount"])
    for kind in subtotals:
        found = sum(Fraction(one["subtotals"].get(kind, {"amount": "0"})["amount"]) for one in groups)
        assert found == subtotals[kind], kind
    assert sum(one["seconds"] for one in groups) == statement["seconds"]


async def use_in_every_way(stage: Stage, tenant: TenantId) -> None:
    """What complicates a bill: price changes, a minimum, waivers, odd microseconds, labels, what still runs."""
    node, other = NodeId.new(), NodeId.new()
    first, second = DeviceId.new(), DeviceId.new()
    await change_prices(stage.billing, tenant, START + seconds(50.123456))
    train, project = {"job_id": JobId.new(), "labels": {"team": "vision", "stage": ""}}, ProjectId.new()
    late = {"team": "speech"}
    for one in (
        held(tenant, node, first, 0, 200.25, **train),
        held(tenant, node, first, 10, 12.5, project_id=project, labels=late),
        held(tenant, node, first, 210, 300, waived_from=START + seconds(260.5), reason=EndReason.PREEMPTED, **train),
        held(tenant, node, first, 301, 330, active_at=None, reason=EndReason.NODE_RESTARTED),
        held(tenant, other, second, 5, 20, waived_from=START + seconds(5.1), reason=EndReason.DRAINED),
        held(tenant, other, second, 40.000001, 77.7, pool_id=PoolId.new(), project_id=project),
        # Over several local midnights, in a flavor of its own.
        held(tenant, other, second, 3000.123, 200_000.5, devices=(share(125, "t4"),), labels={"team": ""}),
    ):
        await stage.tell(*states_of(one))
    running = held(tenant, node, second, 100_000.25, 10_000_000, labels=late)
    await stage.tell(states_of(running)[1])


async def statement_of(caller: Caller, query: str) -> dict[str, Any]:
    return dict((await caller("GET", f"/v1/statements/current?{query}", expect=200)).json())


async def test_sums_when_divided_by_anything_then_they_are_the_statement_before_and_after_its_close(
    stage: Stage,
) -> None:
    tenant, caller = await stage.tenant("acme")
    await use_in_every_way(stage, tenant)
    query = f"period_start={FEBRUARY}"
    draft = await statement_of(caller, query)
    assert {"usage", "round_up", "minimum", "price_difference", "waiver"} <= set(draft["subtotals"])
    for division in DIVISIONS:
        assert_is_statement(await list_groups(caller, division, query), draft)
    await stage.close_statements(tenant)
    closed = await statement_of(caller, query)
    assert closed["state"] == "closed"
    for division in DIVISIONS:
        assert_is_statement(await list_groups(caller, division, query), closed)
    # What comes late is on a later statement, and nowhere else.
    await stage.tell(held(tenant, NodeId.new(), DeviceId.new(), 7, 90, labels={"team": "late"}))
    assert_is_statement(await list_groups(caller, ("job",), query), closed)
    present = await statement_of(caller, "")
    assert Fraction(present["subtotals"]["adjustment"]["amount"]) > 0
    begins = present["period_start"]
    for division in (("label:team",), ("job", "day")):
        groups = await list_groups(caller, division, f"end_at={present['as_of']}&start_at={begins}")
        adjusted = sum(Fraction(one["subtotals"].get("adjustment", {"amount": "0"})["amount"]) for one in groups)
        assert adjusted == Fraction(present["subtotals"]["adjustment"]["amount"])


async def test_sums_when_an_interval_is_cut_anywhere_then_the_parts_are_the_whole(stage: Stage) -> None:
    tenant, caller = await stage.tenant("acme")
    await use_in_every_way(stage, tenant)
    points = [
        START - seconds(10),
        START + seconds(0.7),
        START + seconds(11.000001),
        START + seconds(51),
        START + seconds(260.9),
    ]
    points += [START + timedelta(hours=20, microseconds=1), START + timedelta(days=40)]
    whole = await list_groups(caller, ("job", "resource"), f"start_at={_text(points[0])}&end_at={_text(points[-1])}")
    by_key = {(one["job_id"], one["resource"]): Fraction(one["amount"]["amount"]) for one in whole}
    parts: dict[tuple[str, str], Fraction] = {}
    for start, end in pairwise(points):
        for one in await list_groups(caller, ("job", "resource"), f"start_at={_text(start)}&end_at={_text(end)}"):
            key = (one["job_id"], one["resource"])
            parts[key] = parts.get(key, Fraction(0)) + Fraction(one["amount"]["amount"])
    assert parts == by_key


async def test_sums_by_day_when_work_runs_over_midnight_then_each_day_of_the_tenants_zone_has_its_part(
    stage: Stage,
) -> None:
    tenant, caller = await stage.tenant("acme", "Europe/Berlin")
    # The night in which Berlin's clocks go forward: the day has 23 hours.
    zone = ZoneInfo("Europe/Berlin")
    begins, ends = datetime(2024, 3, 30, 23, 59, 58, 500_000, zone), datetime(2024, 4, 1, 0, 0, 1, 250_000, zone)
    one = allocation(tenant, bound_at=begins, active_at=begins, released_at=ends, cpu_milli=1000, memory_mib=1)
    await stage.tell(one)
    groups = await list_groups(
        caller, ("resource", "day"), f"start_at={_text(begins - timedelta(days=3))}&end_at={_text(ends)}"
    )
    cpu = [group for group in groups if group["resource"] == "cpu"]
    assert [group["start_at"] for group in cpu] == [
        "2024-03-29T23:00:00Z", "2024-03-30T23:00:00Z", "2024-03-31T22:00:00Z"
    ]  # fmt: skip
    # Ticks are half a second off: a second belongs to the day in which it begins.
    assert [group["seconds"] for group in cpu] == [2, 23 * 3600, 1]
    per_second = Fraction("0.18") / 3600
    assert [Fraction(group["subtotals"]["usage"]["amount"]) for group in cpu] == [
        per_second * Fraction(3, 2), per_second * 23 * 3600, per_second * Fraction(5, 4)
    ]  # fmt: skip


async def test_sums_when_filtered_then_only_what_was_asked_for(stage: Stage) -> None:
    tenant, caller = await stage.tenant("acme")
    await use_in_every_way(stage, tenant)
    query = f"period_start={FEBRUARY}"
    by_team = {one["labels"]["team"]: one["amount"] for one in await list_groups(caller, ("label:team",), query)}
    assert set(by_team) == {None, "", "vision", "speech"}
    for label, wanted in (("team=vision", "vision"), ("team=", ""), ("team=speech", "speech")):
        (one,) = await list_groups(caller, (), f"{query}&label={label}")
        assert one["amount"] == by_team[wanted]
    (any_team,) = await list_groups(caller, (), f"{query}&label=team")
    assert Fraction(any_team["amount"]["amount"]) == sum(
        Fraction(money["amount"]) for team, money in by_team.items() if team is not None
    )
    for job in await list_groups(caller, ("job",), query):
        (one,) = await list_groups(caller, (), f"{query}&job_id={job['job_id']}")
        assert (one["amount"], one["seconds"]) == (job["amount"], job["seconds"])
    flavors = {one["flavor"]: one["amount"] for one in await list_groups(caller, ("flavor",), query)}
    assert set(flavors) == {"*", "h100", "t4"}
    (one,) = await list_groups(caller, (), f"{query}&flavor=t4")
    assert one["amount"] == flavors["t4"]
    for nobody in ("label=team=nobody", "label=team=speech&label=team=vision"):
        assert await list_groups(caller, ("job",), f"{query}&{nobody}") == []
    (one,) = await list_groups(caller, (), f"{query}&label=team=speech&label=team")
    assert one["amount"] == by_team["speech"]


async def test_sums_when_others_ask_then_tenants_see_their_own_and_operators_all(stage: Stage) -> None:
    tenant, caller = await stage.tenant("acme")
    other, stranger = await stage.tenant("globex", "America/New_York")
    for owner in (tenant, other):
        await stage.tell(allocation(owner))
    window = f"start_at={_text(START)}&end_at={_text(START + timedelta(days=2))}"
    all_of_it = await list_groups(stage.operator, ("tenant",), window)
    assert {one["tenant_id"] for one in all_of_it} == {str(tenant), str(other)}
    # Days are each tenant's own.
    days = await list_groups(stage.operator, ("tenant", "day"), window)
    assert {(one["tenant_id"], one["start_at"][11:]) for one in days} == {
        (str(tenant), "16:00:00Z"), (str(other), "05:00:00Z")
    }  # fmt: skip
    for who, whose in ((caller, tenant), (stranger, other)):
        (one,) = await list_groups(who, ("tenant",), window)
        assert one["tenant_id"] == str(whose)
    refused = await stranger("GET", f"/v1/charges/sums?tenant_id={tenant}")
    assert (refused.status_code, refused.json()["code"]) == (404, "kernel.object.not_found")


async def test_sums_when_the_question_is_wrong_then_422_or_400_and_why(stage: Stage) -> None:
    tenant, caller = await stage.tenant("acme")
    for query in (
        "group_by=hour&group_by=day",
        "group_by=job&group_by=job",
        "group_by=shoe",
        "group_by=label:",
        "label=team%00",
        "label=team=a%00b",
        "end_at=2024-02-20T00:00:00Z",
        f"start_at=2024-02-20T00:00:00Z&period_start={FEBRUARY}",
        "start_at=2024-02-20T00:00:00Z&end_at=2024-02-20T00:00:00Z",
        "group_by=hour&start_at=1970-01-01T00:00:00Z",
    ):
        assert (await caller("GET", f"/v1/charges/sums?{query}")).status_code == 422, query
    assert (await stage.operator("GET", "/v1/charges/sums?group_by=tenant")).status_code == 422
    for number in range(3):
        await stage.tell(allocation(tenant, job_name=f"job-{number}"))
    page = (await caller("GET", f"/v1/charges/sums?period_start={FEBRUARY}&group_by=job&limit=1", expect=200)).json()
    cursor = page["next_cursor"]
    wrong = await caller("GET", f"/v1/charges/sums?period_start={FEBRUARY}&group_by=job&group_by=pool&cursor={cursor}")
    assert (wrong.status_code, wrong.json()["code"]) == (400, "kernel.cursor.invalid")


async def test_sums_when_labels_are_as_long_as_they_may_be_then_the_next_page_is_found(stage: Stage) -> None:
    tenant, caller = await stage.tenant("acme")
    names = [f"label-{number}" for number in range(8)]
    for first in "\x01\U0001f600":
        await stage.tell(allocation(tenant, labels=dict.fromkeys(names, first + 127 * "\x01")))
    groups = await list_groups(caller, [f"label:{name}" for name in names], f"period_start={FEBRUARY}", limit=1)
    assert len(groups) == 2


async def test_lines_when_a_cause_is_asked_for_then_they_add_up_to_its_figure(stage: Stage) -> None:
    tenant, caller = await stage.tenant("acme")
    await use_in_every_way(stage, tenant)
    draft = await statement_of(caller, f"period_start={FEBRUARY}")
    every = await stage.list_all(caller, f"/v1/charges?period_start={FEBRUARY}")
    (statement_id, *_) = await stage.close_statements(tenant)
    for kind, money in draft["subtotals"].items():
        if kind == "rounding":
            continue
        lines = await stage.list_all(caller, f"/v1/statements/{statement_id}/lines?kind={kind}", 3)
        assert sum(Fraction(one["amount"]["amount"]) for one in lines) == Fraction(money["amount"])
        assert {one["kind"] for one in lines} == {kind}
        assert len(lines) == sum(one["kind"] == kind for one in every)
    sku = "device/t4/on_demand"
    only = await stage.list_all(caller, f"/v1/charges?period_start={FEBRUARY}&sku={sku}&kind=usage", 1)
    assert {(one["sku"], one["unit"]) for one in only} == {(sku, "device")}


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
