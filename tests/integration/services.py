"""All services in one process for a test: their applications behind one client, their workers, and the first keys."""

import asyncio
import importlib
import importlib.util
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

from millpond_contracts.bodies.tenants import Role
from millpond_kernel.serve import Joined
from millpond_kernel.settings import ServiceSettings
from millpond_kernel.worker import ServiceWorker, run_worker
from millpond_quota.bootstrap import bootstrap, make_key
from tests.integration.databases import MigratedDatabase

# In the order of starting: the others ask quota while they start, and in one process nobody answers before it did.
ALL = ("quota", "registry", "scheduler", "billing", "autoscaler")


def existing(services: Sequence[str] = ALL) -> list[str]:
    """Those of the services whose application exists."""
    return [name for name in ALL if name in services and importlib.util.find_spec(f"millpond_{name}.app") is not None]


@dataclass(slots=True)
class Services:
    """Running services. `http` speaks to all of them; `as_key` gives a client with credentials."""

    http: httpx.AsyncClient
    operator_key: str
    settings: dict[str, ServiceSettings]
    transport: httpx.AsyncBaseTransport
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def as_key(self, key: str | None = None) -> "Caller":
        """A caller with this API key, or the operator."""
        return Caller(self.http, key or self.operator_key)

    def make_worker(self, name: str) -> ServiceWorker:
        """A service's worker, which `run_worker` runs."""
        worker: ServiceWorker = importlib.import_module(f"millpond_{name}.worker").create_worker(
            self.settings[name], transport=self.transport
        )
        return worker


@dataclass(frozen=True, slots=True)
class Caller:
    """Requests with one set of credentials; every POST gets a fresh Idempotency-Key unless one is given."""

    http: httpx.AsyncClient
    credentials: str

    async def __call__(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        expect: int | None = None,
    ) -> httpx.Response:
        sent = {"Authorization": f"Bearer {self.credentials}"}
        if method == "POST":
            sent["Idempotency-Key"] = uuid4().hex
        sent.update(headers or {})
        response = await self.http.request(method, path, json=json, headers=sent)
        if expect is not None:
            assert response.status_code == expect, f"{method} {path}: {response.status_code} {response.text}"
        return response


@asynccontextmanager
async def run_services(
    migrated: MigratedDatabase, names: Sequence[str] = ALL, *, workers: bool = True, **overrides: Any
) -> AsyncIterator[Services]:
    """Runs the named services that exist. `overrides` are settings by name, for every service that has the field."""
    names = existing(names)
    keys = {name: make_key() for name in names}
    operator_key = make_key()
    settings = {name: _settings(migrated, name, keys[name], overrides) for name in names}
    first = [(key, f"service-{name}", Role.SERVICE) for name, key in keys.items()]
    async with migrated.opened("quota", pool_size=2) as database:
        await bootstrap(database, [(operator_key, "first-operator", Role.OPERATOR), *first])
    joined = Joined({})
    transport = httpx.ASGITransport(app=joined)
    joined.add(
        {
            name: importlib.import_module(f"millpond_{name}.app").create_app(settings[name], transport=transport)
            for name in names
        }
    )
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(joined.running())
        http = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://millpond"))
        services = Services(http, operator_key, settings, transport)
        tasks = _start_workers(services, names) if workers else []
        try:
            yield services
        finally:
            services.stop.set()
            await asyncio.gather(*tasks)


def _settings(migrated: MigratedDatabase, name: str, key: str, overrides: Mapping[str, Any]) -> ServiceSettings:
    cls: type[ServiceSettings] = importlib.import_module(f"millpond_{name}.settings").Settings
    values: dict[str, Any] = {
        "database_url": migrated.url(name),
        "service_key": key,
        "redis_url": migrated.redis_url,
        "redis_prefix": migrated.redis_prefix,
        "database_pool_size": 4,
        "feed_silence_seconds": 0.5,
        **{f"{other}_url": "http://millpond" for other in ALL},
    }
    values.update({field: value for field, value in overrides.items() if field in cls.model_fields})
    return cls(**values)


def _start_workers(services: Services, names: Sequence[str]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(run_worker(services.make_worker(name), services.stop)) for name in names]
