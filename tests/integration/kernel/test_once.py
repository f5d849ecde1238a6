"""Idempotency keys, entity tags and cursors, as every service has them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from millpond_kernel.db import SYSTEM
from tests.integration.databases import MigratedDatabase
from tests.integration.services import Services, run_services

pytestmark = pytest.mark.integration


@pytest.fixture
async def services(migrated: MigratedDatabase) -> AsyncIterator[Services]:
    async with run_services(migrated, ["quota"], workers=False, database_pool_size=10) as running:
        yield running


async def test_post_when_twenty_at_once_with_one_key_then_one_effect(
    services: Services, migrated: MigratedDatabase
) -> None:
    operator = services.as_key()
    once = {"Idempotency-Key": "once"}
    answers = await asyncio.gather(
        *(operator("POST", "/v1/tenants", {"name": "acme"}, headers=once) for _ in range(20))
    )
    # Whoever could not wait long enough for the first is told to come again; nobody gets another answer.
    assert {answer.status_code for answer in answers} <= {201, 409}
    bodies = {answer.text for answer in answers if answer.status_code == 201}
    assert len(bodies) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers if answer.status_code == 201) == 1
    async with migrated.opened("quota") as database, database.begin(SYSTEM) as unit:
        assert await unit.fetchval("SELECT count(*) FROM tenant") == 1
        assert await unit.fetchval("SELECT count(*) FROM outbox") == 1
        assert await unit.fetchval("SELECT count(*) FROM audit") == 1


async def test_post_when_the_key_comes_with_another_request_then_422(services: Services) -> None:
    operator = services.as_key()
    once = {"Idempotency-Key": "once"}
    tenant = (await operator("POST", "/v1/tenants", {"name": "acme"}, headers=once, expect=201)).json()["tenant_id"]
    for path, body in (("/v1/tenants", {"name": "other"}), ("/v1/projects", {"name": "acme", "tenant_id": tenant})):
        answer = await operator("POST", path, body, headers=once)
        assert (answer.status_code, answer.json()["code"]) == (422, "kernel.idempotency_key.reused")
    assert len((await operator("GET", "/v1/tenants")).json()["items"]) == 1


async def test_post_when_refused_then_the_key_is_free_again(services: Services) -> None:
    operator = services.as_key()
    once = {"Idempotency-Key": "once"}
    await operator("POST", "/v1/tenants", {"name": "acme", "timezone": "Mars/Olympus"}, headers=once, expect=422)
    await operator("POST", "/v1/tenants", {"name": "acme"}, headers=once, expect=201)


async def test_post_when_two_callers_use_one_key_then_each_has_its_own(services: Services) -> None:
    operator = services.as_key()
    once = {"Idempotency-Key": "once"}
    keys = []
    for name in ("one", "two"):
        tenant = (await operator("POST", "/v1/tenants", {"name": name}, expect=201)).json()["tenant_id"]
        body = {"name": "admin", "role": "tenant_admin", "tenant_id": tenant}
        keys.append((await operator("POST", "/v1/api-keys", body, expect=201)).json()["secret"])
    made = [
        (await services.as_key(key)("POST", "/v1/projects", {"name": "p"}, headers=once, expect=201)).json()
        for key in keys
    ]
    assert made[0]["project_id"] != made[1]["project_id"]
    assert made[0]["tenant_id"] != made[1]["tenant_id"]


async def test_post_when_the_key_is_malformed_then_400(services: Services) -> None:
    for key in ("", "x" * 129, "a b"):
        headers = {"Idempotency-Key": key}
        answer = await services.as_key()("POST", "/v1/tenants", {"name": "acme"}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "kernel.idempotency_key.invalid"), key


async def test_post_when_replayed_then_secrets_are_not_shown_again(services: Services) -> None:
    operator = services.as_key()
    body = {"name": "second", "role": "operator"}
    once = {"Idempotency-Key": "once"}
    first = (await operator("POST", "/v1/api-keys", body, headers=once, expect=201)).json()
    again = (await operator("POST", "/v1/api-keys", body, headers=once, expect=201)).json()
    assert first["secret"]
    assert again == {**first, "secret": None}


async def test_change_when_the_tag_is_compared_then_only_the_current_one_passes(services: Services) -> None:
    operator = services.as_key()
    made = await operator("POST", "/v1/tenants", {"name": "acme"}, expect=201)
    assert made.headers["etag"] == '"1"'
    path, body = made.headers["location"], {"name": "acme", "timezone": "Asia/Shanghai"}
    for stale in ('"2"', "1", '"', '""'):
        await operator("PUT", path, body, headers={"If-Match": stale}, expect=412)
    assert (await operator("GET", path)).headers["etag"] == '"1"'
    for number, current in enumerate(('"1"', "*", 'W/"3"', '"0", "4"'), start=2):
        changed = await operator("PUT", path, body, headers={"If-Match": current}, expect=200)
        assert changed.headers["etag"] == f'"{number}"'


async def test_change_when_two_read_the_same_state_then_one_of_them_passes(services: Services) -> None:
    operator = services.as_key()
    path = (await operator("POST", "/v1/tenants", {"name": "acme"}, expect=201)).headers["location"]
    zones = ("Asia/Shanghai", "Europe/Berlin")
    answers = await asyncio.gather(
        *(operator("PUT", path, {"name": "acme", "timezone": z}, headers={"If-Match": '"1"'}) for z in zones)
    )
    assert sorted(answer.status_code for answer in answers) == [200, 412]


async def test_list_when_paged_then_every_item_once_and_foreign_cursors_refused(services: Services) -> None:
    operator = services.as_key()
    names = [f"t{number}" for number in range(5)]
    for name in names:
        await operator("POST", "/v1/tenants", {"name": name}, expect=201)
    found: list[str] = []
    cursor = ""
    while True:
        page = (await operator("GET", f"/v1/tenants?limit=2{cursor}", expect=200)).json()
        found += [item["name"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found == names
    audit = (await operator("GET", "/v1/audit/quota?limit=2", expect=200)).json()["next_cursor"]
    for wrong in (audit, audit[:-1] + ("A" if audit[-1] != "A" else "B"), "x"):
        answer = await operator("GET", f"/v1/tenants?cursor={wrong}")
        assert (answer.status_code, answer.json()["code"]) == (400, "kernel.cursor.invalid")
