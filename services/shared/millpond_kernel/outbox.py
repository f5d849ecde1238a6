"""The relay: numbers committed outbox rows densely, publishes them to Redis, and chains audit rows.

Order of work (decision record on events): the counter row is locked first, then rows without a number are taken by id,
so an entity's events keep the order of its commits. Redis refuses an id that is not above the stream's top, which makes
publishing idempotent; what Redis loses, consumers read from the feed.
"""

import hashlib
import json
from typing import Any

import asyncpg
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from millpond_kernel.db import AWAY_ERRORS, SYSTEM, Database
from millpond_kernel.doorbell import LINGER_SECONDS, DoorListener
from millpond_kernel.observability import EVENTS_PUBLISHED, UNPUBLISHED, log
from millpond_kernel.pausing import Stop, sleep_or_stop

BATCH = 500
STREAM_LENGTH = 100_000
REPUBLISH = 10_000
POLL_SECONDS = 1.0

_NUMBER = """
WITH counter AS (SELECT last FROM outbox_counter WHERE name = 'outbox'),
picked AS (SELECT id, row_number() OVER (ORDER BY id) AS n FROM outbox WHERE seq IS NULL ORDER BY id LIMIT $1),
numbered AS (
    UPDATE outbox o SET seq = (SELECT last FROM counter) + picked.n FROM picked WHERE o.id = picked.id RETURNING 1
)
SELECT count(*) FROM numbered
"""

_ROWS_AFTER = """
SELECT seq, event_id, type, subject, tenant_id, generation, happened_at, traceparent, body::text AS body
FROM outbox WHERE seq > $1 ORDER BY seq LIMIT $2
"""


def stream_key(prefix: str, publisher: str) -> str:
    """The Redis stream of a publisher."""
    return f"{prefix}:{publisher}"


def doorbell_channel(prefix: str, service: str) -> str:
    """The channel that a service rings after commits with events."""
    return f"{prefix}:doorbell:{service}"


def envelope_json(row: asyncpg.Record, source: str) -> str:
    """The envelope of an outbox row as JSON; the body is spliced in as PostgreSQL wrote it."""
    head = {
        "seq": row["seq"],
        "id": str(row["event_id"]),
        "type": row["type"],
        "source": source,
        "subject": row["subject"],
        "tenant_id": None if row["tenant_id"] is None else str(row["tenant_id"]),
        "generation": row["generation"],
        "happened_at": row["happened_at"].isoformat(),
        "traceparent": row["traceparent"],
    }
    return f'{json.dumps(head)[:-1]}, "body": {row["body"]}}}'


