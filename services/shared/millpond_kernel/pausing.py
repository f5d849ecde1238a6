"""Waiting that ends early when a process is asked to stop, and that never swallows a cancellation.

`asyncio.wait_for` of Python 3.11 does: when what it waits for happens in the same moment, the cancellation is lost.
"""

import asyncio
from typing import Any, Protocol

_ASK_AGAIN_SECONDS = 0.2


class Stop(Protocol):
    """What loops look at: an event that is set once, when the process has to end."""

    def is_set(self) -> bool: ...

    async def wait(self) -> bool: ...


async def sleep_or_stop(stop: Stop, seconds: float) -> bool:
    """Sleeps; returns True at once when `stop` is set before the time is over."""
    try:
        async with asyncio.timeout(seconds):
            return await stop.wait()
    except TimeoutError:
        return False


async def end_task(task: "asyncio.Future[Any] | None") -> None:
    """Cancels a task and waits until it has ended; its outcome does not matter any more.

    Asks again as long as it runs: the Redis client was seen to swallow a cancellation that came while it connected.
    """
    if task is None:
        return
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_ASK_AGAIN_SECONDS)
    if not task.cancelled():
        task.exception()
