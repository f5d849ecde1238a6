"""Tenants, keys, roles and virtual pools over HTTP, with a real database and stream behind them."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.databases import MigratedDatabase
from tests.integration.services import Services, run_services
from tests.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
async def services(migrated: MigratedDatabase) -> AsyncIterator[Services]:
    async with run_services(migrated, ["quota"]) as running:
        yield running


async def make_tenant(services: Services, name: str) -> str:
    answer = await services.as_key()("POST", "/v1/tenants", {"name": name}, expect=201)
    return str(answer.json()["tenant_id"])


async def make_key(services: Services, tenant: str, role: str = "tenant_admin") -> dict[str, str]:
    body = {"name": f"key-{role.replace('_', '-')}", "role": role, "tenant_id": tenant}
    answer = await services.as_key()("POST", "/v1/api-keys", body, expect=201)
    return dict(answer.json())


async def test_create_tenant_when_repeated_with_key_then_one_tenant(services: Services) -> None:
    operator = services.as_key()
    headers = {"Idempotency-Key": "once"}
    first = await operator("POST", "/v1/tenants", {"name": "acme"}, headers=headers, expect=201)
    again = await operator("POST", "/v1/tenants", {"name": "acme"}, headers=headers, expect=201)
    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    other = await operator("POST", "/v1/tenants", {"name": "other"}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "kernel.idempotency_key.reused")
    taken = await operator("POST", "/v1/tenants", {"name": "acme"})
    assert (taken.status_code, taken.json()["code"]) == (409, "kernel.name.taken")


async def test_requests_when_malformed_then_problem_and_no_change(services: Services) -> None:
    operator = services.as_key()
    cases = [
        ({"name": "ok", "surplus": 1}, 422),
        ({"name": "NOT OK"}, 422),
        ({"name": "ok", "timezone": "Mars/Olympus"}, 422),
        ({"name": "ok", "currency": "yuan"}, 422),
    ]
    for body, status in cases:
        answer = await operator("POST", "/v1/tenants", body)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
    missing = await services.http.post(
        "/v1/tenants", json={"name": "ok"}, headers={"Authorization": f"Bearer {services.operator_key}"}
    )
    assert (missing.status_code, missing.json()["code"]) == (400, "kernel.idempotency_key.missing")
    nobody = await services.http.get("/v1/tenants")
    assert nobody.status_code == 401
    assert (await operator("GET", "/v1/tenants?cursor=abc")).status_code == 400
    assert (await operator("GET", "/v1/tenants", expect=200)).json()["items"] == []


async def test_tenant_key_when_asking_for_another_tenant_then_404(services: Services) -> None:
    mine, other = await make_tenant(services, "mine"), await make_tenant(services, "other")
    admin = services.as_key((await make_key(services, mine))["secret"])
    listed = await admin("GET", "/v1/tenants", expect=200)
    assert [item["tenant_id"] for item in listed.json()["items"]] == [mine]
    assert (await admin("GET", f"/v1/tenants/{other}")).status_code == 404
    assert (await admin("POST", "/v1/tenants", {"name": "third"})).status_code == 403
    foreign = {"name": "sneaky", "role": "viewer", "tenant_id": other}
    assert (await admin("POST", "/v1/api-keys", foreign)).status_code == 404
    operator_key = {"name": "sneaky", "role": "operator"}
    assert (await admin("POST", "/v1/api-keys", operator_key)).status_code == 422


async def test_replace_tenant_when_stale_then_412_and_missing_428(services: Services) -> None:
    operator = services.as_key()
    tenant = await make_tenant(services, "acme")
    tag = (await operator("GET", f"/v1/tenants/{tenant}", expect=200)).headers["etag"]
    body = {"name": "acme", "timezone": "Asia/Shanghai"}
    assert (await operator("PUT", f"/v1/tenants/{tenant}", body)).status_code == 428
    await operator("PUT", f"/v1/tenants/{tenant}", body, headers={"If-Match": tag}, expect=200)
    stale = await operator("PUT", f"/v1/tenants/{tenant}", body, headers={"If-Match": tag})
    assert (stale.status_code, stale.json()["code"]) == (412, "kernel.if_match.stale")


async def test_key_when_revoked_then_refused_within_seconds(services: Services) -> None:
    tenant = await make_tenant(services, "acme")
    made = await make_key(services, tenant, "viewer")
    viewer = services.as_key(made["secret"])
    assert (await viewer("GET", "/v1/me", expect=200)).json()["tenant_name"] == "acme"
    shown = await services.as_key()("GET", f"/v1/api-keys/{made['api_key_id']}", expect=200)
    assert shown.json()["secret"] is None
    await services.as_key()("POST", f"/v1/api-keys/{made['api_key_id']}/revoke", expect=200)

    async def refused() -> bool:
        return (await viewer("GET", "/v1/me")).status_code == 401

    await eventually(refused, 5)


async def test_events_when_tenants_change_then_watch_resumes_by_index(services: Services) -> None:
    tenant = await make_tenant(services, "acme")
    operator = services.as_key()

    async def published() -> bool:
        text = (await operator("GET", "/v1/events/quota?after=0&follow=false", expect=200)).text
        return "quota.tenant_changed.v1" in text and tenant in text

    await eventually(published)
    resumed = await operator("GET", "/v1/events/quota?after=1&follow=false", expect=200)
    assert "quota.tenant_changed.v1" not in resumed.text


async def test_audit_when_chained_then_every_hash_follows(services: Services) -> None:
    await make_tenant(services, "acme")
    await make_tenant(services, "other")
    operator = services.as_key()

    async def chained() -> list[dict[str, object]]:
        rows = (await operator("GET", "/v1/audit/quota", expect=200)).json()["items"]
        return rows if len(rows) == 2 and all(row["hash"] for row in rows) else []

    rows = await eventually(chained)
    assert [row["action"] for row in rows] == ["tenant.create", "tenant.create"]
    assert rows[0]["hash"] != rows[1]["hash"]
