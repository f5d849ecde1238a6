"""A process's own lossy view of a publisher's stream: it wakes open watches and feeds the deny set.

Unlike a consumer it has no cursor and no effect in the database; it starts a little in the past and reads the feed when
Redis is silent or away, so that a revocation is known within the promised seconds.
"""

import asyncio
import contextlib
from collections.abc import Callable

from redis.asyncio import Redis
from redis.exceptions import RedisError

from millpond_contracts.events import Envelope
from millpond_kernel.clients import ServiceAway, ServiceClient
from millpond_kernel.observability import log
from millpond_kernel.outbox import stream_key
from millpond_kernel.streams import stream_fields

LOOK_BACK = 5000


class Follower:
    """Calls `on_event` for each event of `publisher`, in order, at least for those from now on."""

    def __init__(
        self, redis: "Redis", feed: ServiceClient, publisher: str, prefix: str, on_event: Callable[[Envelope], None]
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
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

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
            page = await self._feed.get_json(
                f"/internal/v1/events/{self._publisher}", {"after": self._seq or -LOOK_BACK, "limit": 500}
            )
            for item in page["events"]:
                self._take(Envelope.model_validate(item))
            self._seq = max(self._seq, int(page["head"]) if not page["events"] else self._seq)
            if len(page["events"]) < 500:
                return

    async def _read_stream_until_quiet(self) -> None:
        quiet_seconds = 0
        while quiet_seconds < 4:
            try:
                reply = await self._redis.xread({self._stream: f"{self._seq}-0"}, count=500, block=1000)
            except (RedisError, OSError):
                await asyncio.sleep(0.5)
                return
            found = stream_fields(reply)
            for fields in found:
                envelope = Envelope.model_validate_json(fields[b"e"])
                if envelope.seq != self._seq + 1:
                    return
                self._take(envelope)
            quiet_seconds = 0 if found else quiet_seconds + 1

    def _take(self, envelope: Envelope) -> None:
        self._seq = envelope.seq
        self._on_event(envelope)
