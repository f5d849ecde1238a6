"""A process's own lossy view of a publisher's stream: it feeds the deny set and wakes open watches.

Unlike a consumer it has no cursor and no effect in the database. A follower starts a little in the past and reads the
feed when Redis is silent or away, so that a revocation is known within the promised seconds; a bell tells that
something came and not what, since watches read for themselves, and look once a second anyway.
"""

import asyncio
from collections.abc import Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError

from millpond_kernel.clients import ServiceAway, ServiceClient
from millpond_kernel.messages import Message
from millpond_kernel.observability import log
from millpond_kernel.outbox import stream_key
from millpond_kernel.pausing import end_task
from millpond_kernel.streams import READ_COUNT, FeedGone, read_feed, stream_fields

LOOK_BACK = 5000
# Silence of the stream after which the feed is asked: a revocation is known within five seconds either way.
QUIET_MILLISECONDS = 4000


class Follower:
    """Calls `on_event` for each event of `publisher`, in order, at least for those from now on."""

    def __init__(
        self, redis: "Redis", feed: ServiceClient, publisher: str, prefix: str, on_event: Callable[[Message], None]
    ) -> None:
        self._redis = redis
        self._feed = feed
        self._publisher = publisher
        self._stream = stream_key(prefix, publisher)
        self._on_event = on_event
        self._seq = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts following."""
        self._task = asyncio.create_task(self._follow_forever(), name=f"follower {self._publisher}")

    async def stop(self) -> None:
        """Stops following."""
        await end_task(self._task)

    async def _follow_forever(self) -> None:
        while True:
            try:
                await self._read_feed()
                await self._read_stream_until_quiet()
            except ServiceAway:
                await asyncio.sleep(1)
            except Exception as error:
                log.warning("follower_waits", publisher=self._publisher, error=f"{type(error).__name__}: {error}"[:200])
                await asyncio.sleep(1)

    async def _read_feed(self) -> None:
        while True:
            try:
                head, messages = await read_feed(self._feed, self._publisher, self._seq or -LOOK_BACK)
            except FeedGone:
                # Too far behind for the feed: begin again, a little in the past of what there is.
                self._seq = 0
                continue
            for message in messages:
                self._take(message)
            if not messages:
                # The head is below us when the publisher's database was put back to an earlier state.
                self._seq = head
            if len(messages) < READ_COUNT:
                return

    async def _read_stream_until_quiet(self) -> None:
        while True:
            try:
                reply = await self._redis.xread(
                    {self._stream: f"{self._seq}-0"}, count=READ_COUNT, block=QUIET_MILLISECONDS
                )
            except (RedisError, OSError):
                await asyncio.sleep(0.5)
                return
            found = stream_fields(reply)
            if not found:
                return
            for fields in found:
                message = Message.read(fields[b"e"])
                if message.seq != self._seq + 1:
                    return
                self._take(message)

    def _take(self, message: Message) -> None:
        self._seq = message.seq
        self._on_event(message)


class StreamBell:
    """Calls `ring` after a publisher's stream grew: once, however many events came meanwhile."""

    def __init__(self, redis: "Redis", publisher: str, prefix: str, ring: Callable[[], None]) -> None:
        self._redis = redis
        self._publisher = publisher
        self._stream = stream_key(prefix, publisher)
        self._ring = ring
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts listening."""
        self._task = asyncio.create_task(self._listen_forever(), name=f"stream bell {self._publisher}")

    async def stop(self) -> None:
        """Stops listening."""
        await end_task(self._task)

    async def _listen_forever(self) -> None:
        while True:
            try:
                # The end first: what comes after it ends the wait, so that nothing is overheard.
                last = await self._redis.xrevrange(self._stream, count=1)
                self._ring()
                after = (last[0][0] if last else None) or b"0-0"
                await self._redis.xread({self._stream: after}, count=1, block=QUIET_MILLISECONDS)
            except (RedisError, OSError):
                await asyncio.sleep(0.5)
