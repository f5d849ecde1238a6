"""Consumers: each follows one publisher in order and moves its cursor in the same transaction as the effect.

The cursor lives in PostgreSQL; Redis only carries copies. A gap, a Redis error, a stream whose top is below the cursor,
or silence makes the consumer read the publisher's feed. An event that keeps failing is parked where a person can replay
it.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from millpond_contracts.events import EVENT_TYPES, Envelope, Event
from millpond_kernel.clients import ServiceAway, ServiceClient, json_of
from millpond_kernel.db import AWAY_ERRORS, DATABASE_ERRORS, SYSTEM, Database
from millpond_kernel.observability import ALARMS, CONSUMER_LAG, EVENTS_APPLIED, EVENTS_PARKED, FEED_READS, log
from millpond_kernel.outbox import stream_key
from millpond_kernel.pausing import Stop, sleep_or_stop
from millpond_kernel.uow import UnitOfWork

READ_COUNT = 500
BLOCK_MILLISECONDS = 1000
MAX_TRIES = 5
# Asks the feed for all that it keeps.
EVERYTHING = 2**62

Handler = Callable[[UnitOfWork, Envelope, Any], Awaitable[None]]
# Has the effect of events that follow one another, in their order, in few statements.
BatchHandler = Callable[[UnitOfWork, Sequence[Any]], Awaitable[None]]
# Applies one page of a snapshot's items: rows of a view, changed only on a higher generation.
SnapshotHandler = Callable[[UnitOfWork, Sequence[dict[str, Any]]], Awaitable[None]]


class CursorMoved(Exception):
    """Another copy of this consumer applied the events first."""


class FeedGone(Exception):
    """The publisher's feed no longer reaches back to the cursor: a snapshot must be loaded."""


class FeedBehind(Exception):
    """The publisher's feed ends below the cursor: its database was put back to an earlier state."""


class _Stopping(Exception):
    """The process has to end while an event is being tried again."""


# Somebody is away, or the event is not at fault: the batch is tried again as it is.
_WAITED_OUT: tuple[type[Exception], ...] = (*DATABASE_ERRORS, ServiceAway)
_NEVER_PARKED: tuple[type[Exception], ...] = (CursorMoved, _Stopping, *AWAY_ERRORS)


