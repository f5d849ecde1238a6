"""Waiting that ends early when a process is asked to stop."""

import asyncio
from typing import Protocol


class Stop(Protocol):
    """What loops look at: an event that is set once, when the process has to end."""

    def is_set(self) -> bool: ...

    async def wait(self) -> bool: ...


async def sleep_or_stop(stop: Stop, seconds: float) -> bool:
    """Sleeps; returns True at once when `stop` is set before the time is over."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True
