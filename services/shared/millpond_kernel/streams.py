"""Consumers: each follows one publisher in order and moves its cursor in the same transaction as the effect.

The cursor lives in PostgreSQL; Redis only carries copies. A gap, a Redis error, a stream whose top is below the cursor,
or silence makes the consumer read the publisher's feed. An event that keeps failing is parked where a person can replay
it.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from redis.asyncio import Redis
from redis.exceptions import RedisError

from millpond_contracts.events import EVENT_TYPES, Envelope, Event
from millpond_kernel.clients import ServiceAway, ServiceClient
from millpond_kernel.db import AWAY_ERRORS, SYSTEM, Database
from millpond_kernel.observability import CONSUMER_LAG, EVENTS_APPLIED, EVENTS_PARKED, FEED_READS, log
from millpond_kernel.outbox import stream_key
from millpond_kernel.pausing import Stop, sleep_or_stop
from millpond_kernel.uow import UnitOfWork

READ_COUNT = 500
BLOCK_MILLISECONDS = 1000
MAX_TRIES = 5

Handler = Callable[[UnitOfWork, Envelope, Any], Awaitable[None]]
# Applies one page of a snapshot's items: rows of a view, changed only on a higher generation.
SnapshotHandler = Callable[[UnitOfWork, Sequence[dict[str, Any]]], Awaitable[None]]


class CursorMoved(Exception):
    """Another copy of this consumer applied the events first."""


class FeedGone(Exception):
    """The publisher's feed no longer reaches back to the cursor: a snapshot must be loaded."""


# Not the event's fault: the batch is tried again as it is.
_NEVER_PARKED: tuple[type[Exception], ...] = (CursorMoved, *AWAY_ERRORS)


@dataclass(slots=True)
class Consumer:
    """What one service does with the events of one publisher.

    `handlers` maps an event class to its effect. `snapshots` maps a noun of the publisher's snapshot routes to the
    effect of loading it, for a consumer that is new or too far behind. `after_batch` is called, outside any
    transaction, after each applied batch.
    """

    name: str
    publisher: str
    handlers: Mapping[type[Event], Handler]
    snapshots: Mapping[str, SnapshotHandler] = field(default_factory=dict)
    after_batch: Callable[[], None] | None = None
    lag: int = field(default=0, init=False)
    applied_seq: int = field(default=0, init=False)


