"""A publisher and a consumer without any service's rules: quota's schema publishes, billing's schema applies."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import httpx
from redis.asyncio import Redis

from millpond_contracts.events import Envelope
from millpond_contracts.events.quota import ApiKeyRevoked
from millpond_contracts.ids import ApiKeyId
from millpond_kernel.clients import ServiceClient
from millpond_kernel.consuming import ConsumerRunner
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.doorbell import Doorbell, connect_redis
from millpond_kernel.outbox import Relay, doorbell_channel, stream_key
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork
from tests.integration.databases import MigratedDatabase
from tests.integration.services import Services, run_services

_TABLES = """
SET ROLE millpond_owner;
CREATE TABLE quota.thing (id uuid PRIMARY KEY, generation bigint NOT NULL);
CREATE TABLE billing.effect (seq bigint NOT NULL, subject text NOT NULL, generation bigint NOT NULL);
CREATE TABLE billing.thing_view (subject text PRIMARY KEY, generation bigint NOT NULL);
CREATE TABLE billing.tenant_shadow (tenant text PRIMARY KEY, name text NOT NULL, generation bigint NOT NULL);
"""


async def run_as_owner(migrated: MigratedDatabase, script: str) -> None:
    """Runs SQL as the owner of the database."""
    connection = await asyncpg.connect(migrated.owner_url)
    try:
        await connection.execute(script)
    finally:
        await connection.close()


async def note_effect(unit: UnitOfWork, envelope: Envelope, event: Any) -> None:
    """An effect that shows when it happens twice: one more row each time."""
    await unit.execute("INSERT INTO effect VALUES ($1, $2, $3)", envelope.seq, envelope.subject, envelope.generation)
    await unit.execute(
        "INSERT INTO thing_view AS v VALUES ($1, $2) ON CONFLICT (subject) DO UPDATE"
        " SET generation = excluded.generation WHERE excluded.generation > v.generation",
        envelope.subject,
        envelope.generation,
    )


@dataclass(slots=True)
class Stage:
    """Both sides with their tables; `feed` reads the publisher's feed over HTTP."""

    migrated: MigratedDatabase
    services: Services
    publisher: Database
    applier: Database
    redis: "Redis"
    feed: ServiceClient
    things: list[ApiKeyId] = field(default_factory=list)

    @property
    def prefix(self) -> str:
        """The prefix of this test's Redis keys."""
        return self.migrated.redis_prefix

    @property
    def stream(self) -> str:
        """The publisher's stream."""
        return stream_key(self.prefix, "quota")

    def relay(self) -> Relay:
        """A relay of the publisher."""
        return Relay(self.publisher, self.redis, self.prefix)

    def runner(self, consumer: Consumer) -> ConsumerRunner:
        """A copy of a consumer."""
        return ConsumerRunner(self.applier, self.redis, self.feed, consumer, prefix=self.prefix, silence_seconds=0.3)

    async def make_things(self, count: int) -> None:
        """Objects whose changes are published."""
        self.things = [ApiKeyId.new() for _ in range(count)]
        async with self.publisher.begin(SYSTEM) as unit:
            await unit.execute("INSERT INTO thing SELECT unnest($1::uuid[]), 0", self.things)

    async def change(self, thing: ApiKeyId) -> None:
        """One change of a thing with its event, in one transaction."""
        async with self.publisher.begin(SYSTEM) as unit:
            generation = await unit.fetchval(
                "UPDATE thing SET generation = generation + 1 WHERE id = $1 RETURNING generation", thing
            )
            unit.emit(ApiKeyRevoked(api_key_id=thing, tenant_id=None, generation=generation))

    async def change_many(self, count: int, seed: int = 0) -> None:
        """So many changes of things at random, one after the other."""
        chance = random.Random(seed)
        for _ in range(count):
            await self.change(chance.choice(self.things))

    async def head(self) -> int:
        """The last sequence given."""
        async with self.publisher.begin(SYSTEM) as unit:
            return int(await unit.fetchval("SELECT last FROM outbox_counter WHERE name = 'outbox'"))

    async def effects(self) -> list[int]:
        """The sequence of every effect that happened, in order."""
        async with self.applier.begin(SYSTEM) as unit:
            return [row["seq"] for row in await unit.fetch("SELECT seq FROM effect ORDER BY seq")]

    async def cursor(self, consumer: Consumer) -> int:
        """Where a consumer is; 0 before its start."""
        async with self.applier.begin(SYSTEM) as unit:
            return int(await unit.fetchval("SELECT seq FROM cursor WHERE consumer = $1", consumer.name) or 0)

    async def view(self) -> dict[str, int]:
        """subject -> generation, as the consumer's view has it."""
        async with self.applier.begin(SYSTEM) as unit:
            return {row["subject"]: row["generation"] for row in await unit.fetch("SELECT * FROM thing_view")}


@asynccontextmanager
async def open_stage(migrated: MigratedDatabase) -> AsyncIterator[Stage]:
    """A stage on a migrated database; quota's application serves the feed, no worker runs."""
    await run_as_owner(migrated, _TABLES)
    async with (
        run_services(migrated, ["quota"], workers=False) as services,
        migrated.opened("quota", pool_size=10) as publisher,
        migrated.opened("billing") as applier,
    ):
        redis = connect_redis(migrated.redis_url)
        feed = _feed(services)
        doorbell = Doorbell(redis, doorbell_channel(migrated.redis_prefix, "quota"))
        doorbell.start()
        publisher.on_commit = doorbell.ring
        try:
            yield Stage(migrated, services, publisher, applier, redis, feed)
        finally:
            await doorbell.stop()
            await feed.close()
            await redis.aclose()


def _feed(services: Services, transport: httpx.AsyncBaseTransport | None = None) -> ServiceClient:
    key = services.settings["quota"].service_key.get_secret_value()
    return ServiceClient("quota", "http://millpond", key, transport=transport or services.transport)


@asynccontextmanager
async def running(*runs: Callable[[asyncio.Event], Awaitable[None]]) -> AsyncIterator[None]:
    """Runs relays and consumers until the end of the block."""
    stop = asyncio.Event()
    tasks = [asyncio.ensure_future(run(stop)) for run in runs]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


def noting(name: str = "effects", **options: Any) -> Consumer:
    """A consumer whose effects can be counted."""
    return Consumer(name, "quota", {ApiKeyRevoked: note_effect}, **options)


def assert_dense(numbers: Sequence[int], count: int) -> None:
    """Every number from 1 to `count` is there exactly once."""
    assert sorted(numbers) == list(range(1, count + 1))
