"""Views are copies: emptied and loaded anew from their publishers, every service's views are what they were."""

import importlib
from typing import Any

import pytest

from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.rebuild import rebuild
from millpond_kernel.worker import ServiceWorker, WorkerKernel, connected_kernel
from tests.factories.registry import Agent, gpu, inventory
from tests.integration.databases import MigratedDatabase
from tests.integration.services import Caller, Services, run_services
from tests.waiting import eventually

pytestmark = pytest.mark.integration

SERVICES = ("quota", "registry", "scheduler", "billing", "autoscaler")
# An alert is quota's own row, opened by an event of the scheduler: there is no view to load.
WITHOUT_VIEW = {("quota", "alerts")}
TRIES = 3
# When a copy was written is not what it copies.
_WRITTEN_AT = {"changed_at", "seen_at", "written_at"}


async def furnish(services: Services) -> None:
    """A node with devices, a tenant with project, share and reservation, a job, prices: something for every view."""
    operator, agent = services.as_key(), Agent(services.http)
    token = (await operator("POST", "/v1/join-tokens", {}, expect=201)).json()["token"]
    machine = inventory([gpu(0)])
    pool = (await agent.join(token, machine))["pool_id"]
    await agent.open_session()
    await agent.push(machine)
    await agent.ready()
    poll = {"boot_id": "boot-1", "sent_monotonic_ms": 1_000_000, "held": [], "wait_seconds": 0}
    tenant = (await operator("POST", "/v1/tenants", {"name": "acme"}, expect=201)).json()["tenant_id"]
    await operator("POST", "/v1/projects", {"name": "vision", "tenant_id": tenant}, expect=201)
    flavor = "nvidia-a100-sxm4-80gb"
    template = {"model": "A100 SXM4 80GB", "devices": 1, "cpu_milli": 8000, "memory_mib": 32_000}
    policy = {"name": "grow", "pool_id": pool, "flavor": flavor, "enabled": False, "template": template}
    await eventually(lambda: made(operator, "/v1/scaling-policies", policy))
    limits = {"cpu": {"guaranteed": 1000}, "memory": {"guaranteed": 1024}, "devices": {flavor: {"borrow": 2000}}}
    share = {"name": "share", "tenant_id": tenant, "pool_id": pool, "limits": limits}
    await eventually(lambda: made(operator, "/v1/virtual-pools", share))
    found = (await operator("GET", "/v1/virtual-pools", expect=200)).json()["items"][0]["virtual_pool_id"]
    reservation = {"flavor": flavor, "device_milli": 1000, "starts_at": "2090-01-01T00:00:00Z"}
    await operator("POST", "/v1/reservations", {"virtual_pool_id": found, **reservation}, expect=201)
    key = {"name": "k", "role": "member", "tenant_id": tenant}
    member = services.as_key((await operator("POST", "/v1/api-keys", key, expect=201)).json()["secret"])
    resources: dict[str, Any] = {"cpu_milli": 500, "memory_mib": 256}
    group = {"resources": resources, "run": {"command": ["true"]}}
    # A node is schedulable while its agent asks for work.
    await agent.send("POST", "/v1/work/poll", poll, expect=200)
    await eventually(lambda: made(member, "/v1/jobs", {"name": "j", "virtual_pool": found, "groups": [group]}))
    await eventually(lambda: is_held(operator, pool))
    # More devices than the node has: this one waits for capacity.
    wide = {**group, "resources": {**resources, "devices": [{"count": 2}]}}
    await eventually(lambda: made(member, "/v1/jobs", {"name": "w", "virtual_pool": found, "groups": [wide]}))
    await eventually(lambda: waits(services))


async def waits(services: Services) -> bool:
    """Whether the scheduler has told of work that waits for capacity."""
    service = services.as_key(services.settings["quota"].service_key.get_secret_value())
    items = (await service("GET", "/internal/v1/snapshot/scheduler/demand", expect=200)).json()["items"]
    return any(item["shapes"] for item in items)


async def made(caller: Caller, path: str, body: dict[str, Any]) -> bool:
    return (await caller("POST", path, body)).status_code == 201


async def is_held(operator: Caller, pool: str) -> bool:
    """Whether the job's allocation has reached the registry, and so surely every service before it in the chain."""
    hosts = (await operator("GET", f"/v1/pools/{pool}/capacity", expect=200)).json()["hosts"]
    return any(host["allocated"] for host in hosts)


async def views_of(database: Database) -> dict[str, list[dict[str, Any]]]:
    """The rows of every view of a service, in an order of their own."""
    found: dict[str, list[dict[str, Any]]] = {}
    async with database.begin(SYSTEM) as unit:
        tables = await unit.fetch(
            "SELECT tablename FROM pg_tables WHERE schemaname = $1 AND tablename LIKE '%\\_view'", database.service
        )
        for table in tables:
            rows = await unit.fetch(f'SELECT to_jsonb(v) AS row FROM "{table["tablename"]}" v')
            found[table["tablename"]] = sorted(
                ({key: value for key, value in row["row"].items() if key not in _WRITTEN_AT} for row in rows), key=repr
            )
    return found


async def difference(worker: ServiceWorker, kernel: WorkerKernel) -> dict[str, Any]:
    """The views that are other rows after they were emptied and loaded, as (before, after)."""
    consumers, _ = worker.parts(kernel)
    assert {(kernel.service, each.name) for each in consumers if not each.snapshots} <= WITHOUT_VIEW
    before = await views_of(kernel.database)
    assert all(before.values()), f"nothing to compare in {[table for table, rows in before.items() if not rows]}"
    async with kernel.database.begin(SYSTEM) as unit:
        for table in before:
            await unit.execute(f'DELETE FROM "{table}"')
    for consumer in consumers:
        if consumer.snapshots:
            await rebuild(kernel.database, kernel.clients[consumer.publisher], consumer)
    after = await views_of(kernel.database)
    return {table: (rows, after[table]) for table, rows in before.items() if after[table] != rows}


async def test_views_when_emptied_and_rebuilt_then_they_are_what_they_were(migrated: MigratedDatabase) -> None:
    async with run_services(migrated, SERVICES, workers=True) as services:
        await furnish(services)
        for name in SERVICES:
            worker: ServiceWorker = importlib.import_module(f"millpond_{name}.worker").create_worker(
                services.settings[name], transport=services.transport
            )
            async with connected_kernel(worker) as kernel:
                # What was published a moment ago may arrive between the two readings; then they are compared again.
                for _ in range(TRIES):
                    different = await difference(worker, kernel)
                    if not different:
                        break
                assert not different, f"{name}: {different}"