@dataclass(slots=True)
class Consumer:
    """What one service does with the events of one publisher.

    `handlers` maps an event class to its effect, `batch_handlers` to one that takes all events in a row that have the
    same. `snapshots` maps a noun of the publisher's snapshot routes to the effect of loading it, for a consumer that
    is new or too far behind. `clear` empties the views that `snapshots` fill, for a rebuild by hand. `after_batch` is
    called, outside any transaction, after each applied batch.
    """

    name: str
    publisher: str
    handlers: Mapping[type[Event], Handler] = field(default_factory=dict)
    batch_handlers: Mapping[type[Event], BatchHandler] = field(default_factory=dict)
    snapshots: Mapping[str, SnapshotHandler] = field(default_factory=dict)
    after_batch: Callable[[], None] | None = None
    clear: Callable[[UnitOfWork], Awaitable[None]] | None = None
    lag: int = field(default=0, init=False)
    applied_seq: int = field(default=0, init=False)
    _by_type: dict[str, tuple[type[Event], Handler]] = field(init=False, repr=False)
    _in_batches: dict[str, tuple[type[Event], BatchHandler]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._by_type = {cls.type: (cls, handler) for cls, handler in self.handlers.items()}
        self._in_batches = {cls.type: (cls, handler) for cls, handler in self.batch_handlers.items()}

    async def dispatch(self, unit: UnitOfWork, envelope: Envelope) -> bool:
        """Has the effect of an event in `unit`; False when this consumer has no handler for its type."""
        return await self.dispatch_all(unit, [envelope]) == 1

    async def dispatch_all(self, unit: UnitOfWork, envelopes: Sequence[Envelope]) -> int:
        """Has the effects of events in `unit`, in their order; how many this consumer has a handler for."""
        known = [one for one in envelopes if one.type in self._by_type or one.type in self._in_batches]
        for batch_handler, together in groupby(known, self._batch_handler_of):
            if batch_handler is not None:
                events = [self._in_batches[one.type][0].model_validate(one.body) for one in together]
                await batch_handler(unit, events)
                continue
            for envelope in together:
                cls, handler = self._by_type[envelope.type]
                await handler(unit, envelope, cls.model_validate(envelope.body))
        return len(known)

    def _batch_handler_of(self, envelope: Envelope) -> BatchHandler | None:
        found = self._in_batches.get(envelope.type)
        return None if found is None else found[1]


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
        self._tries: dict[int, int] = {}
        self._redis_away = False
        self._labels = (database.service, consumer.name, consumer.publisher)

    async def run(self, stop: Stop) -> None:
        """Follows the publisher until `stop` is set; survives an absent Redis, database or publisher."""
        while not stop.is_set():
            try:
                cursor = await self._load_cursor()
                await self._follow(cursor, stop)
            except (CursorMoved, _Stopping):
                continue
            except _WAITED_OUT as error:
                log.warning(
                    "consumer_waits", consumer=self.consumer.name, error=f"{type(error).__name__}: {error}"[:200]
                )
                await sleep_or_stop(stop, 0.5)
            except FeedGone:
                await self._load_snapshots_quietly(stop)
            except FeedBehind as error:
                log.error("consumer_ahead_of_feed", consumer=self.consumer.name, error=str(error))
                ALARMS.labels(self._database.service, "consumer_ahead_of_feed").inc()
                await sleep_or_stop(stop, 5.0)

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
        self.consumer.applied_seq = int(seq)
        return int(seq)

    async def _follow(self, cursor: int, stop: Stop) -> None:
        # The first look is at the feed: it tells the head, and catches up when Redis holds less than we need.
        cursor = await self._catch_up(cursor, stop)
        quiet_since = time.monotonic()
        while not stop.is_set():
            try:
                envelopes = await self._read_stream(cursor)
            except (RedisError, OSError, ValueError, KeyError) as error:
                self._note_redis(error)
                cursor = await self._catch_up(cursor, stop)
                await sleep_or_stop(stop, 0.2)
                continue
            self._note_redis(None)
            if envelopes and envelopes[0].seq == cursor + 1:
                cursor = await self._apply(cursor, _contiguous(envelopes), stop)
                quiet_since = time.monotonic()
            elif envelopes or time.monotonic() - quiet_since > self._silence_seconds:
                cursor = await self._catch_up(cursor, stop)
                quiet_since = time.monotonic()

    def _note_redis(self, error: Exception | None) -> None:
        """Logs when the stream becomes unreadable, once, and when it is back."""
        if error is not None and not self._redis_away:
            log.warning("consumer_redis_away", consumer=self.consumer.name, error=type(error).__name__)
        elif error is None and self._redis_away:
            log.info("consumer_redis_back", consumer=self.consumer.name)
        self._redis_away = error is not None

    async def _read_stream(self, cursor: int) -> list[Envelope]:
        reply = await self._redis.xread({self._stream: f"{cursor}-0"}, count=READ_COUNT, block=BLOCK_MILLISECONDS)
        return [Envelope.model_validate_json(fields[b"e"]) for fields in stream_fields(reply)]

    async def _catch_up(self, cursor: int, stop: Stop) -> int:
        """Applies the feed from the cursor to the publisher's head."""
        while not stop.is_set():
            FEED_READS.labels(*self._labels).inc()
            head, envelopes = await read_feed(self._feed, self.consumer.publisher, cursor)
            if head < cursor:
                raise FeedBehind(f"the cursor is at {cursor}, {self.consumer.publisher} at {head}")
            self._set_lag(head - cursor)
            if not envelopes:
                return cursor
            cursor = await self._apply(cursor, _contiguous(envelopes), stop)
            self._set_lag(head - cursor)
        return cursor

    def _set_lag(self, lag: int) -> None:
        self.consumer.lag = max(0, lag)
        CONSUMER_LAG.labels(*self._labels).set(self.consumer.lag)

    async def _apply(self, cursor: int, envelopes: Sequence[Envelope], stop: Stop) -> int:
        """Applies a contiguous batch in one transaction; on a failure one by one, parking what keeps failing."""
        try:
            await self._apply_together(cursor, envelopes)
        except _NEVER_PARKED:
            raise
        except Exception as error:
            if len(envelopes) == 1:
                await self._note_failure(envelopes[0], error, stop)
            for envelope in envelopes:
                await self._apply_or_park(envelope, stop)
        cursor = envelopes[-1].seq
        self.consumer.applied_seq = cursor
        if self.consumer.after_batch is not None:
            self.consumer.after_batch()
        await self._tell_position(cursor)
        return cursor

    async def _apply_or_park(self, envelope: Envelope, stop: Stop) -> None:
        while self._tries.get(envelope.seq, 0) < MAX_TRIES:
            try:
                await self._apply_together(envelope.seq - 1, [envelope])
                self._tries.pop(envelope.seq, None)
                return
            except _NEVER_PARKED:
                raise
            except Exception as error:
                await self._note_failure(envelope, error, stop)
                last = error
        await self._park(envelope, last)

    async def _note_failure(self, envelope: Envelope, error: Exception, stop: Stop) -> None:
        """Counts and logs a failure and waits a little longer each time.

        Raises:
            _Stopping: the process has to end; the event is tried again by the next one.
        """
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
        if tries < MAX_TRIES and await sleep_or_stop(stop, 0.05 * 2**tries):
            raise _Stopping

    async def _park(self, envelope: Envelope, error: Exception) -> None:
        async with self._database.begin(SYSTEM) as unit:
            await self._move_cursor(unit, envelope.seq - 1, envelope.seq)
            await unit.execute(
                "INSERT INTO dead_letter (consumer, publisher, seq, envelope, error) VALUES ($1, $2, $3, $4, $5)"
                " ON CONFLICT ON CONSTRAINT dead_letter_once DO NOTHING",
                self.consumer.name,
                self.consumer.publisher,
                envelope.seq,
                json.loads(envelope.model_dump_json()),
                f"{type(error).__name__}: {error}"[:2000].replace("\x00", ""),
            )
        del self._tries[envelope.seq]
        EVENTS_PARKED.labels(self._database.service, self.consumer.name).inc()

    async def _apply_together(self, cursor: int, envelopes: Sequence[Envelope]) -> None:
        async with self._database.begin(SYSTEM) as unit:
            await self._move_cursor(unit, cursor, envelopes[-1].seq)
            await self.consumer.dispatch_all(unit, envelopes)
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

    async def _tell_position(self, cursor: int) -> None:
        try:
            await self._redis.hset(self._positions, f"{self._database.service}/{self.consumer.name}", cursor)
        except (RedisError, OSError):
            log.debug("position_not_told", consumer=self.consumer.name)

    async def _load_snapshots_quietly(self, stop: Stop) -> None:
        try:
            await load_snapshots(self._database, self._feed, self.consumer)
        except _WAITED_OUT as error:
            log.warning("snapshot_waits", consumer=self.consumer.name, error=type(error).__name__)
            await sleep_or_stop(stop, 1.0)


async def read_feed(feed: ServiceClient, publisher: str, after: int) -> tuple[int, list[Envelope]]:
    """The publisher's head and the next events after a sequence (negative: of the last so many).

    Raises:
        FeedGone: those events are no longer kept.
        ServiceAway: no answer, or none that can be read.
    """
    response = await feed.request(
        "GET", f"/internal/v1/events/{publisher}", params={"after": after, "limit": READ_COUNT}
    )
    if response.status_code == 410:
        raise FeedGone
    if response.status_code != 200:
        raise ServiceAway(f"{feed.name} answered {response.status_code} to its feed")
    page = json_of(response)
    return int(page["head"]), [Envelope.model_validate(item) for item in page["events"]]


async def read_snapshot(
    feed: ServiceClient, publisher: str, noun: str
) -> AsyncIterator[tuple[int, list[dict[str, Any]]]]:
    """The pages of a snapshot, each with the sequence that the publisher had reached before it was read."""
    after = ""
    while True:
        page = await feed.get_json(f"/internal/v1/snapshot/{publisher}/{noun}", {"after": after, "limit": READ_COUNT})
        yield int(page["as_of_seq"]), page["items"]
        if not page["next"]:
            return
        after = str(page["next"])


async def load_snapshots(database: Database, feed: ServiceClient, consumer: Consumer) -> int:
    """Loads every snapshot of the publisher and moves the cursor up to the oldest `as_of_seq`; returns that number.

    The cursor never moves back: another copy may have loaded a later snapshot and followed from there. A consumer
    without snapshots goes on with the oldest event that is kept, and raises an alarm, since it has missed some.
    """
    as_of: int | None = None
    for noun, apply in consumer.snapshots.items():
        async for seq, items in read_snapshot(feed, consumer.publisher, noun):
            as_of = seq if as_of is None else min(as_of, seq)
            async with database.begin(SYSTEM) as unit:
                await apply(unit, items)
    if as_of is None:
        head, kept = await read_feed(feed, consumer.publisher, -EVERYTHING)
        as_of = kept[0].seq - 1 if kept else head
        log.error("events_missed", consumer=consumer.name, publisher=consumer.publisher, continues_after=as_of)
        ALARMS.labels(database.service, "events_missed").inc()
    async with database.begin(SYSTEM) as unit:
        await unit.execute(
            "INSERT INTO cursor AS c (consumer, publisher, seq) VALUES ($1, $2, $3)"
            " ON CONFLICT (consumer, publisher) DO UPDATE SET seq = excluded.seq, moved_at = clock_timestamp()"
            " WHERE excluded.seq > c.seq",
            consumer.name,
            consumer.publisher,
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


async def wait_until_applied(consumer: Consumer, seq: int, timeout_seconds: float = 10.0) -> bool:
    """Whether the consumer has applied `seq` within the time; for tests and the demo."""
    deadline = time.monotonic() + timeout_seconds
    while consumer.applied_seq < seq:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True
