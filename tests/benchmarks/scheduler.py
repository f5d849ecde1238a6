"""Durable placements a second: the leader's own cycle without anything beside it, then a whole stack (`placing`).

The leader's: each run submits jobs of one task, then lets the leader take them, plan, and commit task, allocation, node
counters, usage and outbox rows in guarded transactions until nothing waits, fsync on. Where the time goes stands beside
each figure.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import cycle, islice

from redis.asyncio import Redis

from millpond.stack.ephemeral import EphemeralEngines
from millpond_contracts.bodies.jobs import JobBatch
from millpond_contracts.bodies.tenants import Limit, Limits, VirtualPoolView
from millpond_contracts.ids import TenantId
from millpond_kernel.db import SYSTEM, Database, TenantScope
from millpond_kernel.doorbell import DoorListener
from millpond_kernel.outbox import Relay
from millpond_scheduler.domain.plans import Plan
from millpond_scheduler.loops.leader import Leader, LeaderPolicy
from millpond_scheduler.providers.bells import NodeBell
from millpond_scheduler.usecases.cycle import Batch
from millpond_scheduler.usecases.jobs import submit_jobs
from millpond_scheduler.usecases.recount import recount
from millpond_scheduler.usecases.shard import Shard
from tests.benchmarks import placing
from tests.benchmarks.demand import ORDER, SHAPES, DemandClass, add_nodes
from tests.benchmarks.figures import percentile, shorten_all, tell, tell_check
from tests.integration.databases import Engines, MigratedDatabase, clone, make_template
from tests.integration.scheduler.world import World, make_spec, member

NODES = (1_200, 10_000)
RUNS = 3
TENANTS = 8
SUBMITTED_TOGETHER = 250
PLENTY = Limit(guaranteed=1_000_000_000)


def measure() -> None:
    """Both sizes on engines of their own, then the stack."""
    with EphemeralEngines(durable=True) as engines:
        asyncio.run(_measure(Engines(engines.postgres_url, engines.redis_url)))
    placing.measure()


async def _measure(engines: Engines) -> None:
    await make_template(engines.postgres_url, "bench_template")
    for nodes in NODES:
        await _measure_nodes(await clone(engines, "bench_template"), nodes)


async def _measure_nodes(migrated: MigratedDatabase, nodes: int) -> None:
    database, redis = migrated.database("scheduler"), Redis.from_url(migrated.redis_url)
    await database.open()
    world = World(database, redis, migrated.redis_prefix)
    try:
        await world.open()
        await add_nodes(database, world.pool.pool_id, nodes)
        shares = [await add_share(world) for _ in range(TENANTS)]
        leader = TimedLeader(database, NodeBell(redis, world.prefix), DoorListener(redis, f"{world.prefix}:bench"))
        began = time.monotonic()
        await leader.step()
        tell(f"scheduler.load_s.n{nodes}", [time.monotonic() - began], "s")
        tasks = min(5_000, 2 * nodes)
        runs = [await _run(world, leader, shares, tasks) for _ in range(RUNS)]
        tell(
            f"scheduler.leader_placements_per_s.n{nodes}",
            [run.placed / run.seconds for run in runs],
            "1/s",
            tasks=tasks,
            spent_s=[shorten_all(run.spent) for run in runs],
        )
        batches = [batch * 1000 for run in runs for batch in run.batches]
        tell(f"scheduler.batch_ms_p50.n{nodes}", [percentile(batches, 0.5)], "ms", batches=len(batches))
        tell_check(f"scheduler.n{nodes}", await _check(world, sum(run.placed for run in runs)))
    finally:
        await database.close()
        await redis.aclose()


@dataclass(slots=True)
class Run:
    """One run: `spent` names the seconds of its parts; `python` is CPU time of this process, the rest PostgreSQL's."""

    placed: int
    seconds: float
    batches: list[float]
    spent: dict[str, float]


