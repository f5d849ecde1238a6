"""Submits a second over HTTP: one job a request against one uvicorn of a real stack, fsync on, everything live.

The jobs wait at their limit, so that nothing but the submit is measured beside what the stack does with waiting jobs.
`alone` are the same figures with the workers stopped: what the HTTP process and PostgreSQL can do by themselves.
"""

import asyncio
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from tests.benchmarks.connection import Connection, request, to_json
from tests.benchmarks.figures import percentile, tell, tell_check
from tests.benchmarks.owner import connect_owner, wait_until_quiet
from tests.benchmarks.processes import cpu_ms_each, cpu_seconds, tree_of
from tests.benchmarks.running import on_stack
from tests.system.checker_delivery import check_delivery
from tests.system.client import Tenant, job_body, make_tenant, open_caller
from tests.system.stack import Stack

CONNECTIONS = (8, 32)
RUNS = 3
SECONDS = 4.0
WORKERS = ("worker", "worker-scheduler")


def measure() -> None:
    """Starts a stack, submits to it, and checks that every acknowledged job is there once."""
    on_stack(_measure)


@dataclass(slots=True)
class Load:
    """What clients saw in one run."""

    latencies_ms: list[float] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)


async def _measure(stack: Stack) -> None:
    async with open_caller(stack.url, stack.operator_key) as operator:
        # One milli of CPU admits nothing: every job waits.
        tenant = await make_tenant(operator, "bench", cpu_milli=1, memory_mib=1)
    accepted = 0
    for connections in CONNECTIONS:
        accepted += await _tell_runs(stack, tenant, connections, "")
    for worker in WORKERS:
        stack.signal(worker, signal.SIGSTOP)
    try:
        for connections in CONNECTIONS:
            accepted += await _tell_runs(stack, tenant, connections, ".alone")
    finally:
        for worker in WORKERS:
            stack.signal(worker, signal.SIGCONT)
    tell_check("http", await _check(stack, accepted))


async def _tell_runs(stack: Stack, tenant: Tenant, connections: int, suffix: str) -> int:
    cpu = cpu_seconds(tree_of(stack))
    loads = [await _run(stack.port, tenant, connections) for _ in range(RUNS)]
    accepted = sum(len(load.latencies_ms) for load in loads)
    each = cpu_ms_each(cpu, cpu_seconds(tree_of(stack)), accepted)
    refused = sorted({status for load in loads for status in load.refused})
    assert not refused, f"submits were refused: {refused}"
    name = f"c{connections}{suffix}"
    tell(f"http.submits_per_s.{name}", [len(load.latencies_ms) / SECONDS for load in loads], "1/s", cpu_ms_each=each)
    for share in (50, 99):
        values = [percentile(load.latencies_ms, share / 100) for load in loads]
        tell(f"http.submit_ms_p{share}.{name}", values, "ms")
    return accepted


async def _run(port: int, tenant: Tenant, connections: int) -> Load:
    body = to_json(job_body(tenant.virtual_pool, "bench", ["/bin/true"]))
    opened = [await Connection.open(port) for _ in range(connections)]
    load, end = Load(), time.monotonic() + SECONDS
    try:
        await asyncio.gather(*(_submit_until(end, one, tenant.caller.key, body, load) for one in opened))
    finally:
        for one in opened:
            one.close()
    return load


async def _submit_until(end: float, connection: Connection, key: str, body: bytes, load: Load) -> None:
    while (began := time.monotonic()) < end:
        status, _ = await connection.exchange(request("POST", "/v1/jobs", key, body, uuid4().hex))
        if status == 201:
            load.latencies_ms.append((time.monotonic() - began) * 1000)
        else:
            load.refused.append(status)


async def _check(stack: Stack, accepted: int) -> Sequence[str]:
    connection = await connect_owner(stack)
    try:
        await wait_until_quiet(connection)
        findings = await check_delivery(connection)
        for what in ("job", "task"):
            rows = await connection.fetchval(f"SELECT count(*) FROM scheduler.{what}")
            findings += [] if rows == accepted else [f"{rows} rows of {what}, {accepted} jobs were acknowledged"]
        return findings
    finally:
        await connection.close()
