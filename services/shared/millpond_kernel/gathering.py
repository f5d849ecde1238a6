"""Does together what many callers ask for at nearly the same time: one transaction for the heartbeats of many nodes.

A caller still gets its own answer, and not before what it asked for is done.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Generic, TypeVar

from millpond_kernel.db import AWAY_ERRORS
from millpond_kernel.observability import log

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Beyond this many a transaction would be long rather than cheap.
MOST = 256


class Gatherer(Generic[Item, Answer]):
    """Hands what is asked to `do`, together.

    A first caller after a quiet time is served at once. While callers follow one another there is at least
    `pause_seconds` between two beginnings, so that a machine under load does less, and one call waits at most so long.

    Args:
        name: what is done, for the log.
        do: takes items, gives one answer for each in their order. What it raises for several it is asked again for
            each of them alone, so that one bad item harms no other; only a database that is away is away for all.
        pause_seconds: see above.
        weigh: how many things an item is, of the `MOST` that are done at once; by default one.
    """

    def __init__(
        self,
        name: str,
        do: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        pause_seconds: float,
        weigh: Callable[[Item], int] = lambda _: 1,
    ) -> None:
        self._name = name
        self._do = do
        self._pause_seconds = pause_seconds
        self._weigh = weigh
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._next_at = 0.0
        self._task: asyncio.Task[None] | None = None

    async def ask(self, item: Item) -> Answer:
        """The answer to this item, once it is done.

        Raises:
            Exception: what `do` raised for this item alone, or for all while the database was away.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((item, future))
        if self._task is None:
            # In a context of its own: the first caller's request id is not the others'.
            self._task = loop.create_task(self._serve(loop), name=f"gather {self._name}", context=Context())
        return await future

    async def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while self._waiting:
                if (pause := self._next_at - loop.time()) > 0:
                    await asyncio.sleep(pause)
                self._next_at = loop.time() + self._pause_seconds
                await self._settle(self._take())
        finally:
            self._task = None

    def _take(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        """The next that are done together: as many as there is room for, but at least one."""
        batch: list[tuple[Item, asyncio.Future[Answer]]] = []
        room, looked_at = MOST, 0
        for item, future in self._waiting:
            # Who has gone meanwhile asks for nothing any more.
            if not future.done():
                room -= self._weigh(item)
                if room < 0 and batch:
                    break
                batch.append((item, future))
            looked_at += 1
        del self._waiting[:looked_at]
        return batch

    async def _settle(self, batch: Sequence[tuple[Item, asyncio.Future[Answer]]]) -> None:
        if not batch:
            return
        try:
            answers = await self._do([item for item, _ in batch])
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, AWAY_ERRORS):
                log.warning("gathered_apart", what=self._name, items=len(batch), error=type(error).__name__)
                for single in batch:
                    await self._settle([single])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
