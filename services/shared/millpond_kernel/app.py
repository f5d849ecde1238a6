"""Builds the HTTP application of a service: its routes, the routes every service has, and what they need (`Kernel`)."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from redis.asyncio import Redis

from millpond_contracts.bodies.tenants import TenantState, TokenAnswer
from millpond_contracts.events import PUBLISHERS
from millpond_contracts.events.quota import ApiKeyRevoked, RoleChanged, TenantChanged
from millpond_kernel.auth import Authenticator, DenySet
from millpond_kernel.border import Border, Gate, Gates
from millpond_kernel.clients import ServiceAway, ServiceClient, away_problem
from millpond_kernel.db import Database
from millpond_kernel.describing import PROBLEM_RESPONSES, DescribedApp, errors_router, name_operation
from millpond_kernel.doorbell import Doorbell, connect_redis
from millpond_kernel.filters import known_query
from millpond_kernel.following import Follower, StreamBell
from millpond_kernel.health import Health
from millpond_kernel.messages import Message
from millpond_kernel.outbox import doorbell_channel
from millpond_kernel.problem import add_problem_handlers, problem_response
from millpond_kernel.rates import TenantRates
from millpond_kernel.revisions import code_head, may_serve
from millpond_kernel.settings import ServiceSettings
from millpond_kernel.tokens import TokenIssuer
from millpond_kernel.watching import SnapshotSource, feed_router, health_router, public_router

# Who waited so long for its turn to read gives up soon, and had better be told so.
READ_SECONDS = 2.0

# What a page may send and read. Credentials are a header that it sets itself, never a cookie.
_CORS: dict[str, Any] = {
    "allow_methods": ("GET", "POST", "PUT", "PATCH", "DELETE"),
    "allow_headers": ("Authorization", "Content-Type", "Idempotency-Key", "If-Match", "Last-Event-ID", "X-Request-Id"),
    "expose_headers": ("ETag", "Idempotency-Replayed", "Location", "Retry-After", "X-Request-Id"),
    "max_age": 600,
}


@dataclass(slots=True)
class Kernel:
    """What the routes of one service use. `woken` is replaced and set whenever this service published events.

    `long_polls` = functions that end the waits of one kind each.
    """

    settings: ServiceSettings
    service: str
    database: Database
    redis: "Redis"
    clients: dict[str, ServiceClient]
    authenticator: Authenticator
    doorbell: Doorbell
    rates: TenantRates
    health: Health
    issuer: TokenIssuer | None = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    long_polls: list[Callable[[], None]] = field(default_factory=list)

    def end_waits(self) -> None:
        """Ends open watches and long polls, since the process is about to stop; else it would wait for them."""
        self.stopping.set()
        self.wake()
        for end in self.long_polls:
            end()

    def wake(self) -> None:
        """Wakes every open watch of this process."""
        self.woken.set()
        self.woken = asyncio.Event()


@dataclass(frozen=True, slots=True)
class ServiceApp:
    """What a service gives to `build_app`.

    `issues` = tokens of this service's issuer name are signed here. `exchange` = how API keys are exchanged without
    HTTP (quota). `standstill` = what follows for people while its worker does not work.
    `on_start`/`on_stop` run inside the lifespan, after and before the kernel's own parts.
    """

    settings: ServiceSettings
    routers: Sequence[APIRouter]
    standstill: str
    snapshots: Mapping[str, SnapshotSource] = field(default_factory=dict)
    issues: bool = False
    exchange: Callable[["Kernel", str], Awaitable[TokenAnswer]] | None = None
    on_start: Callable[[FastAPI, "Kernel"], Awaitable[None]] | None = None
    on_stop: Callable[[FastAPI, "Kernel"], Awaitable[None]] | None = None
    transport: httpx.AsyncBaseTransport | None = None


def build_app(service: ServiceApp) -> FastAPI:
    """The FastAPI application of one service, described at `/openapi/<service>.json` and `/docs/<service>`."""
    name = service.settings.service
    app = DescribedApp(
        title=f"Millpond {name}",
        version="1",
        lifespan=_lifespan(service),
        openapi_url=f"/openapi/{name}.json",
        docs_url=f"/docs/{name}",
        redoc_url=None,
        # A redirect would be followed without the body, or with the credentials to another host.
        redirect_slashes=False,
        responses=PROBLEM_RESPONSES,
        dependencies=[Depends(known_query)],
        generate_unique_id_function=name_operation,
    )
    public = (*service.routers, public_router(name))
    app.public = public
    add_problem_handlers(app)
    app.add_exception_handler(ServiceAway, _on_service_away)
    for router in public:
        app.include_router(router)
    app.include_router(feed_router(name, dict(service.snapshots)))
    app.include_router(health_router(name))
    app.include_router(errors_router(name))
    app.add_middleware(
        Border, service=name, max_body_bytes=service.settings.max_body_bytes, gates=_gates(service.settings)
    )
    if service.settings.cors_origins:
        # Outermost, so that a page may also read what the border answers.
        app.add_middleware(CORSMiddleware, allow_origins=service.settings.cors_origins, **_CORS)
    return app


def _gates(settings: ServiceSettings) -> Gates:
    """Two connections are never taken by writes, and half of them never by reads."""
    connections = settings.database_pool_size
    return Gates(
        writes=Gate("writes", max(1, connections - 2), settings.writes_waiting),
        reads=Gate("reads", max(1, connections // 2), settings.reads_waiting, READ_SECONDS),
    )


async def _on_service_away(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceAway)
    problem = away_problem(error)
    return problem_response(problem.code, problem.detail, (), problem.retry_after_seconds)


def make_kernel(service: ServiceApp) -> Kernel:
    """The parts of a service, not yet connected."""
    settings, name = service.settings, service.settings.service
    redis = connect_redis(settings.redis_url.get_secret_value())
    database = Database(name, settings.database_url.get_secret_value(), pool_size=settings.database_pool_size)
    clients = {
        other: ServiceClient(
            other, settings.url_of(other), settings.service_key.get_secret_value(), transport=service.transport
        )
        for other in PUBLISHERS
    }
    issuers = {issuer: clients[issuer] for issuer in ("quota", "registry") if not (service.issues and issuer == name)}
    authenticator = Authenticator(database, issuers, DenySet())
    doorbell = Doorbell(redis, doorbell_channel(settings.redis_prefix, name))
    database.on_commit = doorbell.ring
    rates = TenantRates(
        name, settings.tenant_requests_per_second, settings.tenant_requests_burst, settings.tenant_streams
    )
    health = Health(name, database, redis, authenticator, service.standstill)
    return Kernel(settings, name, database, redis, clients, authenticator, doorbell, rates, health)


def _lifespan(service: ServiceApp) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            kernel = app.state.kernel = await _started_kernel(service, stack)
            if service.on_start is not None:
                await service.on_start(app, kernel)
            if service.on_stop is not None:
                stack.push_async_callback(service.on_stop, app, kernel)
            gc.collect()
            gc.freeze()
            gc.set_threshold(50_000, 20, 20)
            yield

    return lifespan


async def _started_kernel(service: ServiceApp, stack: AsyncExitStack) -> Kernel:
    """The kernel with its connections and tasks running; `stack` ends them in reverse order."""
    kernel = make_kernel(service)
    settings, name = service.settings, kernel.service
    stack.push_async_callback(kernel.redis.aclose)
    stack.push_async_callback(kernel.database.close)
    for client in kernel.clients.values():
        stack.push_async_callback(client.close)
    await kernel.database.open(settings.database_wait_seconds)
    await wait_for_head(kernel.database, settings.database_wait_seconds)
    if service.issues:
        kernel.issuer = await TokenIssuer.load(kernel.database, name)
    if service.exchange is not None:
        kernel.authenticator.exchange = partial(service.exchange, kernel)
    await kernel.authenticator.read_keys()
    stack.push_async_callback(kernel.health.stop)
    kernel.doorbell.start()
    stack.push_async_callback(kernel.doorbell.stop)
    denying = Follower(kernel.redis, kernel.clients["quota"], "quota", settings.redis_prefix, deny_from(kernel))
    waking = StreamBell(kernel.redis, name, settings.redis_prefix, kernel.wake)
    for follower in (denying, waking):
        follower.start()
        stack.push_async_callback(follower.stop)
    return kernel


def deny_from(kernel: Kernel) -> Callable[[Message], None]:
    """Feeds the deny set from quota's events."""

    def take(message: Message) -> None:
        if message.type == ApiKeyRevoked.type:
            kernel.authenticator.deny.revoke(str(ApiKeyRevoked.model_validate_json(message.body()).api_key_id))
        elif message.type == TenantChanged.type:
            tenant = TenantChanged.model_validate_json(message.body()).tenant_view
            kernel.authenticator.deny.set_tenant(str(tenant.tenant_id), active=tenant.state is TenantState.ACTIVE)
        elif message.type == RoleChanged.type:
            changed = RoleChanged.model_validate_json(message.body())
            kernel.authenticator.deny.change_role(str(changed.api_key_id), changed.role)

    return take


async def wait_for_head(database: Database, wait_seconds: float) -> None:
    """Waits until the migrations reached this code's head, or passed it; services never migrate themselves.

    Raises:
        RuntimeError: not reached in time.
    """
    deadline = time.monotonic() + wait_seconds
    while not may_serve(revision := await database.schema_revision()):
        if time.monotonic() >= deadline:
            raise RuntimeError(f"database at revision {revision}, code at {code_head()}: run `millpond migrate`")
        await asyncio.sleep(0.2)