@dataclass(slots=True)
class Spent:
    """Seconds that the parts of the leader's cycle took; a batch is planned while the one before it is written."""

    seconds: dict[str, float] = field(default_factory=dict)
    batches: list[float] = field(default_factory=list)

    def add(self, part: str, began: float) -> None:
        """Counts the time since then."""
        self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - began


class TimedLeader(Leader):
    """The leader itself; only a watch stands beside the parts of its cycle."""

    def __init__(self, database: Database, bell: NodeBell, listener: DoorListener) -> None:
        # Its lease outlives the submits between the runs, during which nobody calls it.
        super().__init__(database, bell, listener, LeaderPolicy(lease_seconds=300.0))
        self.spent = Spent()

    async def _take_changes(self) -> Shard:
        began = time.monotonic()
        try:
            return await super()._take_changes()
        finally:
            self.spent.add("changes", began)

    def _decide(self, shard: Shard, now: datetime) -> Plan:
        began = time.monotonic()
        try:
            return super()._decide(shard, now)
        finally:
            self.spent.add("plan", began)

    async def _write(self, batch: Batch) -> Exception | None:
        began = time.monotonic()
        try:
            return await super()._write(batch)
        finally:
            self.spent.add("write", began)
            self.spent.batches.append(time.monotonic() - began)


async def _run(world: World, leader: TimedLeader, shares: list[VirtualPoolView], tasks: int) -> Run:
    await submit_tasks(world, shares, tasks)
    leader.spent = Spent()
    cpu, began = time.process_time(), time.monotonic()
    while await leader.step():
        pass
    seconds = time.monotonic() - began
    assert leader.shard is not None
    spent = {**leader.spent.seconds, "python": time.process_time() - cpu, "wall": seconds}
    return Run(tasks - len(leader.shard.waiting), seconds, leader.spent.batches, spent)


async def submit_tasks(
    world: World, shares: list[VirtualPoolView], tasks: int, classes: Sequence[DemandClass] = ORDER
) -> None:
    """Jobs of one task each by the use case that serves the route, many in one transaction to save time."""
    requests = cycle(classes)
    for start in range(0, tasks, SUBMITTED_TOGETHER):
        share = shares[start // SUBMITTED_TOGETHER % len(shares)]
        async with world.database.begin(TenantScope(share.tenant_id)) as unit:
            specs = tuple(
                make_spec(share.virtual_pool_id, cpu=cpu, memory=memory, devices=devices)
                for _, cpu, memory, devices in islice(requests, min(SUBMITTED_TOGETHER, tasks - start))
            )
            await submit_jobs(unit, member(share.tenant_id), JobBatch(jobs=specs))


async def add_share(world: World) -> VirtualPoolView:
    """A virtual pool of a tenant of its own, with limits that nothing reaches."""
    limits = Limits(cpu=PLENTY, memory=PLENTY, devices={flavor: PLENTY for flavor, _ in SHAPES})
    return await world.add_virtual_pool(TenantId.new(), limits)


async def _check(world: World, placed: int) -> list[str]:
    """Counters equal the live allocations, no device is given away twice, the outbox becomes dense."""
    async with world.database.begin(SYSTEM) as unit:
        drifts = await recount(unit)
    findings = [f"{drifts} counters differ from the live allocations"] if drifts else []
    live = await world.value("SELECT count(*) FROM allocation WHERE state <> 'released'")
    findings += [] if live == placed else [f"{live} live allocations, {placed} were placed"]
    over = await world.value(
        "SELECT count(*) FROM (SELECT d->>'device_id' FROM allocation, jsonb_array_elements(devices) AS d"
        " WHERE state <> 'released' GROUP BY 1 HAVING sum((d->>'milli')::int) > 1000) AS x"
    )
    findings += [f"{over} devices are given away beyond their whole"] if over else []
    relay = Relay(world.database, world.redis, world.prefix)
    while await relay.number():
        pass
    row = (await world.fetch("SELECT count(*) AS n, min(seq) AS first, max(seq) AS last FROM outbox"))[0]
    is_dense = (row["first"], row["last"]) == (1, row["n"])
    return findings + ([] if is_dense else [f"the outbox is not dense: {dict(row)}"])
