"""Waking long polls: a lossy Redis publish names the nodes that have orders; whoever serves their polls wakes them.

A lost ring costs at most a second: a process with waiting polls asks the database that often, once for all of them.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from uuid import UUID

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from millpond_contracts.ids import NodeId
from millpond_kernel.doorbell import RETRY_SECONDS

log: structlog.stdlib.BoundLogger = structlog.get_logger("millpond")

SAFETY_SECONDS = 1.0
_ID_BYTES = 16


def bell_channel(prefix: str) -> str:
    """The channel that names nodes with new orders."""
    return f"{prefix}:work"


class NodeBell:
    """Rings for nodes. Never raises: the safety look finds what a ring failed to tell."""

    def __init__(self, redis: "Redis", prefix: str) -> None:
        self._redis = redis
        self._channel = bell_channel(prefix)

    async def ring(self, nodes: Iterable[UUID]) -> None:
        """Wakes the polls of the nodes, wherever they wait."""
        message = b"".join(node.bytes for node in set(nodes))
        if not message:
            return
        with contextlib.suppress(RedisError, OSError):
            await self._redis.publish(self._channel, message)


class Waiters:
    """The polls that wait in this process, by node.

    Args:
        list_ordered: the nodes that have an order now, from the database; asked only while somebody waits.
    """

    def __init__(self, redis: "Redis", prefix: str, list_ordered: Callable[[], Awaitable[list[NodeId]]]) -> None:
        self._redis = redis
        self._channel = bell_channel(prefix)
        self._list_ordered = list_ordered
        self._waiting: dict[NodeId, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts listening."""
        self._tasks = [
            asyncio.create_task(self._listen_forever(), name="work listener"),
            asyncio.create_task(self._look_forever(), name="work safety look"),
        ]

    async def stop(self) -> None:
        """Stops listening and ends every wait."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.end_waits()

    def end_waits(self) -> None:
        """Ends every wait."""
        waiting, self._waiting = self._waiting, {}
        for event in waiting.values():
            event.set()

    def wake(self, nodes: Iterable[NodeId]) -> None:
        """Wakes the polls of these nodes that wait here."""
        for node in nodes:
            event = self._waiting.get(node)
            if event is not None:
                event.set()

    def expect(self, node: NodeId) -> asyncio.Event:
        """An event that is set on the next ring for the node; taken before looking, so that no ring is missed.

        A second poll of the same node ends the wait of the first.
        """
        former = self._waiting.get(node)
        if former is not None:
            former.set()
        event = self._waiting[node] = asyncio.Event()
        return event

    def is_current(self, node: NodeId, event: asyncio.Event) -> bool:
        """Whether this wait still counts: no later poll of the node came, and the process is not stopping."""
        return self._waiting.get(node) is event

    def forget(self, node: NodeId, event: asyncio.Event) -> None:
        """Ends a wait."""
        if self._waiting.get(node) is event:
            del self._waiting[node]

    async def _listen_forever(self) -> None:
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.subscribe(self._channel)
                    async for message in pubsub.listen():
                        self.wake(_nodes_of(message["data"]))
            except (RedisError, OSError) as error:
                log.debug("work_bell_away", error=type(error).__name__)
                await asyncio.sleep(RETRY_SECONDS)

    async def _look_forever(self) -> None:
        while True:
            await asyncio.sleep(SAFETY_SECONDS)
            if not self._waiting:
                continue
            try:
                self.wake(await self._list_ordered())
            except Exception as error:  # whatever it is, the next look comes in a second
                log.debug("work_look_failed", error=type(error).__name__)


def _nodes_of(message: bytes) -> list[NodeId]:
    return [
        NodeId(bytes=message[start : start + _ID_BYTES]) for start in range(0, len(message) - _ID_BYTES + 1, _ID_BYTES)
    ]
