"""Billing with its real neighbours' transport: a scheduler and a registry that only publish what a test tells them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import httpx
from fastapi import FastAPI

from millpond_billing.background.work import close_statements
from millpond_contracts.bodies.allocations import AllocationState, AllocationView, DeviceShare, EndReason
from millpond_contracts.bodies.nodes import NodeView
from millpond_contracts.bodies.tenants import TenantState, TenantView
from millpond_contracts.events import Event
from millpond_contracts.events.registry import NodeBecameReady
from millpond_contracts.events.scheduler import (
    AllocationActivated,
    AllocationBound,
    AllocationEvent,
    AllocationReleased,
    AllocationStopRequested,
)
from millpond_contracts.ids import (
    AllocationId,
    DeviceId,
    JobId,
    NodeId,
    PoolId,
    StatementId,
    TaskId,
    TenantId,
    VirtualPoolId,
)
from millpond_kernel.app import ServiceApp, build_app
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.settings import ServiceSettings
from millpond_kernel.worker import ServiceWorker, WorkerKernel, run_worker
from tests.integration.databases import MigratedDatabase
from tests.integration.services import Caller, Services, run_services
from tests.waiting import eventually

# Long past, so that no period of it is still running, whenever a test runs.
START = datetime(2024, 2, 20, 8, 0, 0, tzinfo=UTC)
PUBLISHERS = ("scheduler", "registry")


class SchedulerSettings(ServiceSettings):
    """Settings of the stand-in."""

    service: ClassVar[str] = "scheduler"


class RegistrySettings(ServiceSettings):
    """Settings of the stand-in."""

    service: ClassVar[str] = "registry"


_SETTINGS: dict[str, type[ServiceSettings]] = {"scheduler": SchedulerSettings, "registry": RegistrySettings}


def seconds(count: float) -> timedelta:
    """So many seconds."""
    return timedelta(microseconds=round(count * 1_000_000))


def share(milli: int = 1000, flavor: str = "h100", device_id: DeviceId | None = None) -> DeviceShare:
    """A share of a device."""
    return DeviceShare(
        device_id=device_id or DeviceId.new(),
        identity="nvidia/GPU-1",
        vendor="nvidia",
        index=0,
        flavor=flavor,
        milli=milli,
        memory_mib=None,
    )


def allocation(tenant_id: TenantId, **changes: object) -> AllocationView:
    """A released allocation of two cores and 4 GiB that was active for 100.25 s; `changes` say otherwise."""
    fields: dict[str, object] = {
        "allocation_id": AllocationId.new(),
        "job_id": JobId.new(),
        "job_name": "train",
        "task_id": TaskId.new(),
        "group": "main",
        "index": 0,
        "attempt": 1,
        "tenant_id": tenant_id,
        "project_id": None,
        "virtual_pool_id": VirtualPoolId.new(),
        "pool_id": PoolId.new(),
        "node_id": NodeId.new(),
        "cpu_milli": 2000,
        "memory_mib": 4096,
        "devices": (),
        "price_version_id": None,
        "state": AllocationState.RELEASED,
        "epoch": 1,
        "bound_at": START,
        "active_at": START + seconds(1),
        "released_at": START + seconds(101.25),
        "reason": EndReason.COMPLETED,
        "generation": 3,
    }
    return AllocationView.model_validate(fields | changes)


def states_of(last: AllocationView) -> list[AllocationView]:
    """The states that an allocation went through up to its last one, each a generation."""
    bound = {"active_at": None, "waived_from": None, "released_at": None, "reason": None, "generation": 1}
    states = [last.model_copy(update={**bound, "state": AllocationState.BOUND})]
    for field, state in (
        ("active_at", AllocationState.ACTIVE),
        ("waived_from", AllocationState.RELEASING),
        ("released_at", AllocationState.RELEASED),
    ):
        if getattr(last, field) is not None:
            told = {field: getattr(last, field), "state": state, "generation": states[-1].generation + 1}
            if field == "released_at":
                told["reason"] = last.reason
            states.append(states[-1].model_copy(update=told))
    return states


def event_of(state: AllocationView) -> AllocationEvent:
    """The event that tells this state."""
    if state.released_at is not None:
        return AllocationReleased(allocation=state)
    if state.waived_from is not None:
        return AllocationStopRequested(allocation=state)
    return (AllocationBound if state.active_at is None else AllocationActivated)(allocation=state)


def tenant_view(**changes: object) -> TenantView:
    """A tenant in Shanghai."""
    fields: dict[str, object] = {
        "tenant_id": TenantId.new(),
        "name": "acme",
        "timezone": "Asia/Shanghai",
        "currency": "CNY",
        "state": TenantState.ACTIVE,
        "labels": {},
        "created_at": START,
        "generation": 1,
    }
    return TenantView.model_validate(fields | changes)


@dataclass(slots=True)
class Stage:
    """Running quota and billing, and what the stand-ins publish with."""

    migrated: MigratedDatabase
    services: Services
    databases: dict[str, Database]
    allocations: dict[AllocationId, AllocationView]

    @property
    def operator(self) -> Caller:
        """The first operator."""
        return self.services.as_key()

    @property
    def billing(self) -> Database:
        """The door of billing."""
        return self.databases["billing"]

    async def tenant(self, name: str, timezone: str = "Asia/Shanghai") -> tuple[TenantId, Caller]:
        """A tenant that billing knows, and its administrator."""
        created = await self.operator("POST", "/v1/tenants", {"name": name, "timezone": timezone}, expect=201)
        tenant_id = created.json()["tenant_id"]
        body = {"name": f"{name}-key", "role": "tenant_admin", "tenant_id": tenant_id}
        key = (await self.operator("POST", "/v1/api-keys", body, expect=201)).json()["secret"]

        async def known() -> bool:
            answer = await self.operator("GET", f"/v1/statements/current?tenant_id={tenant_id}")
            return answer.status_code == 200

        await eventually(known)
        return TenantId.parse(tenant_id), self.services.as_key(key)

    async def publish(self, publisher: str, *events: Event, at: datetime | None = None) -> None:
        """Commits events in the publisher's schema; its relay does the rest."""
        async with self.databases[publisher].begin(SYSTEM) as unit:
            for event in events:
                unit.emit(event, at)

    async def tell(self, *states: AllocationView) -> None:
        """Publishes these states and waits until billing has applied them."""
        for state in states:
            known = self.allocations.get(state.allocation_id)
            if known is None or known.generation < state.generation:
                self.allocations[state.allocation_id] = state
        await self.publish("scheduler", *(event_of(state) for state in states))
        await self.applied("metering", "scheduler")

    async def tell_node(self, node: NodeView, at: datetime) -> None:
        """Publishes a node as it is from `at` on and waits until billing has applied it."""
        await self.publish("registry", NodeBecameReady(node=node), at=at)
        await self.applied("capacity", "registry")

    async def applied(self, consumer: str, publisher: str) -> None:
        """Waits until billing has applied everything that a publisher committed."""

        async def caught_up() -> bool:
            async with self.databases[publisher].begin(SYSTEM) as unit:
                # One statement: the relay numbers rows meanwhile.
                row = await unit.fetchrow(
                    "SELECT coalesce(max(seq), 0) AS wanted, count(*) - count(seq) AS waiting FROM outbox"
                )
            assert row is not None
            async with self.billing.begin(SYSTEM) as unit:
                seq = await unit.fetchval(
                    "SELECT seq FROM cursor WHERE consumer = $1 AND publisher = $2", consumer, publisher
                )
            return not row["waiting"] and seq == row["wanted"]

        await eventually(caught_up)

    async def close_statements(self, tenant_id: TenantId) -> list[StatementId]:
        """Waits until the tenant's ended periods are queued and closes them, as the background does."""

        async def queued() -> list[Any]:
            async with self.billing.begin(SYSTEM) as unit:
                rows = await unit.fetch(
                    "SELECT id, state FROM statement WHERE tenant_id = $1 AND period_end < clock_timestamp()"
                    " ORDER BY period_start",
                    tenant_id,
                )
            return [] if any(row["state"] == "open" for row in rows) else rows

        rows = await eventually(queued)
        await close_statements(self.billing, StatementId.of(rows[0]["id"]))
        return [StatementId.of(row["id"]) for row in rows]

    async def count(self, rows: str) -> int:
        """How many rows of billing there are; `rows` = a table, with a condition perhaps."""
        async with self.billing.begin(SYSTEM) as unit:
            return int(await unit.fetchval(f"SELECT count(*) FROM {rows}"))

    async def list_all(self, caller: Caller, path: str, limit: int = 200) -> list[dict[str, Any]]:
        """Every item of a list, page by page."""
        items: list[dict[str, Any]] = []
        cursor = ""
        joint = "&" if "?" in path else "?"
        while True:
            page = (await caller("GET", f"{path}{joint}limit={limit}{cursor}", expect=200)).json()
            items += page["items"]
            if page["next_cursor"] is None:
                return items
            cursor = f"&cursor={page['next_cursor']}"


