"""A lossy Redis publish after commit that wakes whoever waits for new rows. Losing one costs at most a second."""

import asyncio

from redis.asyncio import Redis
from redis.exceptions import RedisError

from millpond_kernel.observability import log
from millpond_kernel.pausing import Stop, end_task

# Time to gather further commits after a ring, so that one pass serves many of them.
LINGER_SECONDS = 0.005
RETRY_SECONDS = 0.5
# A partition that swallows packets must not hold a relay or a consumer for ever.
TIMEOUT_SECONDS = 10.0


def connect_redis(url: str) -> "Redis":
    """A Redis client that gives up on an answer after ten seconds; a blocking read has to be shorter than that."""
    return Redis.from_url(
        url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=3, socket_keepalive=True, health_check_interval=0
    )


class Doorbell:
    """Rings `channel`. Rings that come while one is under way are one ring."""

    def __init__(self, redis: "Redis", channel: str) -> None:
        self._redis = redis
        self._channel = channel
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def ring(self) -> None:
        """Asks for a ring and returns at once; never raises."""
        self._wanted.set()

    def start(self) -> None:
        """Starts the ringing task."""
        self._task = asyncio.create_task(self._ring_forever(), name=f"doorbell {self._channel}")

    async def stop(self) -> None:
        """Stops the ringing task."""
        await end_task(self._task)

    async def _ring_forever(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._redis.publish(self._channel, b"1")
            except (RedisError, OSError):
                await asyncio.sleep(RETRY_SECONDS)


class DoorListener:
    """Waits for rings of some channels; `wait` returns on a ring or after its timeout."""

    def __init__(self, redis: "Redis", *channels: str) -> None:
        self._redis = redis
        self._channels = channels
        self._rung = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_ring: asyncio.Task[None] | None = None

    def start(self, stop: Stop | None = None) -> None:
        """Starts listening; when `stop` is set, whoever waits goes on as if the bell had rung."""
        self._task = asyncio.create_task(self._listen_forever(), name=f"door listener {self._channels}")
        if stop is not None:
            self._last_ring = asyncio.create_task(self._ring_at(stop), name=f"last ring {self._channels}")

    async def stop(self) -> None:
        """Stops listening."""
        await end_task(self._task)
        await end_task(self._last_ring)

    async def _ring_at(self, stop: Stop) -> None:
        await stop.wait()
        self._rung.set()

    def poke(self) -> None:
        """Acts as if the bell had rung; for a caller in the same process."""
        self._rung.set()

    async def wait(self, timeout_seconds: float) -> bool:
        """Whether a ring came within the time. A ring that came before the call counts."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._rung.wait()
        except TimeoutError:
            return False
        self._rung.clear()
        return True

    async def _listen_forever(self) -> None:
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.subscribe(*self._channels)
                    self._rung.set()
                    async for _ in pubsub.listen():
                        self._rung.set()
            except (RedisError, OSError) as error:
                log.debug("doorbell_away", error=type(error).__name__)
                await asyncio.sleep(RETRY_SECONDS)
