"""The worker process of a service: relay, consumers, control loops, and telling how they are."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import httpx
from redis.asyncio import Redis

from millpond_contracts.events import PUBLISHERS
from millpond_kernel.app import wait_for_head
from millpond_kernel.clients import ServiceClient
from millpond_kernel.consuming import ConsumerRunner
from millpond_kernel.db import DATABASE_ERRORS, SYSTEM, Database
from millpond_kernel.doorbell import Doorbell, connect_redis
from millpond_kernel.loops import Loop, LoopRunner, Unwell
from millpond_kernel.observability import log
from millpond_kernel.outbox import Relay, doorbell_channel
from millpond_kernel.pausing import Stop, end_task, sleep_or_stop
from millpond_kernel.retention import retention_loop
from millpond_kernel.settings import ServiceSettings
from millpond_kernel.streams import Consumer

STATE_SECONDS = 3.0
# Above these the worker is not ready and the service is degraded.
MAX_LAG_EVENTS = 5_000
MAX_UNPUBLISHED_SECONDS = 10.0
# A publisher that is started again is away for a moment; no pass takes minutes.
MAX_TROUBLE_SECONDS = 10.0
MAX_PASS_SECONDS = 300.0


@dataclass(slots=True)
class WorkerKernel:
    """What consumers and loops of one service use."""

    settings: ServiceSettings
    service: str
    database: Database
    redis: "Redis"
    clients: dict[str, ServiceClient]


@dataclass(frozen=True, slots=True)
class ServiceWorker:
    """What a service gives to the kernel to run as its worker.

    `parts` builds consumers and loops once the kernel is connected. `tasks` builds further coroutines that run until
    `stop`.
    """

    settings: ServiceSettings
    parts: Callable[[WorkerKernel], tuple[Sequence[Consumer], Sequence[Loop]]]
    tasks: Callable[[WorkerKernel], Sequence[Callable[[Stop], Awaitable[None]]]] | None = None
    on_start: Callable[[WorkerKernel], Awaitable[None]] | None = None
    transport: httpx.AsyncBaseTransport | None = None


@dataclass(slots=True)
class _Running:
    consumers: list[Consumer] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    unwell_since: datetime | None = None


@asynccontextmanager
async def connected_kernel(worker: ServiceWorker) -> AsyncIterator[WorkerKernel]:
    """The connections of a service's worker, opened at a database that is at head, closed at the end."""
    settings, name = worker.settings, worker.settings.service
    async with AsyncExitStack() as stack:
        redis = connect_redis(settings.redis_url.get_secret_value())
        stack.push_async_callback(redis.aclose)
        database = Database(name, settings.database_url.get_secret_value(), pool_size=settings.database_pool_size)
        stack.push_async_callback(database.close)
        clients = {other: _client(worker, other) for other in PUBLISHERS}
        for client in clients.values():
            stack.push_async_callback(client.close)
        await database.open(settings.database_wait_seconds)
        await wait_for_head(database, settings.database_wait_seconds)
        doorbell = Doorbell(redis, doorbell_channel(settings.redis_prefix, name))
        doorbell.start()
        stack.push_async_callback(doorbell.stop)
        database.on_commit = doorbell.ring
        yield WorkerKernel(settings, name, database, redis, clients)


def _client(worker: ServiceWorker, other: str) -> ServiceClient:
    key = worker.settings.service_key.get_secret_value()
    return ServiceClient(other, worker.settings.url_of(other), key, transport=worker.transport)


async def run_worker(worker: ServiceWorker, stop: asyncio.Event) -> None:
    """Runs the worker of one service until `stop` is set. A part that fails for good ends the process."""
    async with connected_kernel(worker) as kernel:
        if worker.on_start is not None:
            await worker.on_start(kernel)
        consumers, loops = worker.parts(kernel)
        loops = [*loops, retention_loop(kernel.database)]
        running = _Running(list(consumers), loops)
        relay = Relay(kernel.database, kernel.redis, kernel.settings.redis_prefix)
        coroutines: list[Awaitable[None]] = [relay.run(stop), _tell_state(kernel, running, stop)]
        coroutines += [LoopRunner(kernel.database, loop).run(stop) for loop in loops]
        coroutines += [_runner(kernel, consumer).run(stop) for consumer in consumers]
        if worker.tasks is not None:
            coroutines += [task(stop) for task in worker.tasks(kernel)]
        await _run_all(coroutines, stop, kernel.settings.worker_grace_seconds)


def _runner(kernel: WorkerKernel, consumer: Consumer) -> ConsumerRunner:
    return ConsumerRunner(
        kernel.database,
        kernel.redis,
        kernel.clients[consumer.publisher],
        consumer,
        prefix=kernel.settings.redis_prefix,
        silence_seconds=kernel.settings.feed_silence_seconds,
    )


async def _run_all(coroutines: Sequence[Awaitable[None]], stop: asyncio.Event, grace_seconds: float) -> None:
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    stopping = asyncio.ensure_future(stop.wait())
    done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
    failed = [task for task in done if task is not stopping and task.exception() is not None]
    stop.set()
    await asyncio.wait(tasks, timeout=grace_seconds)
    await asyncio.gather(*(end_task(task) for task in [*tasks, stopping]))
    for task in failed:
        error = task.exception()
        assert error is not None
        raise error


