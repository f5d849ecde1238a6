"""Runs consumers: in order, with the cursor moved in the same transaction as the effect.

The cursor lives in PostgreSQL; Redis only carries copies. A gap, a Redis error, a stream whose top is below the cursor,
or silence makes the consumer read the publisher's feed. An event that keeps failing is parked where a person can replay
it.
"""

import asyncio
import json
import time
from collections.abc import Sequence

from redis.asyncio import Redis
from redis.exceptions import RedisError

from millpond_kernel.clients import ServiceAway, ServiceClient
from millpond_kernel.db import AWAY_ERRORS, DATABASE_ERRORS, SYSTEM, Database
from millpond_kernel.fail_points import FailPoint, pass_point
from millpond_kernel.messages import Message
from millpond_kernel.observability import ALARMS, CONSUMER_LAG, EVENTS_APPLIED, EVENTS_PARKED, FEED_READS, log
from millpond_kernel.outbox import stream_key
from millpond_kernel.pausing import Stop, end_task, sleep_or_stop
from millpond_kernel.streams import (
    READ_COUNT,
    Consumer,
    FeedGone,
    load_snapshots,
    read_cursor,
    read_feed,
    stream_fields,
)
from millpond_kernel.uow import UnitOfWork

# How long Redis is asked to wait for the next event: the silence that is left, within these bounds.
BLOCK_SECONDS = (0.05, 4.0)
# A cursor that only passed events of no effect is written so much later, for all of them at once.
PASSED_SECONDS = 0.25
# A publisher that stays silent is asked at least once in so many of the silences that are set.
MAX_SILENCES = 6
MAX_TRIES = 5


class CursorMoved(Exception):
    """Another copy of this consumer applied the events first."""


class FeedBehind(Exception):
    """The publisher's feed ends below the cursor: its database was put back to an earlier state."""


class _Stopping(Exception):
    """The process has to end while an event is being tried again."""


