"""Both engines are killed while events flow: nothing acknowledged is lost, nothing doubles, everybody recovers."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator

import pytest

from millpond.stack.ephemeral import EphemeralEngines
from millpond_contracts.events import PUBLISHERS
from millpond_kernel.db import DATABASE_ERRORS, SYSTEM
from millpond_kernel.migrate import migrate
from tests.integration.databases import PASSWORD, Engines, MigratedDatabase
from tests.integration.kernel.stage import Stage, assert_dense, noting, open_stage, running
from tests.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.fixture
def own_engines() -> EphemeralEngines:
    # Not a generator fixture around `with`: the engines end with the thread that started them, which is the main one.
    # Durable, since a PostgreSQL without it may lose acknowledged commits when it is killed.
    return EphemeralEngines(durable=True)


@pytest.fixture
async def own_stage(own_engines: EphemeralEngines) -> AsyncIterator[Stage]:
    with own_engines:
        await migrate(own_engines.postgres_url, dict.fromkeys(PUBLISHERS, PASSWORD))
        urls = Engines(own_engines.postgres_url, own_engines.redis_url)
        migrated = MigratedDatabase("millpond", urls.postgres_url, urls.redis_url, "mp_faults")
        async with open_stage(migrated) as stage:
            yield stage


async def test_events_when_both_engines_are_killed_then_nothing_acknowledged_is_lost_or_doubled(
    own_engines: EphemeralEngines, own_stage: Stage
) -> None:
    stage = own_stage
    await stage.make_things(5)
    consumer, acknowledged, done = noting(), 0, asyncio.Event()

    async def write(seed: int) -> None:
        nonlocal acknowledged
        chance = random.Random(seed)
        while not done.is_set():
            try:
                await stage.change(chance.choice(stage.things))
                acknowledged += 1
            except DATABASE_ERRORS:
                await asyncio.sleep(0.05)

    async def break_engines() -> None:
        for engine in (own_engines.valkey, own_engines.postgres, own_engines.valkey, own_engines.postgres):
            await asyncio.sleep(0.5)
            engine.kill()
            await asyncio.sleep(0.3)
            if engine is own_engines.valkey:
                # It comes back empty: what it keeps must not matter.
                shutil.rmtree(own_engines.valkey.engine.folder / "appendonlydir", ignore_errors=True)
            engine.start()
        await asyncio.sleep(0.5)
        done.set()

    async def all_applied() -> bool:
        return await stage.head() > 0 and await stage.cursor(consumer) == await _count(stage)

    async with running(stage.relay().run, stage.relay().run, stage.runner(consumer).run, stage.runner(noting()).run):
        await asyncio.gather(break_engines(), *(write(seed) for seed in range(4)))
        await eventually(all_applied, 30)
    total = await _count(stage)
    # A commit whose answer was lost may have happened: never fewer than acknowledged, each exactly once.
    assert total >= acknowledged > 20
    assert_dense(await stage.effects(), total)
    ready = await stage.services.http.get("/readyz/quota")
    assert (ready.status_code, ready.json()["parts"]["database"]["ok"]) == (200, True)


async def _count(stage: Stage) -> int:
    async with stage.publisher.begin(SYSTEM) as unit:
        return int(await unit.fetchval("SELECT count(*) FROM outbox"))


async def test_requests_when_the_database_is_away_then_503_and_well_again_after(
    own_engines: EphemeralEngines, own_stage: Stage
) -> None:
    operator = own_stage.services.as_key()
    await operator("GET", "/v1/tenants", expect=200)
    own_engines.postgres.kill()
    away = await operator("POST", "/v1/tenants", {"name": "acme"}, headers={"Idempotency-Key": "one"})
    assert (away.status_code, away.json()["code"]) == (503, "kernel.dependency.away")
    assert away.headers["retry-after"] == "1"
    assert (await own_stage.services.http.get("/readyz/quota")).status_code == 503
    assert (await own_stage.services.http.get("/healthz/quota")).json()["status"] == "down"
    own_engines.postgres.start()
    await operator("POST", "/v1/tenants", {"name": "acme"}, headers={"Idempotency-Key": "one"}, expect=201)
