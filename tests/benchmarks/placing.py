"""Durable placements on a real stack: every process of it runs, so relay and billing's consumer take their share.

10,000 nodes are rows as the registry's events and the first polls leave them; nobody runs what is placed. A backlog is
stored by the use case that serves the route while the scheduler's worker stands still. What is placed is counted from
the outbox: when its rows were written, when they were numbered, when billing had applied them.
"""

import asyncio
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle, islice
from uuid import uuid4

import asyncpg

from millpond_contracts.bodies.jobs import JobBatch
from millpond_contracts.ids import PoolId, TenantId, VirtualPoolId
from millpond_kernel.db import Database, TenantScope
from millpond_scheduler.usecases.jobs import submit_jobs
from tests.benchmarks.connection import Connection, request
from tests.benchmarks.demand import ORDER, SHAPES, SMALL, add_nodes
from tests.benchmarks.figures import percentile, tell, tell_check
from tests.benchmarks.owner import connect_owner
from tests.benchmarks.processes import cpu_ms_each, cpu_seconds, tree_of
from tests.benchmarks.running import on_stack
from tests.integration.scheduler.world import make_spec, member
from tests.system.checker import judge
from tests.system.checker_delivery import find_backlog
from tests.system.client import Caller, History, Tenant, make_tenant, open_caller, publish_prices
from tests.system.stack import Stack

NODES = 10_000
TENANTS = 8
RUNS = 3
BACKLOG = 10_000
BURST_SECONDS = 30.0
# The burst's backlog lasts for its whole time even if small requests go so many times faster than mixed ones.
BURST_FACTOR = 1.5
LATENCY_PER_SECOND = 2_000
LATENCY_SECONDS = 10.0
LATENCY_TOGETHER = 50
HTTP_SECONDS = 10.0
HTTP_TOGETHER = 100
HTTP_CONNECTIONS = 4
STORED_TOGETHER = 500
PLENTY = 1_000_000_000
PLACE_SECONDS = 240.0
DRAIN_SECONDS = 300.0

_BOUND = "scheduler.allocation_bound.v1"


@dataclass(frozen=True, slots=True)
class Placed:
    """What a backlog became: `lag` events that billing had not applied when the last one was written."""

    count: int
    seconds: float
    lag: int
    drain_seconds: float
    cpu_ms: dict[str, float]


def measure() -> None:
    """Starts a stack, places on it in every way, and lets the checker judge what that left."""
    on_stack(_measure)


async def _measure(stack: Stack) -> None:
    database = Database("scheduler", stack.secrets["MILLPOND_SCHEDULER_DATABASE_URL"], pool_size=2)
    owner = await connect_owner(stack)
    try:
        await database.open()
        async with open_caller(stack.url, stack.operator_key) as operator:
            await publish_prices(operator)
            tenants = await _prepare(operator, database)
            bench = Bench(stack, database, owner, tenants)
            await bench.wait_until_quiet()
            rate = await bench.tell_durable()
            await bench.tell_latency()
            await bench.tell_http()
            await bench.tell_burst(int(BURST_FACTOR * rate * BURST_SECONDS))
            facts = await judge(stack, operator, History(), quiet_seconds=DRAIN_SECONDS)
            tell_check("scheduler.stack", [f"{one.fault}: {one.text}" for one in facts.findings])
    finally:
        await owner.close()
        await database.close()


async def _prepare(operator: Caller, database: Database) -> list[Tenant]:
    """A pool whose nodes need not poll, tenants with plenty, and the nodes."""
    body = {
        "name": "bench",
        "allow_oversubscription": True,
        "device_sharing": "any",
        "unreachable_after_seconds": 3600,
        "lease_seconds": 86_400,
    }
    made = await operator.patiently("POST", "/v1/pools", body)
    assert made.status_code == 201, made.text
    pool = made.json()["pool_id"]
    tenants = []
    for index in range(TENANTS):
        tenant = await make_tenant(operator, f"bench-{index}", cpu_milli=PLENTY, memory_mib=PLENTY, pool_id=pool)
        path = f"/v1/virtual-pools/{tenant.virtual_pool}"
        plenty = {"guaranteed": PLENTY}
        limits = {"cpu": plenty, "memory": plenty, "devices": {flavor: plenty for flavor, _ in SHAPES}}
        await operator("PATCH", path, {"limits": limits}, headers={"If-Match": "*"}, expect=200)
        tenants.append(tenant)
    await add_nodes(database, PoolId.parse(pool), NODES)
    return tenants


