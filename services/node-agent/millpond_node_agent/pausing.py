"""Waiting with a bound, and ending what waits.

`asyncio.wait_for` of Python 3.11 can swallow a cancellation, and a loop would then go on for ever.
"""

import asyncio
from collections.abc import Awaitable, Collection, Coroutine

from millpond_node_agent.observability import log


async def wait_within(waiting: Awaitable[object], seconds: float) -> None:
    """Returns when `waiting` is over, at the latest after `seconds`; it is cancelled then."""
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        return


async def finish(step: Coroutine[None, None, None]) -> None:
    """Runs a short step to its end even when the caller is cancelled meanwhile; the cancellation follows then."""
    task = asyncio.create_task(step)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


async def cancel_all(tasks: Collection["asyncio.Task[None]"]) -> None:
    """Cancel until all have ended; a library that swallowed one cancellation gets another."""
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=1.0)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("loop_failed_at_the_end", exc_info=error)