# Somebody is away, or the event is not at fault: the batch is tried again as it is.
_WAITED_OUT: tuple[type[Exception], ...] = (*DATABASE_ERRORS, ServiceAway)
_NEVER_PARKED: tuple[type[Exception], ...] = (CursorMoved, _Stopping, *AWAY_ERRORS)


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
        self._silence_seconds = silence_seconds
        self._tries: dict[int, int] = {}
        self._written = 0  # where the cursor stands in the database
        self._write_by = 0.0  # when it has to catch up, on the process's clock, once events without effect were passed
        self._redis_away = False
        self._head = 0  # as the feed told it last
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
                self._note_trouble(error)
                await sleep_or_stop(stop, 0.5)
            except FeedGone:
                await self._load_snapshots_quietly(stop)
            except FeedBehind as error:
                log.error("consumer_ahead_of_feed", consumer=self.consumer.name, error=str(error))
                ALARMS.labels(self._database.service, "consumer_ahead_of_feed").inc()
                self._note_trouble(error)
                await sleep_or_stop(stop, 5.0)

    def _note_trouble(self, error: Exception) -> None:
        consumer = self.consumer
        if consumer.trouble is None:
            consumer.trouble_monotonic = time.monotonic()
        consumer.is_ahead = isinstance(error, FeedBehind)
        # The kind alone: what an error says may name a tenant's things.
        consumer.trouble = (
            f"is ahead of {consumer.publisher}, whose database was put back to an earlier state"
            if consumer.is_ahead
            else f"waits for {consumer.publisher}: {type(error).__name__}"
        )

    async def _load_cursor(self) -> int:
        async with self._database.begin(SYSTEM) as unit:
            await unit.execute(
                "INSERT INTO cursor (consumer, publisher, seq) VALUES ($1, $2, 0) ON CONFLICT DO NOTHING",
                self.consumer.name,
                self.consumer.publisher,
            )
            self._written = await read_cursor(unit, self.consumer.name, self.consumer.publisher)
        self.consumer.applied_seq = self._written
        return self._written

    async def _follow(self, cursor: int, stop: Stop) -> None:
        # The first look is at the feed: it tells the head, and catches up when Redis holds less than we need.
        cursor = await self._catch_up(cursor, stop)
        quiet_since, patience = time.monotonic(), self._silence_seconds
        while not stop.is_set():
            await self._write_passed(cursor)
            try:
                until = quiet_since + patience if cursor == self._written else self._write_by
                messages = await self._read_stream(cursor, until - time.monotonic(), stop)
            except (RedisError, OSError, ValueError, KeyError) as error:
                self._note_redis(error)
                cursor = await self._catch_up(cursor, stop)
                await sleep_or_stop(stop, 0.2)
                continue
            self._note_redis(None)
            if messages and messages[0].seq == cursor + 1:
                cursor = await self._apply(cursor, _contiguous(messages), stop)
                self._set_lag(self._head - cursor)
                quiet_since, patience = time.monotonic(), self._silence_seconds
            elif messages or time.monotonic() - quiet_since > patience:
                reached = await self._catch_up(cursor, stop)
                # While the feed has nothing either, it is asked less and less often.
                longest = MAX_SILENCES * self._silence_seconds
                patience = self._silence_seconds if reached > cursor else min(2 * patience, longest)
                cursor, quiet_since = reached, time.monotonic()

    def _note_redis(self, error: Exception | None) -> None:
        """Logs when the stream becomes unreadable, once, and when it is back."""
        if error is not None and not self._redis_away:
            log.warning("consumer_redis_away", consumer=self.consumer.name, error=type(error).__name__)
        elif error is None and self._redis_away:
            log.info("consumer_redis_back", consumer=self.consumer.name)
        self._redis_away = error is not None

    async def _read_stream(self, cursor: int, seconds: float, stop: Stop) -> list[Message]:
        """What is behind the cursor, waited for; a stop ends the wait at once."""
        shortest, longest = BLOCK_SECONDS
        block = int(1000 * min(max(seconds, shortest), longest)) + 1
        reading = asyncio.ensure_future(self._redis.xread({self._stream: f"{cursor}-0"}, count=READ_COUNT, block=block))
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                raise _Stopping
            return [Message.read(fields[b"e"]) for fields in stream_fields(reading.result())]
        finally:
            await end_task(reading)
            await end_task(stopping)

    async def _catch_up(self, cursor: int, stop: Stop) -> int:
        """Applies the feed from the cursor to the publisher's head, or to where the stream goes on.

        While much is published the head runs away, and a page of the feed costs its publisher more than the stream.
        """
        while not stop.is_set():
            FEED_READS.labels(*self._labels).inc()
            head, messages = await read_feed(self._feed, self.consumer.publisher, cursor)
            if head < cursor:
                raise FeedBehind(f"the cursor is at {cursor}, {self.consumer.publisher} at {head}")
            self.consumer.trouble, self._head = None, head
            self._set_lag(head - cursor)
            if not messages:
                return cursor
            cursor = await self._apply(cursor, _contiguous(messages), stop)
            self._set_lag(head - cursor)
            # At the head what comes next is waited for in the stream: the feed tells it sooner, page by small page.
            if cursor >= head or await self._is_in_stream(cursor + 1):
                return cursor
        return cursor

    async def _is_in_stream(self, seq: int) -> bool:
        try:
            return bool(await self._redis.xrange(self._stream, f"{seq}-0", f"{seq}-0"))
        except (RedisError, OSError):
            return False

    def _set_lag(self, lag: int) -> None:
        self.consumer.lag = max(0, lag)
        CONSUMER_LAG.labels(*self._labels).set(self.consumer.lag)

    async def _apply(self, cursor: int, messages: Sequence[Message], stop: Stop) -> int:
        """Applies a contiguous batch in one transaction; on a failure one by one, parking what keeps failing."""
        last = messages[-1].seq
        if not any(map(self.consumer.takes, messages)):
            if cursor == self._written:
                self._write_by = time.monotonic() + PASSED_SECONDS
            self.consumer.applied_seq = last
            return last
        try:
            await self._apply_together(messages)
        except _NEVER_PARKED:
            raise
        except Exception as error:
            if len(messages) == 1:
                await self._note_failure(messages[0], error, stop)
            for message in messages:
                await self._apply_or_park(message, stop)
        self.consumer.applied_seq = last
        if self.consumer.after_batch is not None:
            self.consumer.after_batch()
        return last

    async def _write_passed(self, cursor: int) -> None:
        """Writes a cursor that has passed events of no effect when it is time; a crash makes it pass them again."""
        if cursor == self._written or time.monotonic() < self._write_by:
            return
        async with self._database.begin(SYSTEM) as unit:
            await self._move_cursor(unit, cursor)
        self._written = cursor

    async def _apply_or_park(self, message: Message, stop: Stop) -> None:
        while True:
            try:
                await self._apply_together([message])
                self._tries.pop(message.seq, None)
                return
            except _NEVER_PARKED:
                raise
            except Exception as error:
                await self._note_failure(message, error, stop)
                if self._tries[message.seq] >= MAX_TRIES:
                    await self._park(message, error)
                    return

    async def _note_failure(self, message: Message, error: Exception, stop: Stop) -> None:
        """Counts and logs a failure and waits a little longer each time.

        Raises:
            _Stopping: the process has to end; the event is tried again by the next one.
        """
        tries = self._tries[message.seq] = self._tries.get(message.seq, 0) + 1
        log.error(
            "event_failed",
            service=self._database.service,
            consumer=self.consumer.name,
            type=message.type,
            seq=message.seq,
            tries=tries,
            exc_info=error,
        )
        if tries < MAX_TRIES and await sleep_or_stop(stop, 0.05 * 2**tries):
            raise _Stopping

    async def _park(self, message: Message, error: Exception) -> None:
        async with self._database.begin(SYSTEM) as unit:
            await self._move_cursor(unit, message.seq)
            await unit.execute(
                "INSERT INTO dead_letter (consumer, publisher, seq, envelope, error) VALUES ($1, $2, $3, $4, $5)"
                " ON CONFLICT ON CONSTRAINT dead_letter_once DO NOTHING",
                self.consumer.name,
                self.consumer.publisher,
                message.seq,
                json.loads(message.text),
                f"{type(error).__name__}: {error}"[:2000].replace("\x00", ""),
            )
        self._written = message.seq
        del self._tries[message.seq]
        EVENTS_PARKED.labels(self._database.service, self.consumer.name).inc()

    async def _apply_together(self, messages: Sequence[Message]) -> None:
        async with self._database.begin(SYSTEM) as unit:
            await self._move_cursor(unit, messages[-1].seq)
            await self.consumer.dispatch_all(unit, messages)
            pass_point(FailPoint.INSIDE_APPLY)
        self._written = messages[-1].seq
        pass_point(FailPoint.AFTER_APPLY)
        EVENTS_APPLIED.labels(*self._labels).inc(len(messages))

    async def _move_cursor(self, unit: UnitOfWork, new: int) -> None:
        """Moves the cursor from where this copy knows it.

        Raises:
            CursorMoved: another copy did.
        """
        moved = await unit.execute(
            "UPDATE cursor SET seq = $4, moved_at = clock_timestamp()"
            " WHERE consumer = $1 AND publisher = $2 AND seq = $3",
            self.consumer.name,
            self.consumer.publisher,
            self._written,
            new,
        )
        if moved != 1:
            raise CursorMoved

    async def _load_snapshots_quietly(self, stop: Stop) -> None:
        try:
            await load_snapshots(self._database, self._feed, self.consumer)
        except _WAITED_OUT as error:
            self._note_trouble(error)
            log.warning("snapshot_waits", consumer=self.consumer.name, error=type(error).__name__)
            await sleep_or_stop(stop, 1.0)


def _contiguous(messages: Sequence[Message]) -> list[Message]:
    """The leading messages whose sequences follow one another."""
    taken = [messages[0]]
    for message in messages[1:]:
        if message.seq != taken[-1].seq + 1:
            break
        taken.append(message)
    return taken