@dataclass(slots=True)
class Bench:
    """One stack with its nodes and tenants."""

    stack: Stack
    database: Database
    owner: asyncpg.Connection
    tenants: Sequence[Tenant]

    async def tell_durable(self) -> float:
        """A backlog of mixed requests, with relay and billing at work all the time; the highest rate of a run."""
        runs = [await self._place(BACKLOG) for _ in range(RUNS)]
        tell(
            f"scheduler.durable_placements_per_s.n{NODES}",
            [run.count / run.seconds for run in runs],
            "1/s",
            bar=">= 5000",
            tasks=BACKLOG,
            cpu_ms_each=[run.cpu_ms for run in runs],
        )
        tell(f"scheduler.billed_placements_per_s.n{NODES}", [run.count / run.drain_seconds for run in runs], "1/s")
        return max(run.count / run.seconds for run in runs)

    async def tell_burst(self, tasks: int) -> None:
        """As many small requests as would last for the whole burst; how far relay and billing are behind then."""
        run = await self._place(tasks, seconds=BURST_SECONDS, small=True)
        tell(
            f"scheduler.burst_placements_per_s.n{NODES}",
            [run.count / run.seconds],
            "1/s",
            bar=">= 10000",
            tasks=tasks,
            seconds=round(run.seconds, 1),
            lag_events=run.lag,
            drain_s=round(run.drain_seconds - run.seconds, 1),
            cpu_ms_each=run.cpu_ms,
        )

    async def tell_latency(self) -> None:
        """From the instant of a job's creation to that of its allocation's row, at a steady rate over HTTP."""
        first = await self._head()
        sent = await self._offer(LATENCY_PER_SECOND, LATENCY_SECONDS)
        await self.wait_until_quiet()
        rows = await self.owner.fetch(
            "SELECT extract(epoch FROM b.recorded_at - (s.body->'job'->>'created_at')::timestamptz) * 1000 AS ms"
            " FROM scheduler.outbox b JOIN scheduler.outbox s ON s.subject = b.body->'allocation'->>'job_id'"
            " AND s.type = 'scheduler.job_submitted.v1' WHERE b.type = $1 AND b.seq > $2",
            _BOUND,
            first,
        )
        found = [float(row["ms"]) for row in rows]
        tell(
            "scheduler.submit_to_bound_ms_p99",
            [percentile(found, 0.99)],
            "ms",
            bar="<= 250",
            p50=round(percentile(found, 0.5), 1),
            offered_per_s=LATENCY_PER_SECOND,
            submitted_per_s=round(sent / LATENCY_SECONDS),
            bound=len(found),
        )

    async def tell_http(self) -> None:
        """As many jobs a second as batches over HTTP bring, and until all of them are bound."""
        cpu, first = cpu_seconds(tree_of(self.stack)), await self._head()
        ends = time.monotonic() + HTTP_SECONDS
        sent = sum(await asyncio.gather(*(self._send_until(ends, index) for index in range(HTTP_CONNECTIONS))))
        await self.wait_until_quiet()
        bound = await self.owner.fetchrow(
            "SELECT count(*) AS n, extract(epoch FROM max(recorded_at) - min(recorded_at)) AS seconds"
            " FROM scheduler.outbox WHERE type = $1 AND seq > $2",
            _BOUND,
            first,
        )
        tell(
            "scheduler.http_batch_jobs_per_s",
            [sent / HTTP_SECONDS],
            "1/s",
            bar=">= 2000",
            batch=HTTP_TOGETHER,
            connections=HTTP_CONNECTIONS,
            bound_per_s=round(bound["n"] / float(bound["seconds"])),
            cpu_ms_each=cpu_ms_each(cpu, cpu_seconds(tree_of(self.stack)), sent),
        )

    async def wait_until_quiet(self) -> None:
        """Waits until everything is bound, numbered and applied; what is not quiet in time is told."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while backlog := [*await find_backlog(self.owner), *["tasks wait"] * (await self._count_waiting() > 0)]:
            assert time.monotonic() < deadline, f"not quiet: {backlog}"
            await asyncio.sleep(0.1)

    async def _place(self, count: int, *, seconds: float = PLACE_SECONDS, small: bool = False) -> Placed:
        await self.wait_until_quiet()
        self.stack.signal("worker-scheduler", signal.SIGSTOP)
        try:
            await self._store(count, small=small)
        finally:
            self.stack.signal("worker-scheduler", signal.SIGCONT)
        cpu, first = cpu_seconds(tree_of(self.stack)), await self._head()
        began = 0.0
        while waiting := await self._count_waiting():
            began = began or (time.monotonic() if waiting < count else 0.0)
            if began and time.monotonic() - began > seconds:
                break
            await asyncio.sleep(0.1)
        used, lag = cpu_seconds(tree_of(self.stack)), await self._count_lag()
        rows = await self.owner.fetchrow(
            "WITH b AS (SELECT recorded_at AS at, min(recorded_at) OVER () AS start FROM scheduler.outbox"
            " WHERE type = $1 AND (seq IS NULL OR seq > $2))"
            " SELECT count(*) AS n, min(start) AS start, extract(epoch FROM max(at) - min(start)) AS seconds FROM b"
            " WHERE at < start + $3 * interval '1 second'",
            _BOUND,
            first,
            seconds,
        )
        await self.wait_until_quiet()
        drained = await self.owner.fetchval(
            "SELECT extract(epoch FROM moved_at - $1) FROM billing.cursor WHERE publisher = 'scheduler'", rows["start"]
        )
        return Placed(rows["n"], float(rows["seconds"]), lag, float(drained), cpu_ms_each(cpu, used, rows["n"]))

    async def _store(self, count: int, *, small: bool) -> None:
        requests = cycle(SMALL if small else ORDER)
        for start in range(0, count, STORED_TOGETHER):
            tenant = self.tenants[start // STORED_TOGETHER % len(self.tenants)]
            owner, share = TenantId.parse(tenant.tenant_id), VirtualPoolId.parse(tenant.virtual_pool)
            specs = tuple(
                make_spec(share, cpu=cpu, memory=memory, devices=devices)
                for _, cpu, memory, devices in islice(requests, min(STORED_TOGETHER, count - start))
            )
            async with self.database.begin(TenantScope(owner)) as unit:
                await submit_jobs(unit, member(owner), JobBatch(jobs=specs))

    async def _offer(self, per_second: int, seconds: float) -> int:
        """Batches at a steady rate, each sent in its turn whether the former ones were answered or not."""
        connections = [await Connection.open(self.stack.port) for _ in range(HTTP_CONNECTIONS * len(self.tenants))]
        free: asyncio.Queue[Connection] = asyncio.Queue()
        for connection in connections:
            free.put_nowait(connection)

        async def send(index: int) -> int:
            connection = await free.get()
            try:
                return await self._send(connection, index, LATENCY_TOGETHER)
            finally:
                free.put_nowait(connection)

        began, sending = time.monotonic(), []
        for index in range(int(per_second * seconds / LATENCY_TOGETHER)):
            await asyncio.sleep(max(0.0, began + index * LATENCY_TOGETHER / per_second - time.monotonic()))
            sending.append(asyncio.create_task(send(index)))
        sent = sum(await asyncio.gather(*sending))
        for connection in connections:
            connection.close()
        return sent

    async def _send_until(self, ends: float, index: int) -> int:
        connection, sent = await Connection.open(self.stack.port), 0
        try:
            while time.monotonic() < ends:
                sent += await self._send(connection, index, HTTP_TOGETHER)
        finally:
            connection.close()
        return sent

    async def _send(self, connection: Connection, index: int, jobs: int) -> int:
        """Submits one batch; how many jobs that were."""
        tenant = self.tenants[index % len(self.tenants)]
        body = _write_batch(tenant.virtual_pool, jobs)
        status, answer = await connection.exchange(
            request("POST", "/v1/jobs/batch", tenant.caller.key, body, uuid4().hex)
        )
        assert status == 201, answer[:500]
        return jobs

    async def _head(self) -> int:
        return int(await self.owner.fetchval("SELECT last FROM scheduler.outbox_counter WHERE name = 'outbox'"))

    async def _count_waiting(self) -> int:
        return int(await self.owner.fetchval("SELECT count(*) FROM scheduler.task WHERE state = 'pending'"))

    async def _count_lag(self) -> int:
        """Events of the scheduler that billing has not applied."""
        return int(
            await self.owner.fetchval(
                "SELECT (SELECT count(*) FROM scheduler.outbox WHERE seq IS NULL) + o.last - c.seq"
                " FROM scheduler.outbox_counter o, billing.cursor c"
                " WHERE o.name = 'outbox' AND c.publisher = 'scheduler'"
            )
        )


@lru_cache
def _write_batch(virtual_pool: str, jobs: int) -> bytes:
    """A batch as it is sent, written once: the client shares the cores with what is measured."""
    share = VirtualPoolId.parse(virtual_pool)
    specs = tuple(
        make_spec(share, cpu=cpu, memory=memory, devices=devices)
        for _, cpu, memory, devices in islice(cycle(SMALL), jobs)
    )
    return JobBatch(jobs=specs).model_dump_json().encode()
