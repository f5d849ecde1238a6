"""Waiting in tests for what comes true by itself: asked again and again, never for longer than told."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")
_PAUSE_SECONDS = 0.03


@overload
async def eventually(check: Callable[[], Awaitable[T | None]], seconds: float = ...) -> T: ...
@overload
async def eventually(check: Callable[[], T | None], seconds: float = ...) -> T: ...
async def eventually(check: Callable[[], object], seconds: float = 15.0) -> object:
    """The first truthy result of `check`, a function or a coroutine function; fails after the time."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        result = check()
        if inspect.isawaitable(result):
            result = await result
        if result:
            return result
        assert asyncio.get_running_loop().time() < deadline, f"{check} did not come true within {seconds:g} s"
        await asyncio.sleep(_PAUSE_SECONDS)
