"""The whole chain under load: thousands of agents, steady submits and reads, jobs that run, end and are charged.

`MILLPOND_BENCH_AGENTS`, `_SUBMITS`, `_READS` (a second) and `_SECONDS` change the load. Before it stands a search for
the knee: with the same agents and reads the submits rise step by step until jobs end more slowly than they come.
"""

import asyncio
import itertools
import os
import random
import resource
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import uuid4

from tests.benchmarks.connection import Connection, request, to_json
from tests.benchmarks.crowd import DEVICES, FLAVOR, CrowdAgent, Seen, join_crowd, run_agents
from tests.benchmarks.figures import percentile, shorten_all, tell, tell_check
from tests.benchmarks.load_costs import AGENTS_ASKED, measure_costs
from tests.benchmarks.owner import connect_owner, wait_until_quiet
from tests.benchmarks.processes import cpu_seconds, pss_mb, sum_by_title, tree_of
from tests.benchmarks.running import on_stack
from tests.system.checker_delivery import check_delivery, find_backlog
from tests.system.client import Caller, Tenant, open_caller, publish_prices
from tests.system.stack import Stack
from tests.waiting import eventually

AGENTS = int(os.environ.get("MILLPOND_BENCH_AGENTS", "2000"))
SUBMITS = float(os.environ.get("MILLPOND_BENCH_SUBMITS", "100"))
READS = float(os.environ.get("MILLPOND_BENCH_READS", "100"))
SECONDS = float(os.environ.get("MILLPOND_BENCH_SECONDS", "300"))
STEP_SECONDS = 20.0
STEPS = (0.0, 10.0, 25.0, 50.0, 100.0)
FIRST_SECONDS = 10.0
CONNECTIONS = 32
# What is not answered so long after the last request counts as not answered.
PATIENCE_SECONDS = 10.0
KEEPS_UP = 0.95


def measure() -> None:
    """Starts a stack, lets the crowd join, raises the load to the knee, then holds the wanted load."""
    _allow_many_files()
    on_stack(_measure)


@dataclass(slots=True)
class Window:
    """What clients saw of one stretch of load. Reads are (second since the start, milliseconds)."""

    reads: list[tuple[float, float]] = field(default_factory=list)
    submit_ms: list[float] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    late: int = 0

    def reads_p99(self, begin: float, end: float = float("inf")) -> float:
        """Milliseconds of reads that began in [begin, end); 0 when there were none."""
        found = [took for at, took in self.reads if begin <= at < end]
        return _p99(found)


async def _measure(stack: Stack) -> None:
    async with open_caller(stack.url, stack.operator_key) as operator:
        await publish_prices(operator)
        pool = (await operator.items("/v1/pools"))[0]["pool_id"]
        token = (await operator("POST", "/v1/join-tokens", {"pool_id": pool}, expect=201)).json()["token"]
        seen = Seen()
        # Before the crowd: agents that do nothing for so long would be silent nodes, and each a recovery.
        few = await _join(stack, token, range(min(AGENTS, AGENTS_ASKED)), seen)
        await measure_costs(stack, few, operator.key)
        began = time.monotonic()
        crowd = few + await _join(stack, token, range(len(few), AGENTS), seen)
        tell("load.join_s", [time.monotonic() - began], "s", agents=AGENTS - len(few))
        tenant = await _make_tenant(operator, pool)
        broken = asyncio.Event()
        running = asyncio.create_task(run_agents(crowd, broken.set))
        try:
            await _measure_steps(stack, tenant, seen)
            await _measure_long(stack, tenant, seen)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert not broken.is_set(), "an agent of the crowd broke"


async def _join(stack: Stack, token: str, numbers: range, seen: Seen) -> list[CrowdAgent]:
    agents = await join_crowd(stack.url, token, numbers)
    return [CrowdAgent(stack.port, agent, number, seen) for number, agent in zip(numbers, agents, strict=True)]


async def _make_tenant(operator: Caller, pool: str) -> Tenant:
    """A tenant that may hold every device of the crowd, as soon as quota has heard of them."""
    tenant = (await operator("POST", "/v1/tenants", {"name": "load"}, expect=201)).json()["tenant_id"]
    limits = {
        "cpu": {"guaranteed": 4000 * AGENTS},
        "memory": {"guaranteed": 8192 * AGENTS},
        "devices": {FLAVOR: {"guaranteed": 1000 * DEVICES * AGENTS}},
    }
    body = {"name": "load", "tenant_id": tenant, "pool_id": pool, "limits": limits}

    async def made() -> str | None:
        answer = await operator("POST", "/v1/virtual-pools", body)
        assert answer.status_code in (201, 409, 422), answer.text
        return str(answer.json()["virtual_pool_id"]) if answer.status_code == 201 else None

    virtual_pool = await eventually(made, 60)
    key_body = {"name": "load", "role": "member", "tenant_id": tenant}
    key = (await operator("POST", "/v1/api-keys", key_body, expect=201)).json()["secret"]
    return Tenant(tenant, virtual_pool, Caller(operator.http, key))


