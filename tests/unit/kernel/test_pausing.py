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


async def test_end_task_when_the_task_swallows_a_cancellation_then_asked_again() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 2:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await end_task(task)
    assert (task.cancelled(), swallowed) == (True, 2)
