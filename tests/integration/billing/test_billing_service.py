"""Billing over HTTP: prices, statements, charges, as an operator and as a tenant see them."""

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from millpond_contracts.ids import ProjectId, TenantId
from tests.integration.billing.stage import Stage, allocation, seconds, share, states_of
from tests.integration.services import Caller

pytestmark = pytest.mark.integration

FEBRUARY = "2024-01-31T16:00:00Z"  # in Shanghai


def lines(**per_hour: str) -> list[dict[str, str]]:
    """Price lines of the three resources that a public list must price, and of others."""
    prices = {"device/*/on_demand": "9", "cpu/*/on_demand": "0.18", "memory/*/on_demand": "0.018"}
    return [{"sku": sku, "per_hour": price} for sku, price in (prices | per_hour).items()]


def sum_of(charges: list[dict[str, Any]]) -> Decimal:
    return sum((Decimal(one["amount"]["amount"]) for one in charges), Decimal(0))


async def statement_of(caller: Caller, start: str = FEBRUARY, tenant: TenantId | None = None) -> dict[str, Any]:
    named = "" if tenant is None else f"&tenant_id={tenant}"
    answer = await caller("GET", f"/v1/statements/current?period_start={start}{named}", expect=200)
    return dict(answer.json())


async def test_statement_when_events_come_twice_and_in_any_order_then_charges_sum_to_it(stage: Stage) -> None:
    tenant, caller = await stage.tenant("acme")
    held = allocation(tenant, devices=(share(250),))
    states = states_of(held)
    await stage.tell(states[2], states[0], states[2], states[1], states[0])

    charges = await stage.list_all(caller, f"/v1/charges?period_start={FEBRUARY}", limit=2)
    await stage.close_statements(tenant)
    statement = await statement_of(caller)
    assert statement["state"] == "closed"
    # 100.25 s are 101 whole seconds: a quarter of a device, two cores, 4 GiB.
    exact = Decimal(101) * (Decimal("9") / 4 + 2 * Decimal("0.18") + 4 * Decimal("0.018")) / 3600
    assert abs(sum_of(charges) - exact) < Decimal("1e-12")
    assert Decimal(statement["total"]["amount"]) == exact.quantize(Decimal("0.01"))
    assert sum(Decimal(money["amount"]) for money in statement["subtotals"].values()) == Decimal(
        statement["total"]["amount"]
    )
    assert statement["lines"] == len(charges) == 6
    assert sum_of(charges) + Decimal(statement["subtotals"]["rounding"]["amount"]) == Decimal(
        statement["total"]["amount"]
    )
    by_job = await stage.list_all(caller, f"/v1/charges?period_start={FEBRUARY}&job_id={held.job_id}", limit=1)
    assert by_job == charges
    assert {one["job_name"] for one in charges} == {"train"}
    listed = await stage.list_all(caller, f"/v1/statements/{statement['statement_id']}/lines", limit=4)
    assert listed == charges


async def test_charges_when_still_running_then_grow_and_become_the_written_ones(stage: Stage) -> None:
    tenant, caller = await stage.tenant("acme")
    now = datetime.now(UTC)
    last = allocation(
        tenant, bound_at=now - seconds(3), active_at=now - seconds(2), released_at=now + seconds(1), devices=(share(),)
    )
    bound, active, released = states_of(last)
    await stage.tell(bound)
    assert await stage.list_all(caller, "/v1/charges") == []
    await stage.tell(active)
    running = await stage.list_all(caller, "/v1/charges", limit=1)
    assert {one["segment_id"] for one in running} == {None}
    assert {one["sku"] for one in running} == {"cpu/*/on_demand", "memory/*/on_demand", "device/h100/on_demand"}
    current = (await caller("GET", "/v1/statements/current", expect=200)).json()
    assert current["state"] == "draft"
    assert Decimal(current["total"]["amount"]) >= sum_of(running).quantize(Decimal("0.01"))
    await stage.tell(released)
    written = await stage.list_all(caller, "/v1/charges", limit=3)
    assert None not in {one["segment_id"] for one in written}
    # The minimum of a minute: 3 s of use and 57 more.
    assert {one["seconds"] for one in written if one["kind"] == "minimum"} == {57}