class ConsumerRunner:
    """Runs one consumer until stopped. Any number of copies may run."""

    def __init__(
        self,
        database: Database,
        redis: "Redis",
        feed: ServiceClient,
        consumer: Consumer,
        *,
        prefix: str,
        silence_seconds: float = 5.0,
    ) -> None:
        self._database = database
        self._redis = redis
        self._feed = feed
        self.consumer = consumer
        self._stream = stream_key(prefix, consumer.publisher)
        self._positions = f"{prefix}:positions"
        self._silence_seconds = silence_seconds
        self._by_type = {cls.type: (cls, handler) for cls, handler in consumer.handlers.items()}
        self._tries: dict[int, int] = {}
        self._labels = (database.service, consumer.name, consumer.publisher)

    async def run(self, stop: Stop) -> None:
        """Follows the publisher until `stop` is set; survives an absent Redis, database or publisher."""
        while not stop.is_set():
            try:
                cursor = await self._load_cursor()
                await self._follow(cursor, stop)
            except CursorMoved:
                continue
            except (*AWAY_ERRORS, asyncpg.PostgresError, ServiceAway) as error:
                log.warning(
                    "consumer_waits", consumer=self.consumer.name, error=f"{type(error).__name__}: {error}"[:200]
                )
                await sleep_or_stop(stop, 0.5)
            except FeedGone:
                await self._load_snapshots_quietly(stop)

    async def _load_cursor(self) -> int:
        async with self._database.begin(SYSTEM) as unit:
            await unit.execute(
                "INSERT INTO cursor (consumer, publisher, seq) VALUES ($1, $2, 0) ON CONFLICT DO NOTHING",
                self.consumer.name,
                self.consumer.publisher,
            )
            seq = await unit.fetchval(
                "SELECT seq FROM cursor WHERE consumer = $1 AND publisher = $2",
                self.consumer.name,
                self.consumer.publisher,
            )
        return int(seq)

    async def _follow(self, cursor: int, stop: Stop) -> None:
        # The first look is at the feed: it tells the head, and catches up when Redis holds less than we need.
        cursor = await self._catch_up(cursor, stop)
        quiet_since = time.monotonic()
        while not stop.is_set():
            try:
                envelopes = await self._read_stream(cursor)
            except (RedisError, OSError) as error:
                log.warning("consumer_redis_away", consumer=self.consumer.name, error=type(error).__name__)
                cursor = await self._catch_up(cursor, stop)
                await sleep_or_stop(stop, 0.2)
                continue
            if envelopes and envelopes[0].seq == cursor + 1:
                cursor = await self._apply(cursor, _contiguous(envelopes), stop)
                quiet_since = time.monotonic()
            elif envelopes or time.monotonic() - quiet_since > self._silence_seconds:
                cursor = await self._catch_up(cursor, stop)
                quiet_since = time.monotonic()

    async def _read_stream(self, cursor: int) -> list[Envelope]:
        reply = await self._redis.xread({self._stream: f"{cursor}-0"}, count=READ_COUNT, block=BLOCK_MILLISECONDS)
        return [Envelope.model_validate_json(fields[b"e"]) for fields in stream_fields(reply)]

    async def _catch_up(self, cursor: int, stop: Stop) -> int:
        """Applies the feed from the cursor to the publisher's head."""
        while not stop.is_set():
            FEED_READS.labels(*self._labels).inc()
            response = await self._feed.request(
                "GET",
                f"/internal/v1/events/{self.consumer.publisher}",
                params={"after": cursor, "limit": READ_COUNT},
            )
            if response.status_code == 410:
                raise FeedGone
            if response.status_code != 200:
                raise ServiceAway(f"{self._feed.name} answered {response.status_code} to its feed")
            page = response.json()
            envelopes = [Envelope.model_validate(item) for item in page["events"]]
            self._set_lag(int(page["head"]) - cursor)
            if not envelopes:
                return cursor
            cursor = await self._apply(cursor, _contiguous(envelopes), stop)
            self._set_lag(int(page["head"]) - cursor)
        return cursor

    def _set_lag(self, lag: int) -> None:
        self.consumer.lag = max(0, lag)
        CONSUMER_LAG.labels(*self._labels).set(self.consumer.lag)

    async def _apply(self, cursor: int, envelopes: Sequence[Envelope], stop: Stop) -> int:
        """Applies a contiguous batch in one transaction; on a failure one by one, parking what keeps failing."""
        try:
            await self._apply_together(cursor, envelopes)
            cursor = envelopes[-1].seq
        except _NEVER_PARKED:
            raise
        except Exception as error:
            if len(envelopes) > 1:
                for envelope in envelopes:
                    cursor = await self._apply(cursor, [envelope], stop)
                return cursor
            cursor = await self._retry_or_park(cursor, envelopes[0], error, stop)
        self.consumer.applied_seq = cursor
        if self.consumer.after_batch is not None:
            self.consumer.after_batch()
        await self._tell_position(cursor)
        return cursor

    async def _apply_together(self, cursor: int, envelopes: Sequence[Envelope]) -> None:
        async with self._database.begin(SYSTEM) as unit:
            await self._move_cursor(unit, cursor, envelopes[-1].seq)
            for envelope in envelopes:
                await self._dispatch(unit, envelope)
        EVENTS_APPLIED.labels(*self._labels).inc(len(envelopes))

    async def _move_cursor(self, unit: UnitOfWork, old: int, new: int) -> None:
        moved = await unit.execute(
            "UPDATE cursor SET seq = $4, moved_at = clock_timestamp()"
            " WHERE consumer = $1 AND publisher = $2 AND seq = $3",
            self.consumer.name,
            self.consumer.publisher,
            old,
            new,
        )
        if moved != 1:
            raise CursorMoved

    async def _dispatch(self, unit: UnitOfWork, envelope: Envelope) -> None:
        found = self._by_type.get(envelope.type)
        if found is not None:
            cls, handler = found
            await handler(unit, envelope, cls.model_validate(envelope.body))

    async def _retry_or_park(self, cursor: int, envelope: Envelope, error: Exception, stop: Stop) -> int:
        tries = self._tries[envelope.seq] = self._tries.get(envelope.seq, 0) + 1
        log.error(
            "event_failed",
            service=self._database.service,
            consumer=self.consumer.name,
            type=envelope.type,
            seq=envelope.seq,
            tries=tries,
            exc_info=error,
        )
        if tries < MAX_TRIES:
            await sleep_or_stop(stop, 0.05 * 2**tries)
            return await self._apply(cursor, [envelope], stop)
        async with self._database.begin(SYSTEM) as unit:
            await self._move_cursor(unit, cursor, envelope.seq)
            await unit.execute(
                "INSERT INTO dead_letter (consumer, publisher, seq, envelope, error) VALUES ($1, $2, $3, $4, $5)"
                " ON CONFLICT ON CONSTRAINT dead_letter_once DO NOTHING",
                self.consumer.name,
                self.consumer.publisher,
                envelope.seq,
                json.loads(envelope.model_dump_json()),
                f"{type(error).__name__}: {error}"[:2000],
            )
        del self._tries[envelope.seq]
        EVENTS_PARKED.labels(self._database.service, self.consumer.name).inc()
        return envelope.seq

    async def _tell_position(self, cursor: int) -> None:
        try:
            await self._redis.hset(self._positions, f"{self._database.service}/{self.consumer.name}", cursor)
        except (RedisError, OSError):
            log.debug("position_not_told", consumer=self.consumer.name)

    async def _load_snapshots_quietly(self, stop: Stop) -> None:
        try:
            await self.load_snapshots()
        except (*AWAY_ERRORS, asyncpg.PostgresError, ServiceAway) as error:
            log.warning("snapshot_waits", consumer=self.consumer.name, error=type(error).__name__)
            await sleep_or_stop(stop, 1.0)

    async def load_snapshots(self) -> int:
        """Loads every snapshot of the publisher and sets the cursor to the oldest `as_of_seq`; returns that number."""
        as_of: int | None = None
        for noun, apply in self.consumer.snapshots.items():
            after = ""
            while True:
                page = await self._feed.get_json(
                    f"/internal/v1/snapshot/{self.consumer.publisher}/{noun}", {"after": after, "limit": READ_COUNT}
                )
                as_of = int(page["as_of_seq"]) if as_of is None else min(as_of, int(page["as_of_seq"]))
                async with self._database.begin(SYSTEM) as unit:
                    await apply(unit, page["items"])
                if not page["next"]:
                    break
                after = str(page["next"])
        if as_of is None:
            raise ServiceAway(f"{self.consumer.name}: no snapshot to load from {self.consumer.publisher}")
        async with self._database.begin(SYSTEM) as unit:
            await unit.execute(
                "INSERT INTO cursor (consumer, publisher, seq) VALUES ($1, $2, $3)"
                " ON CONFLICT (consumer, publisher) DO UPDATE SET seq = excluded.seq, moved_at = clock_timestamp()",
                self.consumer.name,
                self.consumer.publisher,
                as_of,
            )
        return as_of


