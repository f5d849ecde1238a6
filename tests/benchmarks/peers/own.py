"""Millpond beside its peers: the leader's cycle by itself, then the whole stack over HTTP, on as many equal nodes."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from redis.asyncio import Redis

from millpond.stack.ephemeral import EphemeralEngines
from millpond_contracts.bodies.tenants import VirtualPoolView
from millpond_kernel.db import Database
from millpond_kernel.doorbell import DoorListener
from millpond_scheduler.providers.bells import NodeBell
from tests.benchmarks.demand import DemandClass, add_nodes
from tests.benchmarks.peers.measured import Rate, Run, cpu_of, list_children
from tests.benchmarks.scheduler import TENANTS, TimedLeader, add_share, submit_tasks
from tests.integration.databases import Engines, clone, make_template
from tests.integration.scheduler.world import World

TASKS = 5_000


@contextmanager
def leading(nodes: int, wanted: DemandClass) -> Iterator[Run]:
    """A leader over so many nodes; a run lets it place jobs that were stored before, each in PostgreSQL, fsync on."""
    former = list_children()
    with EphemeralEngines(durable=True) as engines, asyncio.Runner() as runner:
        own = runner.run(_open(Engines(engines.postgres_url, engines.redis_url), nodes))
        roots = list_children() - former
        try:
            yield lambda: runner.run(own.place(wanted, roots))
        finally:
            runner.run(own.close())


@dataclass(frozen=True, slots=True)
class _Own:
    world: World
    database: Database
    redis: "Redis"
    leader: TimedLeader
    shares: Sequence[VirtualPoolView]
    tasks: int

    async def place(self, wanted: DemandClass, roots: set[int]) -> Rate:
        await submit_tasks(self.world, list(self.shares), self.tasks, [wanted])
        before = await self._count()
        cpu, own, began = cpu_of(roots), time.process_time(), time.monotonic()
        while await self.leader.step():
            pass
        seconds = time.monotonic() - began
        spent = cpu_of(roots) - cpu + time.process_time() - own
        placed = await self._count() - before
        assert placed == self.tasks, f"{placed} of {self.tasks} tasks were placed"
        return Rate(placed / seconds, spent * 1000 / placed)

    async def close(self) -> None:
        await self.database.close()
        await self.redis.aclose()

    async def _count(self) -> int:
        return int(await self.world.value("SELECT count(*) FROM allocation WHERE state <> 'released'"))


async def _open(engines: Engines, nodes: int) -> _Own:
    await make_template(engines.postgres_url, "bench_template")
    migrated = await clone(engines, "bench_template")
    database, redis = migrated.database("scheduler"), Redis.from_url(migrated.redis_url)
    await database.open()
    world = World(database, redis, migrated.redis_prefix)
    await world.open()
    await add_nodes(database, world.pool.pool_id, nodes)
    shares = [await add_share(world) for _ in range(TENANTS)]
    leader = TimedLeader(database, NodeBell(redis, world.prefix), DoorListener(redis, f"{world.prefix}:bench"))
    await leader.step()
    return _Own(world, database, redis, leader, shares, min(TASKS, 2 * nodes))