class Relay:
    """Publishes one service's events. Any number of copies may run; each publishes contiguously from below the top."""

    def __init__(self, database: Database, redis: "Redis", prefix: str) -> None:
        self._database = database
        self._redis = redis
        self._stream = stream_key(prefix, database.service)
        self._listener = DoorListener(redis, doorbell_channel(prefix, database.service))
        self._published: int | None = None
        self.failing_since: str | None = None

    async def run(self, stop: Stop) -> None:
        """Relays until `stop` is set."""
        self._listener.start()
        try:
            while not stop.is_set():
                busy = await self._relay_quietly()
                if busy:
                    continue
                if await self._listener.wait(POLL_SECONDS):
                    await sleep_or_stop(stop, LINGER_SECONDS)
        finally:
            await self._listener.stop()

    async def _relay_quietly(self) -> bool:
        try:
            numbered = await self.number()
            await self.publish()
        except (*AWAY_ERRORS, asyncpg.PostgresError) as error:
            log.warning("relay_database_away", service=self._database.service, error=type(error).__name__)
            return False
        except (RedisError, OSError) as error:
            self._published = None
            log.warning("relay_redis_away", service=self._database.service, error=type(error).__name__)
            return False
        return numbered >= BATCH

    async def number(self) -> int:
        """Gives committed rows the next dense numbers, at most one batch, and chains audit rows; returns how many."""
        async with self._database.begin(SYSTEM) as unit:
            await unit.execute("SELECT last FROM outbox_counter WHERE name = 'outbox' FOR UPDATE")
            count = int(await unit.fetchval(_NUMBER, BATCH))
            if count:
                await unit.execute("UPDATE outbox_counter SET last = last + $1 WHERE name = 'outbox'", count)
            await chain_audit(unit.connection)
        UNPUBLISHED.labels(self._database.service).set(0 if count < BATCH else BATCH)
        return count

    async def publish(self) -> int:
        """Gives Redis every numbered event above the stream's top; returns how many it took."""
        after = await self._top()
        total = 0
        while True:
            async with self._database.begin(SYSTEM) as unit:
                rows = await unit.fetch(_ROWS_AFTER, after, BATCH)
            if not rows:
                return total
            await self._add(rows)
            total += len(rows)
            after = self._published = int(rows[-1]["seq"])
            EVENTS_PUBLISHED.labels(self._database.service).inc(len(rows))

    async def _top(self) -> int:
        """The sequence after which to publish: Redis' own top, or a bounded way back when the stream is empty."""
        try:
            info: dict[str, Any] = await self._redis.xinfo_stream(self._stream)
            top = info["last-generated-id"]
            seq = int((top.decode() if isinstance(top, bytes) else str(top)).split("-")[0])
        except ResponseError:
            seq = 0
        if seq == 0:
            async with self._database.begin(SYSTEM) as unit:
                last = int(await unit.fetchval("SELECT last FROM outbox_counter WHERE name = 'outbox'"))
            return max(0, last - REPUBLISH)
        return seq

    async def _add(self, rows: list[asyncpg.Record]) -> None:
        async with self._redis.pipeline(transaction=False) as pipe:
            for row in rows:
                pipe.xadd(
                    self._stream,
                    {"e": envelope_json(row, self._database.service)},
                    id=f"{row['seq']}-0",
                    maxlen=STREAM_LENGTH,
                    approximate=True,
                )
            for result in await pipe.execute(raise_on_error=False):
                # "equal or smaller than the target stream top item": another relay was first, which is fine.
                if isinstance(result, ResponseError) and "equal or smaller" in str(result):
                    continue
                if isinstance(result, Exception):
                    raise result


def audit_hash(previous: bytes, row: dict[str, Any]) -> bytes:
    """The hash of an audit row: SHA-256 over the previous row's hash and the row as canonical JSON."""
    canonical = json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(previous + canonical.encode()).digest()


def audit_fields(row: asyncpg.Record) -> dict[str, Any]:
    """The fields of an audit row that its hash covers."""
    return {
        "seq": row["seq"],
        "at": row["at"].isoformat(),
        "actor": row["actor"],
        "role": row["role"],
        "tenant_id": None if row["tenant_id"] is None else str(row["tenant_id"]),
        "action": row["action"],
        "object": row["object"],
        "before": row["before"],
        "after": row["after"],
        "request_id": row["request_id"],
    }


async def chain_audit(connection: asyncpg.Connection) -> int:
    """Numbers and chains audit rows that have no hash yet; the caller holds the outbox counter's lock."""
    last = await connection.fetchval("SELECT last FROM outbox_counter WHERE name = 'audit'")
    rows = await connection.fetch(
        "SELECT id, $1 + row_number() OVER (ORDER BY id) AS seq, at, actor, role, tenant_id, action, object, before,"
        " after, request_id FROM audit WHERE seq IS NULL ORDER BY id LIMIT 500",
        last,
    )
    if not rows:
        return 0
    previous = await connection.fetchval("SELECT hash FROM audit WHERE seq = $1", last) or b""
    hashes = []
    for row in rows:
        previous = audit_hash(previous, audit_fields(row))
        hashes.append(previous)
    await connection.execute(
        "UPDATE audit a SET seq = n.seq, hash = n.hash FROM unnest($1::bigint[], $2::bigint[], $3::bytea[])"
        " AS n(id, seq, hash) WHERE a.id = n.id",
        [row["id"] for row in rows],
        [row["seq"] for row in rows],
        hashes,
    )
    await connection.execute("UPDATE outbox_counter SET last = $1 WHERE name = 'audit'", rows[-1]["seq"])
    return len(rows)
