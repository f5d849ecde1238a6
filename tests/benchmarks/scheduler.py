"""Durable placements a second through the real commit path: jobs in PostgreSQL, the leader's cycle, fsync on.

Each run submits jobs of one task, then lets the leader take them, plan, and commit task, allocation, node counters,
usage and outbox rows in guarded transactions until nothing waits. Where the time goes stands beside each figure.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import cycle, islice

from redis.asyncio import Redis

from millpond.stack.ephemeral import EphemeralEngines
from millpond_contracts.bodies.jobs import DeviceRequest
from millpond_contracts.bodies.nodes import NodeState, NodeView
from millpond_contracts.bodies.tenants import Limit, Limits, VirtualPoolView
from millpond_contracts.ids import NodeId, TenantId
from millpond_contracts.resources import Isolation
from millpond_kernel.db import SYSTEM, Database, TenantScope
from millpond_kernel.doorbell import DoorListener
from millpond_kernel.outbox import Relay
from millpond_scheduler.domain.plans import Plan
from millpond_scheduler.loops.leader import Leader, LeaderPolicy
from millpond_scheduler.providers.bells import NodeBell
from millpond_scheduler.usecases.jobs import submit_job
from millpond_scheduler.usecases.recount import recount
from millpond_scheduler.usecases.shard import Shard
from tests.benchmarks.figures import percentile, shorten_all, tell, tell_check
from tests.integration.databases import Engines, MigratedDatabase, clone, make_template
from tests.integration.scheduler.world import START, World, make_device, make_spec, member

NODES = (1_200, 10_000)
RUNS = 3
TENANTS = 8
SUBMITTED_TOGETHER = 250
NODES_TOGETHER = 500
PLENTY = Limit(guaranteed=1_000_000_000)

# flavor, device memory (MiB); every node has 8 devices
SHAPES = (("a100-80", 81_920), ("t4", 15_360), ("v100-32", 32_768), ("l20", 46_068))
# weight of 100, CPU (milli), memory (MiB), what it asks of devices
CLASSES = (
    (40, 8_000, 32_768, DeviceRequest()),
    (15, 4_000, 16_384, DeviceRequest(milli=500)),
    (10, 2_000, 8_192, DeviceRequest(milli=250)),
    (5, 2_000, 8_192, DeviceRequest(milli=250, memory_mib=4_096)),
    (5, 16_000, 65_536, DeviceRequest(count=2)),
    (3, 32_000, 131_072, DeviceRequest(count=4)),
    (2, 64_000, 196_608, DeviceRequest(count=8)),
    (20, 4_000, 16_384, None),
)
# The classes in a fixed order that spreads them evenly.
ORDER = tuple(one for step in range(100) for one in CLASSES if (step * one[0]) % 100 < one[0])


def measure() -> None:
    """Both sizes on engines of their own."""
    with EphemeralEngines(durable=True) as engines:
        asyncio.run(_measure(Engines(engines.postgres_url, engines.redis_url)))


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
        await _add_nodes(world, nodes)
        shares = [await _add_virtual_pool(world) for _ in range(TENANTS)]
        leader = TimedLeader(database, NodeBell(redis, world.prefix), DoorListener(redis, f"{world.prefix}:bench"))
        began = time.monotonic()
        await leader.step()
        tell(f"scheduler.load_s.n{nodes}", [time.monotonic() - began], "s")
        tasks = min(5_000, 2 * nodes)
        runs = [await _run(world, leader, shares, tasks) for _ in range(RUNS)]
        bar = ">= 2000" if nodes == max(NODES) else None
        tell(
            f"scheduler.durable_placements_per_s.n{nodes}",
            [run.placed / run.seconds for run in runs],
            "1/s",
            bar=bar,
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
    """Seconds that the parts of the leader's cycle took."""

    seconds: dict[str, float] = field(default_factory=dict)

    async def time(self, part: str, work: Callable[[], Awaitable[object]]) -> object:
        """Runs the work and counts its time."""
        began = time.monotonic()
        try:
            return await work()
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - began


class TimedLeader(Leader):
    """The leader itself; only a watch stands beside the parts of its cycle."""

    def __init__(self, database: Database, bell: NodeBell, listener: DoorListener) -> None:
        # Its lease outlives the submits between the runs, during which nobody calls it.
        super().__init__(database, bell, listener, LeaderPolicy(lease_seconds=300.0))
        self.spent = Spent()

    async def _take_changes(self) -> Shard:
        shard = await self.spent.time("changes", super()._take_changes)
        assert isinstance(shard, Shard)
        return shard

    async def _plan(self, shard: Shard) -> Plan | None:
        plan = await self.spent.time("plan", lambda: super(TimedLeader, self)._plan(shard))
        assert plan is None or isinstance(plan, Plan)
        return plan

    async def _commit(self, shard: Shard, plan: Plan) -> bool:
        return bool(await self.spent.time("commit", lambda: super(TimedLeader, self)._commit(shard, plan)))