async def _tell_state(kernel: WorkerKernel, running: _Running, stop: Stop) -> None:
    """Writes this worker's state every few seconds, for readiness, `millpond status` and alerts."""
    worker, started = uuid4(), await kernel.database.now()
    while not stop.is_set():
        try:
            await _write_state(kernel, running, worker, started)
        except DATABASE_ERRORS as error:
            log.debug("state_not_told", service=kernel.service, error=type(error).__name__)
        await sleep_or_stop(stop, STATE_SECONDS)
    try:
        async with kernel.database.begin(SYSTEM) as unit:
            await unit.execute("DELETE FROM worker_state WHERE worker = $1", worker)
    except DATABASE_ERRORS:
        log.debug("state_not_removed", service=kernel.service)


async def _write_state(kernel: WorkerKernel, running: _Running, worker: UUID, started: Any) -> None:
    async with kernel.database.begin(SYSTEM) as unit:
        unpublished = await unit.fetchval(
            "SELECT coalesce(extract(epoch FROM clock_timestamp() - min(recorded_at)), 0)::float8"
            " FROM outbox WHERE seq IS NULL"
        )
        parked = await unit.fetchval("SELECT count(*) FROM dead_letter WHERE replayed_at IS NULL")
        state, unwell = _state(kernel.service, running, float(unpublished), int(parked))
        running.unwell_since = None if unwell is None else running.unwell_since or datetime.now(UTC)
        if unwell is not None and running.unwell_since is not None:
            state |= asdict(unwell) | {"since": running.unwell_since.isoformat(timespec="seconds")}
        await unit.execute(
            "INSERT INTO worker_state (worker, started_at, updated_at, ready, state, pid)"
            " VALUES ($1, $2, clock_timestamp(), $3, $4, $5) ON CONFLICT (worker) DO UPDATE"
            " SET updated_at = excluded.updated_at, ready = excluded.ready, state = excluded.state",
            worker,
            started,
            unwell is None,
            state,
            os.getpid(),
        )
        await unit.execute("DELETE FROM worker_state WHERE updated_at < clock_timestamp() - interval '1 hour'")


def _state(
    service: str, running: _Running, unpublished_seconds: float, parked: int
) -> tuple[dict[str, Any], Unwell | None]:
    now = time.monotonic()
    state: dict[str, Any] = {
        "lag": {f"{consumer.name}<-{consumer.publisher}": consumer.lag for consumer in running.consumers},
        "loops": {
            loop.name: {
                "failures": loop.failures,
                "error": _kind(loop.last_error),
                "seconds_ago": None if loop.last_pass_monotonic is None else round(now - loop.last_pass_monotonic, 1),
            }
            for loop in running.loops
        },
        "unpublished_seconds": round(unpublished_seconds, 1),
        "parked_events": parked,
    }
    unwell = (
        _unpublished(unpublished_seconds)
        or next(filter(None, (_consumer_unwell(service, each, now) for each in running.consumers)), None)
        or next(filter(None, (_loop_unwell(each, now) for each in running.loops)), None)
        or _parked(service, parked)
    )
    return state, unwell


def _unpublished(seconds: float) -> Unwell | None:
    if seconds <= MAX_UNPUBLISHED_SECONDS:
        return None
    return Unwell(
        f"the oldest unpublished event waits for {seconds:.0f} s",
        "other services and watches learn of changes later; nothing is lost",
        "look at Redis, which the relay may wait for, and at the worker's log",
    )


def _consumer_unwell(service: str, consumer: Consumer, now: float) -> Unwell | None:
    name, effect = f"{consumer.name}<-{consumer.publisher}", f"what {service} knows of {consumer.publisher} is old"
    if consumer.trouble is not None and now - consumer.trouble_monotonic >= MAX_TROUBLE_SECONDS:
        remedy = f"see `millpond status {consumer.publisher}`"
        if consumer.is_ahead:
            remedy = f"load it anew with `millpond rebuild {service} {consumer.name}`"
        return Unwell(f"{name} {consumer.trouble}", effect, remedy)
    if consumer.lag <= MAX_LAG_EVENTS:
        return None
    return Unwell(
        f"{name} is {consumer.lag} events behind",
        effect,
        "wait while the number falls; if it does not, see the worker's log",
    )


def _loop_unwell(loop: Loop, now: float) -> Unwell | None:
    effect, remedy = f"what the loop {loop.name} looks after stands still", "see the worker's log"
    if loop.failures >= 3:
        return Unwell(f"the loop {loop.name} fails: {_kind(loop.last_error)}", effect, remedy)
    if loop.began_monotonic is not None and now - loop.began_monotonic > MAX_PASS_SECONDS:
        reason = f"the loop {loop.name} has not ended its pass for {now - loop.began_monotonic:.0f} s"
        return Unwell(reason, effect, f"{remedy}, and end the process: another is started by itself")
    if loop.ran and loop.unwell is not None and (told := loop.unwell()):
        return told
    return None


def _parked(service: str, parked: int) -> Unwell | None:
    if not parked:
        return None
    return Unwell(
        f"{parked} events are parked, since they kept failing",
        "what they tell is missing here; all others are applied",
        f"see `millpond dead-letters {service}`; mend the cause, then `--replay` each",
    )


def _kind(error: str | None) -> str | None:
    """The kind of an error. Anybody may read how a service is; what an error says may name a tenant's things."""
    return None if error is None else error.partition(":")[0]