def _contiguous(envelopes: Sequence[Envelope]) -> list[Envelope]:
    """The leading envelopes whose sequences follow one another."""
    taken = [envelopes[0]]
    for envelope in envelopes[1:]:
        if envelope.seq != taken[-1].seq + 1:
            break
        taken.append(envelope)
    return taken


def stream_fields(reply: Any) -> list[dict[bytes, bytes]]:
    """The field maps of an XREAD reply in the list shape (RESP2) or the map shape (RESP3)."""
    if not reply:
        return []
    entries = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    if entries and isinstance(entries[0], list) and entries[0] and isinstance(entries[0][0], tuple | list):
        entries = [entry for group in entries for entry in group]
    return [fields for _, fields in entries]


def parse_event(envelope: Envelope) -> Event | None:
    """The typed event of an envelope, or None for a type this version does not know."""
    cls = EVENT_TYPES.get(envelope.type)
    return None if cls is None else cls.model_validate(envelope.body)


async def replay_dead_letter(database: Database, consumer: Consumer, letter_id: int) -> bool:
    """Applies a parked event once more, in one transaction with its mark; False when it is already replayed."""
    handlers = {cls.type: (cls, handler) for cls, handler in consumer.handlers.items()}
    async with database.begin(SYSTEM) as unit:
        row = await unit.fetchrow(
            "SELECT envelope FROM dead_letter WHERE id = $1 AND consumer = $2 AND replayed_at IS NULL FOR UPDATE",
            letter_id,
            consumer.name,
        )
        if row is None:
            return False
        envelope = Envelope.model_validate(row["envelope"])
        cls, handler = handlers[envelope.type]
        await handler(unit, envelope, cls.model_validate(envelope.body))
        await unit.execute("UPDATE dead_letter SET replayed_at = clock_timestamp() WHERE id = $1", letter_id)
    return True


async def wait_until_applied(consumer: Consumer, seq: int, timeout_seconds: float = 10.0) -> bool:
    """Whether the consumer has applied `seq` within the time; for tests and the demo."""
    deadline = time.monotonic() + timeout_seconds
    while consumer.applied_seq < seq:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True
