"""The relay: numbers committed outbox rows densely, publishes them to Redis, and chains audit rows.

Order of work (decision record on events): the counter row is locked first, then rows without a number are taken by id,
so an entity's events keep the order of its commits. Redis refuses an id that is not above the stream's top, which makes
publishing idempotent; what Redis loses, consumers read from the feed.
"""

import time
from collections.abc import Awaitable, Sequence
from json.encoder import encode_basestring_ascii as quote
from typing import Any, cast

import asyncpg
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from millpond_kernel.audit import chain_audit
from millpond_kernel.db import DATABASE_ERRORS, SYSTEM, Database
from millpond_kernel.doorbell import LINGER_SECONDS, DoorListener
from millpond_kernel.fail_points import FailPoint, pass_point
from millpond_kernel.observability import ALARMS, EVENTS_PUBLISHED, UNPUBLISHED, log
from millpond_kernel.pausing import Stop, sleep_or_stop

BATCH = 500
STREAM_LENGTH = 100_000
REPUBLISH = 10_000
POLL_SECONDS = 1.0
# While commits follow one another, so long between two passes: a pass, and what every consumer does with its events,
# costs nearly the same for one event as for ten.
GATHER_SECONDS = 0.05
# Of so many looks without a ring one is a whole pass, which also refills an emptied Redis; the others ask one question.
QUIET_LOOKS = 10

_WAITED_OUT: tuple[type[Exception], ...] = (*DATABASE_ERRORS, RedisError)

_COLUMNS = "seq, event_id, type, subject, tenant_id, generation, happened_at, traceparent, body"

_NUMBER = f"""
WITH counter AS (SELECT last FROM outbox_counter WHERE name = 'outbox'),
picked AS (SELECT id, row_number() OVER (ORDER BY id) AS n FROM outbox WHERE seq IS NULL ORDER BY id LIMIT $1),
numbered AS (
    UPDATE outbox o SET seq = (SELECT last FROM counter) + picked.n FROM picked WHERE o.id = picked.id RETURNING o.*
), moved AS (
    UPDATE outbox_counter SET last = last + (SELECT count(*) FROM picked)
    WHERE name = 'outbox' AND EXISTS (SELECT FROM picked)
)
SELECT {_COLUMNS}::text AS body FROM numbered ORDER BY seq
"""

_IS_WAITING = "SELECT EXISTS (SELECT FROM outbox WHERE seq IS NULL) OR EXISTS (SELECT FROM audit WHERE seq IS NULL)"

# The stream; its length, the id that must be its top (empty = any), then id and envelope of each event. 0 = the top is
# another. "Equal or smaller than the target stream top item" means that another relay was first, which is fine.
_ADD = """
if ARGV[2] ~= '' then
    local top = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
    if not top[1] or top[1][1] ~= ARGV[2] then
        return 0
    end
end
for place = 3, #ARGV, 2 do
    local added = redis.pcall('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], ARGV[place], 'e', ARGV[place + 1])
    if added.err and not string.find(added.err, 'equal or smaller', 1, true) then
        return added
    end
end
return 1
"""

_ROWS_AFTER = f"SELECT {_COLUMNS}::text AS body FROM outbox WHERE seq > $1 ORDER BY seq LIMIT $2"


def stream_key(prefix: str, publisher: str) -> str:
    """The Redis stream of a publisher."""
    return f"{prefix}:{publisher}"


def doorbell_channel(prefix: str, service: str) -> str:
    """The channel that a service rings after commits with events."""
    return f"{prefix}:doorbell:{service}"


def envelope_json(row: asyncpg.Record, source: str) -> str:
    """The envelope of an outbox row as JSON; the body is spliced in as PostgreSQL wrote it, at the end (`messages`)."""
    tenant = "null" if row["tenant_id"] is None else f'"{row["tenant_id"]}"'
    trace = "null" if row["traceparent"] is None else quote(row["traceparent"])
    return (
        f'{{"seq":{row["seq"]},"id":"{row["event_id"]}","type":{quote(row["type"])},"source":{quote(source)},'
        f'"subject":{quote(row["subject"])},"tenant_id":{tenant},'
        f'"generation":{row["generation"]},"happened_at":"{row["happened_at"].isoformat()}",'
        f'"traceparent":{trace},"body":{row["body"]}}}'
    )