async def test_tenants_when_they_ask_for_one_another_then_see_nothing(stage: Stage) -> None:
    tenant, caller = await stage.tenant("acme")
    _, stranger = await stage.tenant("other")
    await stage.tell(*states_of(allocation(tenant)))
    closed = (await stage.close_statements(tenant))[0]
    own = {"lines": lines()[:1], "tenant_id": str(tenant)}
    private = (await stage.operator("POST", "/v1/price-books", own, expect=201)).json()["price_version_id"]
    made = (await caller("POST", "/v1/exports", {"period_start": FEBRUARY}, expect=202)).json()["export_id"]
    theirs = (f"/v1/statements/{closed}", f"/v1/statements/{closed}/lines", f"/v1/exports/{made}")
    for path in (*theirs, f"/v1/price-books/{private}"):
        await caller("GET", path, expect=200)
    for path in (
        f"/v1/statements?tenant_id={tenant}",
        f"/v1/statements/current?tenant_id={tenant}",
        f"/v1/charges?tenant_id={tenant}",
        f"/v1/exports?tenant_id={tenant}",
        *theirs,
        f"/v1/exports/{made}/content",
        f"/v1/price-books/{private}",
    ):
        assert (await stranger("GET", path)).status_code == 404, path
    assert (await stranger("GET", f"/v1/charges?period_start={FEBRUARY}")).status_code == 422
    assert await stage.list_all(stranger, "/v1/charges") == []
    assert (await stranger("GET", "/v1/reconciliations")).status_code == 403
    assert (await stranger("POST", "/v1/price-books", {"lines": lines()})).status_code == 403
    for path in ("/v1/exports", "/v1/statements"):
        assert await stage.list_all(stranger, path) == []
    foreign = await stranger("POST", "/v1/exports", {"tenant_id": str(tenant)})
    assert foreign.status_code == 404


async def test_requests_when_malformed_then_problem_and_no_change(stage: Stage) -> None:
    tenant, caller = await stage.tenant("acme")
    await stage.tell(*states_of(allocation(tenant)))
    for path, status in (
        ("/v1/statements/current?period_start=2024-02-01T00:00:00", 422),
        ("/v1/statements/current?period_start=2024-02-01T00:00:00Z", 422),
        ("/v1/statements/current?period_start=9999-12-31T23:59:59Z", 422),
        ("/v1/statements/current?period_start=0001-01-01T00:00:00%2B14:00", 422),
        ("/v1/statements/current?period_start=NaN", 422),
        ("/v1/charges?limit=0", 422),
        ("/v1/charges?limit=9e30", 422),
        ("/v1/charges?cursor=AAAA", 400),
        ("/v1/charges?job_id=ten_1", 422),
        ("/v1/statements/stmt_1", 422),
    ):
        answer = await caller("GET", path)
        assert (path, answer.status_code) == (path, status)
        assert answer.headers["content-type"] == "application/problem+json"
    for start, code in (
        ("0001-01-01T00:00:00+14:00", "kernel.body.invalid"),
        ("9999-12-31T23:59:59-14:00", "kernel.body.invalid"),
        ("2024-02-01T00:00:00Z", "billing.statement.period"),
    ):
        refused = await caller("POST", "/v1/exports", {"period_start": start})
        assert (start, refused.status_code, refused.json()["code"]) == (start, 422, code)
    page = (await caller("GET", f"/v1/charges?period_start={FEBRUARY}&limit=1", expect=200)).json()
    foreign_cursor = await caller("GET", f"/v1/price-books?cursor={page['next_cursor']}")
    assert (foreign_cursor.status_code, foreign_cursor.json()["code"]) == (400, "kernel.cursor.invalid")
    assert (await stage.operator("GET", "/v1/charges")).status_code == 422
    unknown = await stage.operator("GET", f"/v1/charges?tenant_id={TenantId.new()}")
    assert unknown.status_code == 404
    wide = await stage.operator("GET", "/v1/reconciliations?start_at=2024-01-02T00:00:00Z&end_at=2024-01-01T00:00:00Z")
    assert wide.status_code == 422
    assert await stage.list_all(caller, "/v1/exports") == []
    assert len(await stage.list_all(stage.operator, "/v1/price-books")) == 1


async def test_pay_connector_4460_when_fifty_posts_have_one_key_then_one_export(stage: Stage) -> None:
    _, caller = await stage.tenant("acme")
    headers = {"Idempotency-Key": "once"}
    answers = await asyncio.gather(*(caller("POST", "/v1/exports", {}, headers=headers) for _ in range(50)))
    assert {answer.status_code for answer in answers} <= {202, 409}
    made = {answer.json()["export_id"] for answer in answers if answer.status_code == 202}
    assert len(made) == 1
    assert [one["export_id"] for one in await stage.list_all(caller, "/v1/exports")] == list(made)
    other = await caller("POST", "/v1/exports", {"format": "csv"}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "kernel.idempotency_key.reused")


