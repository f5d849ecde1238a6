"""Both engines are killed while events flow: nothing acknowledged is lost, nothing doubles, everybody recovers."""

import asyncio
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from millpond.stack.ephemeral import EphemeralEngines
from millpond_contracts.events import PUBLISHERS
from millpond_kernel.auth import Authenticator, DenySet
from millpond_kernel.db import DATABASE_ERRORS, SYSTEM
from millpond_kernel.health import Health
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


async def test_health_when_parts_fail_then_which_since_when_what_follows_and_what_to_do(
    own_engines: EphemeralEngines, own_stage: Stage
) -> None:
    database = own_stage.publisher
    authenticator = Authenticator(database, {}, DenySet())
    await authenticator.read_keys()
    health = Health("quota", database, own_stage.redis, authenticator, "changes are learnt later")

    async def look() -> tuple[str, dict[str, Any]]:
        found = await health.tell()
        ill: dict[str, Any] = {name: part for name, part in found["parts"].items() if not part["ok"]}
        for part in ill.values():
            assert all(part[name] for name in ("reason", "since", "effect", "remedy"))
            assert PASSWORD not in str(part)
        return found["status"], ill

    status, ill = await look()
    assert (status, list(ill), ill["worker"]["effect"]) == ("degraded", ["worker"], "changes are learnt later")
    assert "no worker of this service runs" in ill["worker"]["reason"]
    async with database.begin(SYSTEM) as unit:
        await unit.execute(
            "INSERT INTO worker_state VALUES (gen_random_uuid(), now(), '2026-01-02 03:04:05Z', true, '{}', 4711)"
        )
    silent = (await look())[1]["worker"]
    assert (silent["since"], "process 4711" in silent["reason"]) == ("2026-01-02T03:04:05+00:00", True)

    own_engines.valkey.kill()
    status, ill = await look()
    assert (status, "statements and exports wait" in ill["redis"]["effect"]) == ("degraded", True)
    own_engines.valkey.start()
    assert "redis" not in (await look())[1]

    async def fill_the_disk() -> None:
        async with database.begin(SYSTEM) as unit:
            await unit.execute("DO $$ BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = '53100'; END $$")

    with pytest.raises(asyncpg.DiskFullError):
        await fill_the_disk()
    assert "no space" in (await look())[1]["space"]["reason"]

    own_engines.postgres.kill()
    status, ill = await look()
    assert (status, "503" in ill["database"]["effect"]) == ("down", True)
    since = ill["database"]["since"]
    assert (await look())[1]["database"]["since"] == since
    own_engines.postgres.start()
    await eventually(partial(_answers, look))

    stopped = [own_engines.postgres.pid, *_children(own_engines.postgres.pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        status, ill = await look()
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert (status, ill["database"]["reason"]) == ("down", "no answer within 2 s")
    await eventually(partial(_answers, look))
    await health.stop()


async def _answers(look: Callable[[], Awaitable[tuple[str, dict[str, Any]]]]) -> bool:
    return "database" not in (await look())[1]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
