"""From the commit of a scheduler's event to the charge it becomes: relay and billing's worker as real processes.

Allocations are bound, activated and released by the scheduler's own statements, each change with its event in one
transaction, at a steady rate; a watcher sees when the segment with its charges is there. `releases` is the hard case:
every event of the stream is a release and becomes charges.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias

import asyncpg

from millpond_contracts.bodies.allocations import AllocationState, DeviceShare, EndReason
from millpond_contracts.events.scheduler import (
    AllocationActivated,
    AllocationBound,
    AllocationEvent,
    AllocationReleased,
)
from millpond_contracts.ids import (
    AllocationId,
    DeviceId,
    JobId,
    NodeId,
    PoolId,
    TaskId,
    TenantId,
    VirtualPoolId,
)
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.doorbell import Doorbell, connect_redis
from millpond_kernel.outbox import doorbell_channel
from millpond_scheduler.store.allocations import AllocationRecord, NewAllocation, insert_allocations, update_allocations
from tests.benchmarks.figures import percentile, tell, tell_check
from tests.benchmarks.owner import connect_owner, wait_until_quiet
from tests.benchmarks.processes import cpu_ms_each, cpu_seconds, tree_of
from tests.system.checker_delivery import check_delivery
from tests.system.client import make_tenant, open_caller, publish_prices
from tests.system.stack import Stack
from tests.waiting import eventually

EVENTS_PER_SECOND = 500
RUNS = 3
SECONDS = 6.0
TICK_SECONDS = 0.02
# What a watcher that looks this often adds to a latency is at most one interval.
WATCH_SECONDS = 0.005
DRAIN_SECONDS = 60.0

Work: TypeAlias = Callable[[int], Coroutine[Any, Any, None]]


def measure() -> None:
    """Starts a stack and runs both loads on it."""
    stack = Stack.make(split=False)
    try:
        stack.start()
        asyncio.run(_measure(stack))
    finally:
        stack.close()


async def _measure(stack: Stack) -> None:
    async with open_caller(stack.url, stack.operator_key) as operator:
        await publish_prices(operator)
        tenant = await make_tenant(operator, "bench")
    database = Database("scheduler", stack.secrets["MILLPOND_SCHEDULER_DATABASE_URL"], pool_size=2)
    redis = connect_redis(stack.redis_url)
    bell = Doorbell(redis, doorbell_channel("millpond", "scheduler"))
    owner = await connect_owner(stack)
    try:
        await database.open()
        database.on_commit = bell.ring
        bell.start()
        lives = Lives(database, TenantId.parse(tenant.tenant_id))
        mixed = [await _run(stack, owner, lives, _mix(lives)) for _ in range(RUNS)]
        _tell(mixed, "")
        await lives.drain(owner)
        # Every release needs an allocation that runs: they are made and metered before the clock starts.
        releases = []
        for _ in range(RUNS):
            await lives.stock(owner, int(EVENTS_PER_SECOND * SECONDS))
            releases.append(await _run(stack, owner, lives, lives.release))
        _tell(releases, ".releases")
        tell_check("billing", await _check(owner))
    finally:
        await owner.close()
        await bell.stop()
        await redis.aclose()
        await database.close()


def _tell(runs: list["Measured"], suffix: str) -> None:
    for share in (50, 99):
        values = [percentile(run.latencies_ms, share / 100) for run in runs]
        bar = "<= 500" if share == 99 else None
        rate = round(sum(run.events for run in runs) / sum(run.seconds for run in runs))
        charges = sum(len(run.latencies_ms) for run in runs)
        tell(
            f"billing.commit_to_charge_ms_p{share}{suffix}",
            values,
            "ms",
            bar=bar,
            events_per_s=rate,
            charged=charges,
            cpu_ms_per_event=runs[-1].cpu_ms,
        )


@dataclass(slots=True)
class Measured:
    """One run: latency of each allocation that was charged, in milliseconds, and the load that was really offered."""

    latencies_ms: list[float]
    events: int
    seconds: float
    cpu_ms: dict[str, float]


@dataclass(slots=True)
class Lives:
    """Allocations on their way from bound to released, changed as the scheduler changes them."""

    database: Database
    tenant: TenantId
    bound: deque[AllocationRecord] = field(default_factory=deque)
    active: deque[AllocationRecord] = field(default_factory=deque)
    committed: dict[AllocationId, float] = field(default_factory=dict)
    events: int = 0

    async def bind(self, count: int) -> None:
        """Binds new allocations: one device, some CPU and memory, of no node and share that anything else knows."""
        now = datetime.now(UTC)
        records = [self._make(now) for _ in range(count)]
        async with self.database.begin(SYSTEM) as unit:
            await insert_allocations(unit, [_new(record) for record in records], 1, now)
            for record in records:
                unit.emit(AllocationBound(allocation=record.view()), now)
        self.bound += records
        self.events += count

    async def activate(self, count: int) -> None:
        """The oldest bound ones run."""
        now = datetime.now(UTC)
        records = [self.bound.popleft() for _ in range(min(count, len(self.bound)))]
        changed = [replace(one, state=AllocationState.ACTIVE, active_at=now, generation=2) for one in records]
        await self._write(changed, AllocationActivated, now)
        self.active += changed

    async def release(self, count: int) -> None:
        """The oldest running ones end; the instant after their commit is what latencies count from."""
        now = datetime.now(UTC)
        records = [self.active.popleft() for _ in range(min(count, len(self.active)))]
        done = AllocationState.RELEASED
        ended = [replace(one, state=done, released_at=now, reason=EndReason.COMPLETED, generation=3) for one in records]
        await self._write(ended, AllocationReleased, now)
        at = time.monotonic()
        self.committed.update({one.id: at for one in records})

    async def stock(self, owner: asyncpg.Connection, count: int) -> None:
        """Makes so many allocations that run, and waits until everybody knows them."""
        for _ in range(0, count, 250):
            await self.bind(250)
            await self.activate(250)
        await wait_until_quiet(owner)

    async def drain(self, owner: asyncpg.Connection) -> None:
        """Ends everything that lives."""
        while self.bound or self.active:
            await self.activate(250)
            await self.release(250)
        await wait_until_quiet(owner)

    async def _write(self, records: list[AllocationRecord], event: type[AllocationEvent], now: datetime) -> None:
        if not records:
            return
        async with self.database.begin(SYSTEM) as unit:
            await update_allocations(unit, records)
            for record in records:
                unit.emit(event(allocation=record.view()), now)
        self.events += len(records)

    def _make(self, now: datetime) -> AllocationRecord:
        share = DeviceShare(
            device_id=DeviceId.new(),
            identity="nvidia/GPU-bench",
            vendor="nvidia",
            index=0,
            uuid=None,
            flavor="t4",
            milli=1000,
            memory_mib=None,
        )
        return AllocationRecord(
            id=AllocationId.new(),
            tenant=self.tenant,
            project=None,
            virtual_pool=VirtualPoolId.new(),
            pool=PoolId.new(),
            node=NodeId.new(),
            job=JobId.new(),
            job_name="bench",
            labels={},
            task=TaskId.new(),
            group="main",
            index=0,
            attempt=1,
            cpu_milli=4000,
            memory_mib=16_384,
            flavor="t4",
            devices=(share,),
            price_version=None,
            stop_grace_seconds=30,
            time_limit_seconds=None,
            epoch=1,
            bound_at=now,
        )


def _new(record: AllocationRecord) -> NewAllocation:
    return NewAllocation(
        id=record.id,
        tenant=record.tenant,
        project=record.project,
        virtual_pool=record.virtual_pool,
        pool=record.pool,
        node=record.node,
        job=record.job,
        job_name=record.job_name,
        labels="{}",
        task=record.task,
        group=record.group,
        place=record.index,
        attempt=record.attempt,
        cpu_milli=record.cpu_milli,
        memory_mib=record.memory_mib,
        flavor=record.flavor,
        devices=f"[{','.join(share.model_dump_json() for share in record.devices)}]",
        price_version=record.price_version,
        stop_grace_seconds=record.stop_grace_seconds,
        time_limit_seconds=record.time_limit_seconds,
        priority=record.priority,
        gang=record.gang,
    )


def _mix(lives: Lives) -> Work:
    """A third of the events each: what is bound runs a second later and ends a second after that."""

    async def work(count: int) -> None:
        third = -(-count // 3)
        second = EVENTS_PER_SECOND // 3
        await lives.bind(third)
        await lives.activate(max(0, len(lives.bound) - second))
        await lives.release(max(0, len(lives.active) - second))

    return work


async def _run(stack: Stack, owner: asyncpg.Connection, lives: Lives, work: Work) -> Measured:
    lives.committed.clear()
    seen: dict[AllocationId, float] = {}
    watching = asyncio.create_task(_watch(owner, seen))
    cpu, events, began = cpu_seconds(tree_of(stack)), lives.events, time.monotonic()
    given = 0
    while (passed := time.monotonic() - began) < SECONDS:
        due = int(passed * EVENTS_PER_SECOND) - given
        if due > 0:
            await work(due)
            given += due
        await asyncio.sleep(TICK_SECONDS)
    seconds = time.monotonic() - began

    async def is_charged() -> bool:
        return seen.keys() >= lives.committed.keys()

    try:
        await eventually(is_charged, DRAIN_SECONDS)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    latencies = [(seen[one] - at) * 1000 for one, at in lives.committed.items()]
    done = lives.events - events
    return Measured(latencies, done, seconds, cpu_ms_each(cpu, cpu_seconds(tree_of(stack)), done))


async def _watch(owner: asyncpg.Connection, seen: dict[AllocationId, float]) -> None:
    """Notes when the segments of each allocation can be read; ids of segments rise, so only new ones are read."""
    last = await owner.fetchval("SELECT id FROM billing.segment ORDER BY id DESC LIMIT 1") or AllocationId(int=0)
    while True:
        rows = await owner.fetch("SELECT id, allocation_id FROM billing.segment WHERE id > $1 ORDER BY id", last)
        at = time.monotonic()
        for row in rows:
            seen.setdefault(AllocationId.of(row["allocation_id"]), at)
        last = rows[-1]["id"] if rows else last
        await asyncio.sleep(WATCH_SECONDS)


async def _check(owner: asyncpg.Connection) -> list[str]:
    """The events are dense and applied; every released allocation is charged for its whole seconds, once."""
    await wait_until_quiet(owner)
    findings = await check_delivery(owner)
    rows = await owner.fetch(
        "SELECT a.id, count(s.*) AS segments, count(DISTINCT s.sku) AS skus, sum(s.seconds) AS seconds,"
        " 3 * ceil(extract(epoch FROM a.released_at - a.active_at)) AS expected"
        " FROM scheduler.allocation a LEFT JOIN billing.segment s ON s.allocation_id = a.id AND s.kind <> 'minimum'"
        " WHERE a.released_at > a.active_at GROUP BY a.id"
    )
    wrong = [dict(row) for row in rows if row["skus"] != 3 or row["seconds"] != row["expected"]]
    findings += [f"{len(wrong)} of {len(rows)} allocations are charged wrongly, such as {wrong[0]}"] if wrong else []
    return findings if rows else [*findings, "nothing was charged"]