async def _run(world: World, leader: TimedLeader, shares: list[VirtualPoolView], tasks: int) -> Run:
    await _submit(world, shares, tasks)
    leader.spent = Spent()
    batches: list[float] = []
    cpu, began = time.process_time(), time.monotonic()
    is_busy = True
    while is_busy:
        at = time.monotonic()
        is_busy = await leader.step()
        if is_busy:
            batches.append(time.monotonic() - at)
    seconds = time.monotonic() - began
    assert leader.shard is not None
    spent = {**leader.spent.seconds, "python": time.process_time() - cpu, "wall": seconds}
    return Run(tasks - len(leader.shard.waiting), seconds, batches, spent)


async def _submit(world: World, shares: list[VirtualPoolView], tasks: int) -> None:
    """Jobs of one task each by the use case that serves the route, many in one transaction to save time."""
    requests = cycle(ORDER)
    for start in range(0, tasks, SUBMITTED_TOGETHER):
        share = shares[start // SUBMITTED_TOGETHER % len(shares)]
        async with world.database.begin(TenantScope(share.tenant_id)) as unit:
            for _, cpu, memory, devices in islice(requests, min(SUBMITTED_TOGETHER, tasks - start)):
                spec = make_spec(share.virtual_pool_id, cpu=cpu, memory=memory, devices=devices)
                await submit_job(unit, member(share.tenant_id), spec)


async def _add_virtual_pool(world: World) -> VirtualPoolView:
    limits = Limits(cpu=PLENTY, memory=PLENTY, devices={flavor: PLENTY for flavor, _ in SHAPES})
    return await world.add_virtual_pool(TenantId.new(), limits)


async def _add_nodes(world: World, count: int) -> None:
    """Views, counters and leases as the consumer and the first poll write them, many in one statement."""
    nodes = [_make_node(world, index) for index in range(count)]
    for start in range(0, count, NODES_TOGETHER):
        some = nodes[start : start + NODES_TOGETHER]
        async with world.database.begin(SYSTEM) as unit:
            await unit.execute(
                "INSERT INTO node_view (node_id, pool_id, body, removed, generation)"
                " SELECT n, $2, b::jsonb, false, 1 FROM unnest($1::uuid[], $3::text[]) AS x(n, b)",
                [node.node_id for node in some],
                world.pool.pool_id,
                [node.model_dump_json() for node in some],
            )
            await unit.execute(
                "INSERT INTO node_guard (node_id, pool_id, open, incarnation, layout, total_cpu_milli,"
                " total_memory_mib, device_count, device_ids, total_mib, free_cpu_milli, free_memory_mib, free_milli,"
                " free_mib) SELECT n, $2, true, 1, 1, c, m, cardinality(d::text[]), d::text[], b::int[], c, m,"
                " array_fill(1000, ARRAY[cardinality(d::text[])]), b::int[]"
                " FROM unnest($1::uuid[], $3::bigint[], $4::bigint[], $5::text[], $6::text[]) AS x(n, c, m, d, b)",
                [node.node_id for node in some],
                world.pool.pool_id,
                [node.cpu_milli for node in some],
                [node.memory_mib for node in some],
                [f"{{{','.join(str(device.device_id) for device in node.devices)}}}" for node in some],
                [f"{{{','.join(str(device.memory_mib) for device in node.devices)}}}" for node in some],
            )
            await unit.execute(
                "INSERT INTO node_lease (node_id, incarnation, renewed_at, leased_until, boot_id, exchange_at,"
                " exchange_monotonic_ms)"
                " SELECT unnest($1::uuid[]), 1, now(), now() + interval '1 day', 'boot-1', now(), 1",
                [node.node_id for node in some],
            )
    async with world.database.begin(SYSTEM) as unit:
        await unit.execute("ANALYZE")


def _make_node(world: World, index: int) -> NodeView:
    flavor, memory_mib = SHAPES[index % len(SHAPES)]
    return NodeView(
        node_id=NodeId.new(),
        pool_id=world.pool.pool_id,
        name=f"node-{index}",
        state=NodeState.READY,
        state_since=START,
        schedulable=True,
        incarnation=1,
        boot_id="boot-1",
        arch="x86_64",
        cpu_milli=128_000,
        memory_mib=1_048_576,
        devices=tuple(make_device(flavor, memory_mib) for _ in range(8)),
        runtimes=("process",),
        isolation=Isolation.USER,
        created_at=START,
        generation=1,
    )


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