def _publisher_app(stage: Stage, name: str, transport: httpx.AsyncBaseTransport) -> FastAPI:
    async def list_allocations(unit: object, after: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
        keys = sorted(key for key in stage.allocations if str(key) > after)[:limit]
        items = [stage.allocations[key].model_dump(mode="json") for key in keys]
        return items, str(keys[-1]) if len(keys) == limit else None

    snapshots = {"allocations": list_allocations} if name == "scheduler" else {}
    settings = _publisher_settings(stage, name)
    return build_app(ServiceApp(settings=settings, routers=(), standstill="", snapshots=snapshots, transport=transport))


def _publisher_settings(stage: Stage, name: str) -> ServiceSettings:
    billing = stage.services.settings["billing"]
    return _SETTINGS[name](
        database_url=stage.migrated.url(name),
        service_key=billing.service_key,
        redis_url=billing.redis_url,
        redis_prefix=billing.redis_prefix,
        database_pool_size=2,
        **{f"{other}_url": "http://millpond" for other in ("registry", "quota", "scheduler", "billing")},  # type: ignore[arg-type]
    )


def _no_parts(kernel: WorkerKernel) -> tuple[tuple[()], tuple[()]]:
    return (), ()


@asynccontextmanager
async def running_stage(migrated: MigratedDatabase, **overrides: Any) -> AsyncIterator[Stage]:
    """Quota and billing with workers, and stand-ins for the publishers that billing follows."""
    chosen = {"statement_grace_seconds": 0, "due_seconds": 0.2, "reconcile_seconds": 3600.0, **overrides}
    async with AsyncExitStack() as stack:
        databases = {name: migrated.database(name, pool_size=2) for name in (*PUBLISHERS, "billing")}
        for database in databases.values():
            await database.open()
            stack.push_async_callback(database.close)
        services = await stack.enter_async_context(run_services(migrated, ["quota", "billing"], **chosen))
        stage = Stage(migrated, services, databases, {})
        transport = services.transport
        assert isinstance(transport, httpx.ASGITransport)
        stop = asyncio.Event()
        workers = []
        for name in PUBLISHERS:
            app = _publisher_app(stage, name, transport)
            await stack.enter_async_context(app.router.lifespan_context(app))
            # Only once it is started: billing's worker asks already.
            transport.app.add({name: app})  # type: ignore[attr-defined]
            worker = ServiceWorker(settings=_publisher_settings(stage, name), parts=_no_parts, transport=transport)
            workers.append(asyncio.create_task(run_worker(worker, stop)))
        try:
            yield stage
        finally:
            stop.set()
            await asyncio.gather(*workers)
