"""kill -9 of every process of a split stack, agent and engines included, while jobs run: nothing lost, nothing doubled.

Seeded, so that a failure can be run again: MILLPOND_TEST_SEED. `make chaos` does every kind of fault under heavy load.
"""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Sequence

import pytest
from redis.asyncio import Redis

from tests.system.checker import assert_sound
from tests.system.client import Caller, make_tenant, open_caller, publish_prices
from tests.system.load import Load, attempts_of
from tests.system.stack import Stack

# A stack's start and stop count as well; a machine that does other things takes thrice as long.
pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

SERVICES = ("registry", "quota", "scheduler", "billing", "autoscaler")
PROCESSES = (*(f"{kind}-{name}" for kind in ("http", "worker") for name in SERVICES), "celery", "gateway", "agent")
SEED = int(os.environ.get("MILLPOND_TEST_SEED", "20261129"))

Fault = Callable[[Load], Awaitable[None]]


async def test_split_stack_when_every_process_is_killed_once_then_no_job_is_lost_or_doubled(
    shared_split: Stack,
) -> None:
    names = list(PROCESSES)
    random.Random(SEED).shuffle(names)
    faults = [killing(name) for name in names]
    await run_under_faults("kills", shared_split, faults, jobs=40, seconds=(1, 5), together=14)


async def test_split_stack_when_redis_is_emptied_and_killed_then_every_event_still_arrives_once(
    shared_split: Stack,
) -> None:
    faults = [emptying, killing("valkey"), emptying, killing("valkey"), emptying]
    await run_under_faults("redis", shared_split, faults, jobs=20, seconds=(1, 3), together=8, pause_seconds=1)


async def test_split_stack_when_postgres_is_killed_then_what_was_acknowledged_is_there(
    shared_split: Stack,
) -> None:
    await run_under_faults(
        "postgres", shared_split, 2 * [killing("postgres")], jobs=20, seconds=(1, 3), together=8, pause_seconds=2
    )


def killing(name: str) -> Fault:
    """kill -9 of one process, and the wait until it is back."""

    async def kill(load: Load) -> None:
        old = load.stack.signal(name, signal.SIGKILL)
        await load.stack.wait_until_back(name, old, 20)

    return kill


async def emptying(load: Load) -> None:
    """Everything in Redis is gone."""
    async with Redis.from_url(load.stack.redis_url) as redis:
        await redis.flushall()


async def run_under_faults(
    name: str,
    stack: Stack,
    faults: Sequence[Fault],
    *,
    jobs: int,
    seconds: tuple[float, float],
    together: int,
    pause_seconds: float = 1.0,
    seed: int = SEED,
) -> None:
    """Runs jobs while the faults happen one by one at random instants, a third of the jobs running at each."""
    rng = random.Random(seed)
    async with open_caller(stack.url, stack.operator_key) as operator:
        await publish_prices(operator, minimum_seconds=2)
        tenant = await make_tenant(operator, name, cpu_milli=50 * together)
        load = Load(name, stack, tenant, rng, seconds, together)
        done = asyncio.Event()
        feeding = asyncio.create_task(load.feed(jobs, done))
        try:
            for fault in faults:
                await load.wait_until_running(min(together, -(-jobs // 3)) - 1, feeding=feeding)
                await asyncio.sleep(rng.uniform(0, pause_seconds))
                await fault(load)
            done.set()
            await feeding
        finally:
            feeding.cancel()
        states = await load.wait_for_ends()
        assert set(states.values()) == {"succeeded"}, states
        await _assert_ran_once(operator, load)
        load.assert_witnessed(states)


async def _assert_ran_once(operator: Caller, load: Load) -> None:
    """With a lease longer than every outage nothing needs a second attempt, and all the books agree."""
    attempts = [await attempts_of(load.tenant, job_id) for job_id in load.history.job_ids]
    assert set(attempts) == {1}
    await assert_sound(load.stack, operator, load.history)