class Relay:
    """Publishes one service's events. Any number of copies may run; each publishes contiguously from below the top."""

    def __init__(self, database: Database, redis: "Redis", prefix: str) -> None:
        self._database = database
        self._redis = redis
        self._stream = stream_key(prefix, database.service)
        self._listener = DoorListener(redis, doorbell_channel(prefix, database.service))
        self._last = 0
        self._looks = 0

    async def run(self, stop: Stop) -> None:
        """Relays until `stop` is set."""
        self._listener.start(stop)
        try:
            while not stop.is_set():
                began = time.monotonic()
                busy = await self._relay_quietly()
                if busy:
                    continue
                if await self._listener.wait(POLL_SECONDS):
                    self._looks = 0
                    await sleep_or_stop(stop, max(LINGER_SECONDS, began + GATHER_SECONDS - time.monotonic()))
        finally:
            await self._listener.stop()

    async def _relay_quietly(self) -> bool:
        try:
            if self._looks and not await self._is_waiting():
                self._looks = (self._looks + 1) % QUIET_LOOKS
                return False
            self._looks = 0  # until the whole pass has come to its end
            numbered = await self.number()
            if numbered:
                pass_point(FailPoint.BEFORE_PUBLISH)
            await self.publish(numbered)
        except _WAITED_OUT as error:
            log.warning("relay_waits", service=self._database.service, error=f"{type(error).__name__}: {error}"[:200])
            return False
        self._looks = 1
        return len(numbered) >= BATCH

    async def _is_waiting(self) -> bool:
        async with self._database.begin(SYSTEM) as unit:
            return bool(await unit.fetchval(_IS_WAITING))

    async def number(self) -> list[asyncpg.Record]:
        """Gives committed rows the next dense numbers, at most one batch, and chains audit rows; returns the events."""
        async with self._database.begin(SYSTEM) as unit:
            last = int(await unit.fetchval("SELECT last FROM outbox_counter WHERE name = 'outbox' FOR UPDATE"))
            rows = await unit.fetch(_NUMBER, BATCH)
            await chain_audit(unit)
        self._last = last + len(rows)
        UNPUBLISHED.labels(self._database.service).set(0 if len(rows) < BATCH else BATCH)
        return rows

    async def publish(self, numbered: Sequence[asyncpg.Record] = ()) -> int:
        """Gives Redis every numbered event above the stream's top; returns how many it took.

        Where that is `numbered`, which this relay has just numbered, nothing is read again.
        """
        if numbered and await self._add(numbered, f"{numbered[0]['seq'] - 1}-0"):
            return len(numbered)
        after = await self._top()
        total = 0
        while True:
            async with self._database.begin(SYSTEM) as unit:
                rows = await unit.fetch(_ROWS_AFTER, after, BATCH)
            if rows:
                await self._add(rows)
                total += len(rows)
                after = int(rows[-1]["seq"])
            if len(rows) < BATCH:
                return total  # what is numbered from now on rings, or is found by the next pass

    async def _top(self) -> int:
        """The sequence after which to publish: Redis' own top, or a bounded way back when the stream is empty."""
        try:
            info: dict[str, Any] = await self._redis.xinfo_stream(self._stream)
            top = info["last-generated-id"]
            seq = int((top.decode() if isinstance(top, bytes) else str(top)).split("-")[0])
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
            seq = 0
        if seq > self._last and await self._is_beyond_counter(seq):
            # The database was put back to an earlier state: these are copies of events that never happened.
            log.error("stream_ahead_of_database", service=self._database.service, stream=seq, counter=self._last)
            ALARMS.labels(self._database.service, "stream_ahead_of_database").inc()
            await self._redis.delete(self._stream)
            seq = 0
        return seq or max(0, self._last - REPUBLISH)

    async def _is_beyond_counter(self, seq: int) -> bool:
        async with self._database.begin(SYSTEM) as unit:
            self._last = int(await unit.fetchval("SELECT last FROM outbox_counter WHERE name = 'outbox'"))
        return seq > self._last

    async def _add(self, rows: Sequence[asyncpg.Record], top: str = "") -> bool:
        """Whether they are in the stream: not unless its top is `top`, where one is given."""
        words: list[str | int] = [STREAM_LENGTH, top]
        for row in rows:
            words += (f"{row['seq']}-0", envelope_json(row, self._database.service))
        # In one call: an answer for each would cost this process more than everything else of the relay.
        if not await cast("Awaitable[int]", self._redis.eval(_ADD, 1, self._stream, *words)):
            return False
        pass_point(FailPoint.AFTER_PUBLISH)
        EVENTS_PUBLISHED.labels(self._database.service).inc(len(rows))
        return True