async def _measure_steps(stack: Stack, tenant: Tenant, seen: Seen) -> None:
    """Raises the submits until jobs end more slowly than they come; tells what each step cost, and what a job does.

    A job's part is what the processes of the stack take more than without any, by the jobs that ended, in the last step
    that was kept up with.
    """
    kept, each, at_rest = 0.0, dict[str, float](), dict[str, float]()
    for rate in STEPS:
        ended, meter = seen.ended, Meter.start(stack)
        window = await _load(stack.port, tenant, STEP_SECONDS, rate, READS)
        cores = meter.read(stack)
        name = f"load.step.submits_{rate:g}"
        ends = (seen.ended - ended) / STEP_SECONDS
        tell(
            f"{name}.ends_per_s",
            [ends],
            "1/s",
            **cores,
            refused=window.refused,
            late=window.late,
            reads_p99_ms=round(window.reads_p99(FIRST_SECONDS if rate == 0.0 else 0.0), 1),
            submit_p99_ms=round(_p99(window.submit_ms), 1),
            heartbeat_p99_ms=round(_p99(seen.heartbeat_ms), 1),
        )
        seen.heartbeat_ms.clear()
        # The first ends come some seconds after the first submits.
        if rate and ends < KEEPS_UP * rate * (1 - 4 / STEP_SECONDS):
            break
        kept = rate
        if rate:
            each = {title: 1000 * (used - at_rest.get(title, 0.0)) / ends for title, used in cores["cores"].items()}
        else:
            at_rest = cores["cores"]
    tell("load.cpu_ms.job", [sum(each.values())], "ms", by=shorten_all(each), submits_per_s=kept)
    tell("load.knee_submits_per_s", [kept], "1/s", agents=AGENTS, reads_per_s=READS)


async def _measure_long(stack: Stack, tenant: Tenant, seen: Seen) -> None:
    """The wanted load for minutes; then everything must come to rest, whole."""
    seen.answers.clear()
    ended, meter, memory = seen.ended, Meter.start(stack), asyncio.create_task(_watch_memory(stack))
    window = await _load(stack.port, tenant, SECONDS, SUBMITS, READS)
    cores = meter.read(stack)
    sizes = await _end(memory)
    accepted = len(window.submit_ms)
    about = {"agents": AGENTS, "submits_per_s": SUBMITS, "reads_per_s": READS, "seconds": SECONDS}
    tell("load.accepted_per_s", [accepted / SECONDS], "1/s", bar=f">= {0.99 * SUBMITS:g}", late=window.late, **about)
    tell("load.ends_per_s", [(seen.ended - ended) / SECONDS], "1/s", **cores)
    tell("load.reads_p99_ms", [window.reads_p99(FIRST_SECONDS)], "ms", bar="<= 100")
    tell("load.reads_p99_ms.first_10_s", [window.reads_p99(0.0, FIRST_SECONDS)], "ms", bar="<= 250")
    tell("load.submit_ms_p99", [_p99(window.submit_ms)], "ms")
    tell("load.heartbeat_ms_p99", [_p99(seen.heartbeat_ms)], "ms")
    lost = sum(n for (kind, status), n in seen.answers.items() if kind == "heartbeat" and status != 200)
    tell("load.heartbeats_lost", [lost], "heartbeats", bar="= 0", sent=_count(seen, "heartbeat"))
    tell("load.refused", [sum(window.refused.values())], "requests", bar="= 0", by=window.refused | seen.failures())
    sums = [round(sum(size.values())) for size in sizes]
    grown = {title: round(size - sizes[0].get(title, 0.0), 1) for title, size in sizes[-1].items()}
    tell("load.pss_mb", sums[-1:], "MB", every_30_s=sums, grown={title: mb for title, mb in grown.items() if mb >= 1})
    connection = await connect_owner(stack)
    try:
        began = time.monotonic()
        behind = await find_backlog(connection)
        await wait_until_quiet(connection, 300)
        tell("load.drain_s", [time.monotonic() - began], "s", behind=len(behind))
        tell_check("load", await check_delivery(connection))
    finally:
        await connection.close()


