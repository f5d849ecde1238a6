"""A consumer that the feed no longer reaches loads a snapshot; views can be rebuilt; old rows are deleted in order."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from millpond_contracts.bodies.tenants import TenantView
from millpond_contracts.events import Envelope
from millpond_contracts.events.quota import TenantChanged
from millpond_kernel.db import SYSTEM
from millpond_kernel.rebuild import RebuildRefused, rebuild
from millpond_kernel.retention import delete_expired
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork
from tests.integration.kernel.stage import Stage, noting, running
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def _save(unit: UnitOfWork, tenant: TenantView) -> None:
    await unit.execute(
        "INSERT INTO tenant_shadow AS v VALUES ($1, $2, $3) ON CONFLICT (tenant) DO UPDATE SET name = excluded.name,"
        " generation = excluded.generation WHERE excluded.generation > v.generation",
        str(tenant.tenant_id),
        tenant.name,
        tenant.generation,
    )


async def _on_tenant(unit: UnitOfWork, envelope: Envelope, event: TenantChanged) -> None:
    await _save(unit, event.tenant_view)


async def _load(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await _save(unit, TenantView.model_validate(item))


async def _clear(unit: UnitOfWork) -> None:
    await unit.execute("DELETE FROM tenant_shadow")


def tenants(**options: Any) -> Consumer:
    return Consumer("tenants", "quota", {TenantChanged: _on_tenant}, snapshots={"tenants": _load}, **options)


async def shadow(stage: Stage) -> dict[str, int]:
    async with stage.applier.begin(SYSTEM) as unit:
        return {row["name"]: row["generation"] for row in await unit.fetch("SELECT * FROM tenant_shadow")}


async def create(stage: Stage, *names: str) -> None:
    for name in names:
        await stage.services.as_key()("POST", "/v1/tenants", {"name": name}, expect=201)
    await stage.relay().number()


async def forget_events(stage: Stage) -> int:
    async with stage.publisher.begin(SYSTEM) as unit:
        now = await unit.fetchval("SELECT clock_timestamp()")
    return await delete_expired(stage.publisher, now + timedelta(seconds=1))


async def reach(stage: Stage, consumer: Consumer, seq: int) -> None:
    async def applied() -> bool:
        return await stage.cursor(consumer) == seq

    async with running(stage.relay().run, stage.runner(consumer).run):
        await eventually(applied)


async def test_consumer_when_the_feed_was_trimmed_then_it_loads_a_snapshot_and_follows(stage: Stage) -> None:
    await create(stage, "a", "b", "c")
    assert await forget_events(stage) > 0
    operator = stage.services.as_key(stage.services.settings["quota"].service_key.get_secret_value())
    gone = await operator("GET", "/internal/v1/events/quota?after=0")
    assert (gone.status_code, gone.json()["code"]) == (410, "kernel.feed.gone")
    await reach(stage, tenants(), 3)
    assert await shadow(stage) == {"a": 1, "b": 1, "c": 1}
    await create(stage, "d")
    await reach(stage, tenants(), 4)
    assert await shadow(stage) == {"a": 1, "b": 1, "c": 1, "d": 1}


async def test_consumer_when_it_has_no_snapshot_then_it_goes_on_with_what_is_kept(stage: Stage) -> None:
    await stage.make_things(1)
    await stage.change_many(5)
    await stage.relay().number()
    await forget_events(stage)
    await stage.change_many(2)
    await stage.relay().number()
    await reach(stage, noting(), 7)
    assert await stage.effects() == [6, 7]


async def test_rebuild_when_a_view_was_corrupted_then_equal_to_the_live_one(stage: Stage) -> None:
    await create(stage, "a", "b")
    consumer = tenants(clear=_clear)
    await reach(stage, consumer, 2)
    live = await shadow(stage)
    async with stage.applier.begin(SYSTEM) as unit:
        await unit.execute("UPDATE tenant_shadow SET name = 'wrong' WHERE name = 'a'")
        await unit.execute("INSERT INTO tenant_shadow VALUES ('never existed', 'ghost', 9)")
    assert await shadow(stage) != live
    assert await rebuild(stage.applier, stage.feed, consumer) == 2
    assert await shadow(stage) == live
    assert await stage.cursor(consumer) == 2
    with pytest.raises(RebuildRefused):
        await rebuild(stage.applier, stage.feed, noting())


async def test_retention_when_rows_expire_then_only_those_and_numbered_ones_go(stage: Stage) -> None:
    await create(stage, "a", "b")
    async with stage.publisher.begin(SYSTEM) as unit:
        await unit.execute("UPDATE outbox SET recorded_at = recorded_at - interval '40 days' WHERE seq = 1")
        await unit.execute("UPDATE idempotency SET created_at = created_at - interval '40 days' WHERE key LIKE '%'")
        now = await unit.fetchval("SELECT clock_timestamp()")
    await stage.make_things(1)
    await stage.change_many(1)
    assert await delete_expired(stage.publisher, now - timedelta(days=35)) == 3
    assert await delete_expired(stage.publisher, now - timedelta(days=35)) == 0
    async with stage.publisher.begin(SYSTEM) as unit:
        assert [row["seq"] for row in await unit.fetch("SELECT seq FROM outbox ORDER BY id")] == [2, None]


async def test_feed_when_asked_for_the_last_so_many_then_those_that_are_kept(stage: Stage) -> None:
    await create(stage, "a", "b", "c")
    async with stage.publisher.begin(SYSTEM) as unit:
        await unit.execute("DELETE FROM outbox WHERE seq = 1")
    caller = stage.services.as_key(stage.services.settings["quota"].service_key.get_secret_value())

    async def sequences(after: int) -> list[int]:
        page = (await caller("GET", f"/internal/v1/events/quota?after={after}", expect=200)).json()
        assert page["head"] == 3
        return [event["seq"] for event in page["events"]]

    assert await sequences(-1) == [3]
    assert await sequences(-5000) == [2, 3]
    assert await sequences(3) == []
    assert (await caller("GET", "/internal/v1/events/quota?after=0")).status_code == 410
    assert (await caller("GET", f"/internal/v1/events/quota?after={10**30}")).status_code == 422
    assert (await stage.services.as_key()("GET", "/internal/v1/events/quota")).status_code == 403
