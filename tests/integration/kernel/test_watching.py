"""Watches resume by index, show a tenant its own events only, and end when their key does."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from millpond_kernel.db import SYSTEM
from millpond_kernel.doorbell import connect_redis
from millpond_kernel.following import StreamBell
from millpond_kernel.outbox import stream_key
from tests.integration.databases import MigratedDatabase
from tests.integration.services import Services, run_services
from tests.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
async def services(migrated: MigratedDatabase) -> AsyncIterator[Services]:
    async with run_services(migrated, ["quota"]) as running:
        yield running


async def make_tenant(services: Services, name: str) -> str:
    return str((await services.as_key()("POST", "/v1/tenants", {"name": name}, expect=201)).json()["tenant_id"])


async def make_key(services: Services, tenant: str, role: str = "viewer") -> dict[str, str]:
    body = {"name": "key", "role": role, "tenant_id": tenant}
    return dict((await services.as_key()("POST", "/v1/api-keys", body, expect=201)).json())


def sent(text: str) -> list[dict[str, Any]]:
    """The envelopes of a watch."""
    return [
        json.loads(line.removeprefix("data: "))
        for block in text.split("\n\n")
        if block.startswith("id: ")
        for line in block.split("\n")
        if line.startswith("data: ")
    ]


async def make_three_events(services: Services) -> None:
    """Three tenants, whose events have their numbers."""
    for name in ("a", "b", "c"):
        await make_tenant(services, name)

    async def all_numbered() -> bool:
        return len(sent((await services.as_key()("GET", "/v1/events/quota?after=0&follow=false")).text)) == 3

    await eventually(all_numbered)


async def test_watch_when_resumed_by_its_last_id_then_what_came_after(services: Services) -> None:
    await make_three_events(services)
    operator = services.as_key()
    path = "/v1/events/quota?after=0&follow=false"
    resumed = await operator("GET", path, headers={"Last-Event-ID": "2"}, expect=200)
    assert [(event["seq"], event["body"]["tenant_view"]["name"]) for event in sent(resumed.text)] == [(3, "c")]
    assert resumed.headers["content-type"].startswith("text/event-stream")
    assert sent((await operator("GET", "/v1/events/quota?follow=false")).text) == []
    for strange in ("²", "-1", str(2**70), "x"):
        headers = [(b"authorization", f"Bearer {operator.credentials}".encode()), (b"last-event-id", strange.encode())]
        answer = await services.http.get(path, headers=headers)
        assert answer.status_code == 422, strange


async def test_watch_when_a_tenant_watches_then_its_own_events_only(services: Services) -> None:
    mine, _ = await make_tenant(services, "mine"), await make_tenant(services, "other")
    viewer = services.as_key((await make_key(services, mine))["secret"])

    async def seen() -> list[dict[str, Any]]:
        return sent((await viewer("GET", "/v1/events/quota?after=0&follow=false", expect=200)).text)

    events = await eventually(seen)
    assert {event["tenant_id"] for event in events} == {events[0]["tenant_id"]}
    assert [event["body"]["tenant_view"]["name"] for event in events] == ["mine"]


async def test_watch_when_its_key_is_revoked_then_it_ends_within_seconds(services: Services) -> None:
    tenant = await make_tenant(services, "acme")
    key = await make_key(services, tenant)
    watch = asyncio.ensure_future(services.as_key(key["secret"])("GET", "/v1/events/quota?after=0"))
    await asyncio.sleep(0.2)
    assert not watch.done()
    await services.as_key()("POST", f"/v1/api-keys/{key['api_key_id']}/revoke", expect=200)
    ended = await asyncio.wait_for(watch, 5)
    assert ended.text.endswith(
        "event: problem\ndata: "
        + json.dumps({"code": "kernel.credentials.revoked", "detail": ended.text.rpartition('"detail": "')[2][:-4]})
        + "\n\n"
    )


async def test_keys_when_their_tenant_is_deleted_then_refused_within_seconds(services: Services) -> None:
    tenant = await make_tenant(services, "acme")
    viewer = services.as_key((await make_key(services, tenant))["secret"])
    token = (await services.http.post("/v1/tokens", json={"api_key": viewer.credentials})).json()["token"]
    await services.as_key(token)("GET", "/v1/projects", expect=200)
    await services.as_key()("DELETE", f"/v1/tenants/{tenant}", headers={"If-Match": "*"}, expect=204)

    async def refused() -> bool:
        answers = [await services.as_key(key)("GET", "/v1/projects") for key in (token, viewer.credentials)]
        return [answer.status_code for answer in answers] == [401, 401]

    await eventually(refused, 5)


async def test_role_when_changed_then_the_key_goes_on_with_its_new_one(services: Services) -> None:
    tenant = await make_tenant(services, "acme")
    key = await make_key(services, tenant, "tenant_admin")
    caller = services.as_key(key["secret"])
    token = (await services.http.post("/v1/tokens", json={"api_key": key["secret"]})).json()["token"]
    await caller("GET", "/v1/api-keys", expect=200)
    path = f"/v1/api-keys/{key['api_key_id']}/role"
    await services.as_key()("PUT", path, {"role": "viewer"}, headers={"If-Match": '"1"'}, expect=200)

    async def reduced() -> bool:
        old_token = await services.as_key(token)("GET", "/v1/projects")
        return (await caller("GET", "/v1/api-keys")).status_code == 403 and old_token.status_code == 401

    await eventually(reduced, 5)
    await caller("GET", "/v1/projects", expect=200)


async def test_watch_when_events_are_no_longer_kept_then_410(services: Services, migrated: MigratedDatabase) -> None:
    await make_three_events(services)
    async with migrated.opened("quota") as database, database.begin(SYSTEM) as unit:
        assert await unit.execute("DELETE FROM outbox WHERE seq <= 2") == 2
    operator = services.as_key()
    gone = await operator("GET", "/v1/events/quota?after=1&follow=false")
    assert (gone.status_code, gone.json()["code"]) == (410, "kernel.feed.gone")
    await operator("GET", "/v1/events/quota?after=2&follow=false", expect=200)


async def test_bell_when_the_stream_grows_then_rings(migrated: MigratedDatabase) -> None:
    redis, rings = connect_redis(migrated.redis_url), 0

    def ring() -> None:
        nonlocal rings
        rings += 1

    async def rung(times: int) -> None:
        await eventually(lambda: asyncio.sleep(0, rings >= times))

    bell = StreamBell(redis, "quota", migrated.redis_prefix, ring)
    bell.start()
    try:
        await rung(1)  # at its start, for what was there before
        for number in range(1, 4):
            await redis.xadd(stream_key(migrated.redis_prefix, "quota"), {"e": b"{}"}, id=f"{number}-0")
            await rung(number + 1)
    finally:
        await bell.stop()
        await redis.aclose()