async def test_publish_when_refused_then_says_why_and_changes_nothing(stage: Stage) -> None:
    tenant, caller = await stage.tenant("acme")
    soon = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    past = (datetime.now(UTC) - timedelta(seconds=5)).isoformat()
    before = await stage.list_all(stage.operator, "/v1/price-books")
    for body, status, code in (
        ({"lines": lines(), "valid_from": past}, 422, "billing.price.in_the_past"),
        ({"lines": lines(), "valid_from": "9999-12-31T23:59:59Z"}, 422, "kernel.body.invalid"),
        ({"lines": lines()[:2]}, 422, "kernel.body.invalid"),
        ({"lines": [*lines(), lines()[0]]}, 422, "kernel.body.invalid"),
        ({"lines": lines(), "currency": "EUR"}, 422, "kernel.body.invalid"),
        ({"lines": lines(**{"device/h100/on_demand": "-1"})}, 422, "kernel.body.invalid"),
        ({"lines": lines(**{"device/h100/on_demand": "1e9"})}, 422, "kernel.body.invalid"),
        ({"lines": lines(**{"device/h100/on_demand": "0.0000000001"})}, 422, "kernel.body.invalid"),
        ({"lines": lines(**{"device/h100/on_demand": "1000000001"})}, 422, "kernel.body.invalid"),
        ({"lines": lines(), "minimum_seconds": -1}, 422, "kernel.body.invalid"),
        ({"lines": lines()[:1], "tenant_id": str(TenantId.new())}, 404, "quota.tenant.not_found"),
        ({"lines": lines(), "surplus": 1}, 422, "kernel.body.invalid"),
    ):
        answer = await stage.operator("POST", "/v1/price-books", body)
        assert (body, answer.status_code, answer.json()["code"]) == (body, status, code)
    assert await stage.list_all(stage.operator, "/v1/price-books") == before

    published = await stage.operator("POST", "/v1/price-books", {"lines": lines(), "valid_from": soon}, expect=201)
    again = await stage.operator("POST", "/v1/price-books", {"lines": lines()})
    assert (again.status_code, again.json()["code"]) == (409, "billing.price.overlap")
    own = {"lines": lines()[:1], "tenant_id": str(tenant), "note": "for acme"}
    private = (await stage.operator("POST", "/v1/price-books", own, expect=201)).json()
    seen = {one["price_version_id"] for one in await stage.list_all(caller, "/v1/price-books", limit=1)}
    assert seen == {before[0]["price_version_id"], published.json()["price_version_id"], private["price_version_id"]}
    _, stranger = await stage.tenant("other")
    hidden = await stage.list_all(stranger, "/v1/price-books")
    assert private["price_version_id"] not in {one["price_version_id"] for one in hidden}
    assert (await stranger("GET", f"/v1/price-books/{private['price_version_id']}")).status_code == 404
    first = (await caller("GET", f"/v1/price-books/{before[0]['price_version_id']}", expect=200)).json()
    assert first["valid_to"] == published.json()["valid_from"]


async def test_prices_when_another_service_is_new_then_a_snapshot_has_them_all(stage: Stage) -> None:
    tenant, caller = await stage.tenant("acme")
    other, _ = await stage.tenant("other")
    for key in (tenant, other):
        await stage.operator("POST", "/v1/price-books", {"lines": lines()[:1], "tenant_id": str(key)}, expect=201)
    service = stage.services.as_key(stage.services.settings["billing"].service_key.get_secret_value())
    found, after = [], ""
    while after is not None:
        page = (await service("GET", f"/internal/v1/snapshot/billing/prices?limit=2&after={after}", expect=200)).json()
        found += page["items"]
        after = page["next"]
    listed = await stage.list_all(stage.operator, "/v1/price-books")
    assert sorted(one["price_version_id"] for one in found) == sorted(one["price_version_id"] for one in listed)
    assert len(found) == 3
    assert (await caller("GET", "/internal/v1/snapshot/billing/prices")).status_code == 403


async def test_charges_when_the_price_changes_and_a_tenant_has_its_own_then_lines_explain_it(stage: Stage) -> None:
    now = datetime.now(UTC)
    # A zone in which no month ends within hours: what lies beyond its end is charged when the next one has begun.
    tenant, caller = await stage.tenant(
        "acme", "UTC" if 6 <= now.hour < 18 else "Asia/Tokyo" if now.hour < 6 else "America/New_York"
    )
    own = {"lines": [{"sku": "device/*/on_demand", "per_hour": "3.6"}], "tenant_id": str(tenant)}
    private = (await stage.operator("POST", "/v1/price-books", own, expect=201)).json()
    change = datetime.fromisoformat(private["valid_from"])
    assert now < change
    project = ProjectId.new()
    held = allocation(
        tenant,
        cpu_milli=0,
        memory_mib=0,
        devices=(share(),),
        project_id=project,
        bound_at=change - seconds(10),
        active_at=change - seconds(10),
        released_at=change + seconds(100),
    )
    await stage.tell(*states_of(held))
    charges = await stage.list_all(caller, f"/v1/charges?project_id={project}")
    usage = [one for one in charges if one["kind"] == "usage"]
    assert [(one["seconds"], one["per_hour"]) for one in usage] == [(10, "9"), (100, "9")]
    difference = [one for one in charges if one["kind"] == "price_difference"]
    assert [(one["per_hour"], one["price_version_id"]) for one in difference] == [("3.6", private["price_version_id"])]
    assert sum_of(charges) == Decimal("0.025") + Decimal("0.1")
    assert await stage.list_all(caller, f"/v1/charges?project_id={ProjectId.new()}") == []