async def _load(port: int, tenant: Tenant, seconds: float, submits: float, reads: float) -> Window:
    """Sends at fixed instants, whatever the answers do: a slow server gets no fewer requests."""
    window, jobs = Window(), list[str]()
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await Connection.open(port))
    began = time.monotonic()
    body = _job(tenant.virtual_pool)
    paths = itertools.cycle(
        ("/v1/jobs?limit=20", "/v1/jobs/{job}", "/v1/jobs/{job}/explain", "/v1/me", "/v1/jobs/{job}")
    )

    async def submit() -> None:
        sent = time.monotonic()
        connection = await free.get()
        try:
            status, answer = await connection.exchange(
                request("POST", "/v1/jobs", tenant.caller.key, body, uuid4().hex)
            )
        finally:
            free.put_nowait(connection)
        if status == 201:
            window.submit_ms.append((time.monotonic() - sent) * 1000)
            jobs.append(answer.partition(b'"job_id":"')[2][:40].partition(b'"')[0].decode())
        else:
            window.refused[f"submit {status}"] = window.refused.get(f"submit {status}", 0) + 1

    async def read() -> None:
        sent = time.monotonic()
        path = next(paths) if jobs else "/v1/me"
        connection = await free.get()
        try:
            status, _ = await connection.exchange(
                request("GET", path.format(job=random.choice(jobs[-200:]) if jobs else ""), tenant.caller.key)
            )
        finally:
            free.put_nowait(connection)
        if status == 200:
            window.reads.append((sent - began, (time.monotonic() - sent) * 1000))
        else:
            window.refused[f"read {status}"] = window.refused.get(f"read {status}", 0) + 1

    try:
        async with asyncio.timeout(seconds + PATIENCE_SECONDS), asyncio.TaskGroup() as group:
            for action, rate in ((submit, submits), (read, reads)):
                if rate:
                    group.create_task(_at_rate(group, action, rate, began, seconds, window))
    except TimeoutError:
        sent = int(seconds * submits) + int(seconds * reads)
        window.refused["no answer"] = sent - len(window.reads) - len(window.submit_ms) - sum(window.refused.values())
    while not free.empty():
        free.get_nowait().close()
    return window


def _job(virtual_pool: str) -> bytes:
    """A job of one task on one device."""
    resources = {"cpu_milli": 100, "memory_mib": 64, "devices": [{"count": 1}]}
    group = {"resources": resources, "run": {"command": ["/bin/true"]}}
    return to_json({"name": "load", "virtual_pool": virtual_pool, "groups": [group]})


async def _at_rate(
    group: asyncio.TaskGroup,
    action: Callable[[], Coroutine[None, None, None]],
    rate: float,
    began: float,
    seconds: float,
    window: Window,
) -> None:
    for number in range(int(seconds * rate)):
        due = began + number / rate
        if (pause := due - time.monotonic()) > 0:
            await asyncio.sleep(pause)
        elif pause < -1.0:
            window.late += 1
        group.create_task(action())


async def _watch_memory(stack: Stack) -> list[dict[str, float]]:
    """MB of the stack's processes by title, every 30 seconds and at the end."""
    sizes = []
    while True:
        sizes.append(sum_by_title(pss_mb(tree_of(stack))))
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return [*sizes, sum_by_title(pss_mb(tree_of(stack)))]


async def _end(watch: asyncio.Task[list[dict[str, float]]]) -> list[dict[str, float]]:
    watch.cancel()
    return await watch


@dataclass(frozen=True, slots=True)
class Meter:
    """CPU seconds at a beginning: of each process of the stack, and of this one, which is all clients."""

    began: float
    stack: dict[int, float]
    clients: float

    @classmethod
    def start(cls, stack: Stack) -> Self:
        return cls(time.monotonic(), cpu_seconds(tree_of(stack)), time.process_time())

    def read(self, stack: Stack) -> dict[str, Any]:
        """Cores that each process of the stack used since, and the clients', which no user of Millpond pays here."""
        seconds = time.monotonic() - self.began
        used = {pid: (after - self.stack.get(pid, 0.0)) / seconds for pid, after in cpu_seconds(tree_of(stack)).items()}
        cores = shorten_all({title: share for title, share in sum_by_title(used).items() if share >= 0.005})
        return {"cores": cores, "clients_cores": round((time.process_time() - self.clients) / seconds, 3)}


def _p99(values: Sequence[float]) -> float:
    return percentile(values, 0.99) if values else 0.0


def _count(seen: Seen, kind: str) -> int:
    return sum(n for (one, _), n in seen.answers.items() if one == kind)


def _allow_many_files() -> None:
    """Two connections an agent here, and as many there."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
