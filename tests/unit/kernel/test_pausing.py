"""Waiting ends in time, and a cancellation is never lost in it."""

import asyncio

import pytest

from millpond_kernel.pausing import end_task, sleep_or_stop

pytestmark = pytest.mark.unit


async def test_sleep_when_not_stopped_then_false_and_when_stopped_then_true() -> None:
    stop = asyncio.Event()
    assert not await sleep_or_stop(stop, 0.01)
    asyncio.get_running_loop().call_later(0.01, stop.set)
    assert await sleep_or_stop(stop, 10)
    assert await sleep_or_stop(stop, 10)


async def test_sleep_when_cancelled_in_the_moment_of_the_stop_then_cancelled() -> None:
    stop = asyncio.Event()
    task = asyncio.ensure_future(sleep_or_stop(stop, 10))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    stop.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_end_task_when_the_task_fails_or_never_started_then_it_returns() -> None:
    async def fail() -> None:
        raise ValueError

    await end_task(None)
    await end_task(asyncio.create_task(fail()))
    failed = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await end_task(failed)
    assert failed.done()
