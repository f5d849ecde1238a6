"""Seconds until a new leader may decide: all is read from PostgreSQL under a new epoch, 100,000 live allocations."""

import asyncio
import time

from redis.asyncio import Redis

from millpond.stack.ephemeral import EphemeralEngines
from millpond_kernel.db import SYSTEM
from millpond_kernel.doorbell import DoorListener
from millpond_scheduler.providers.bells import NodeBell
from tests.benchmarks.demand import SMALL, add_nodes
from tests.benchmarks.figures import tell, tell_check
from tests.benchmarks.scheduler import TENANTS, TimedLeader, add_share, submit_tasks
from tests.integration.databases import Engines, clone, make_template
from tests.integration.scheduler.world import World

NODES = 10_000
ALLOCATIONS = 100_000
TOGETHER = 10_000
RUNS = 3


def measure() -> None:
    """On engines of its own."""
    with EphemeralEngines(durable=True) as engines:
        asyncio.run(_measure(Engines(engines.postgres_url, engines.redis_url)))


async def _measure(engines: Engines) -> None:
    await make_template(engines.postgres_url, "bench_template")
    migrated = await clone(engines, "bench_template")
    database, redis = migrated.database("scheduler"), Redis.from_url(migrated.redis_url)
    await database.open()
    world = World(database, redis, migrated.redis_prefix)
    bell, listener = NodeBell(redis, world.prefix), DoorListener(redis, f"{world.prefix}:bench")
    try:
        await world.open()
        await add_nodes(database, world.pool.pool_id, NODES)
        leader = TimedLeader(database, bell, listener)
        await _fill(world, leader)
        async with database.begin(SYSTEM) as unit:
            await unit.execute("ANALYZE")
        seconds = []
        for _ in range(RUNS):
            leader.forget()
            began = time.monotonic()
            await leader.step()
            seconds.append(time.monotonic() - began)
        tell("scheduler.recovery_s", seconds, "s", bar="< 5", nodes=NODES, allocations=ALLOCATIONS)
        assert leader.shard is not None
        live = len(leader.shard.live)
        tell_check("recovery", [] if live == ALLOCATIONS else [f"{live} of {ALLOCATIONS} allocations were adopted"])
    finally:
        await database.close()
        await redis.aclose()


async def _fill(world: World, leader: TimedLeader) -> None:
    shares = [await add_share(world) for _ in range(TENANTS)]
    for _ in range(0, ALLOCATIONS, TOGETHER):
        await submit_tasks(world, shares, TOGETHER, SMALL)
        while await leader.step():
            pass
