"""A pool that grows and shrinks: all services with their workers, machines that follow orders, a tenant that asks."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millpond_kernel.db import SYSTEM, Database
from tests.fakes.machines import Machines, run_machines
from tests.integration.databases import MigratedDatabase
from tests.integration.services import Caller, Services, run_services
from tests.waiting import eventually

FLAVOR = "nvidia-a100-sxm4-80gb"
NAMES = ("quota", "registry", "scheduler", "billing", "autoscaler")
TEMPLATE = {"model": "A100 SXM4 80GB", "devices": 8, "cpu_milli": 64_000, "memory_mib": 262_144}
# Quick, so that a test sees in seconds what takes a pool an hour.
RULES = {
    "max_nodes": 8,
    "max_step_nodes": 8,
    "emergency_ratio": 0.95,
    "cool_down_seconds": 0,
    "safety_window_seconds": 1,
    "min_node_life_seconds": 0,
    "registration_seconds": 30,
    "drain_seconds": 60,
}


@dataclass(slots=True)
class Growing:
    """The pool, its policy, and everybody around it."""

    services: Services
    operator: Caller
    member: Caller
    machines: Machines
    database: Database
    pool_id: str
    virtual_pool_id: str

    async def policy(self, **changes: Any) -> dict[str, Any]:
        """A new policy; `rules` and `template` are changes of the quick ones."""
        spec = {
            "name": "growing",
            "pool_id": self.pool_id,
            "flavor": FLAVOR,
            **changes,
            "rules": {**RULES, **changes.get("rules", {})},
            "template": {**TEMPLATE, **changes.get("template", {})},
        }

        async def made() -> Any:
            # The autoscaler has to hear of the pool first.
            answer = await self.operator("POST", "/v1/scaling-policies", spec)
            assert answer.status_code in (201, 404), answer.text
            return answer.json() if answer.status_code == 201 else None

        return dict(await eventually(made))

    async def submit(self, count: int, devices: int = 1, **changes: Any) -> dict[str, Any]:
        """A job of so many equal tasks."""
        group = {
            "count": count,
            "resources": {"cpu_milli": 100, "memory_mib": 64, "devices": [{"count": devices}]},
            "run": {"simulate": {"seconds": 3600}},
        }
        job = {"name": "wave", "virtual_pool": self.virtual_pool_id, "groups": [group], **changes}
        return dict((await self.member("POST", "/v1/jobs", job, expect=201)).json())

    async def orders(self, *states: str) -> list[dict[str, Any]]:
        """The orders in these states, or all."""
        found = (await self.operator("GET", "/v1/node-orders?limit=200", expect=200)).json()["items"]
        return [order for order in found if not states or order["state"] in states]

    async def decisions(self, *codes: str) -> list[dict[str, Any]]:
        """The decisions with these codes, or all, the newest first."""
        found = (await self.operator("GET", "/v1/scaling-decisions?limit=200", expect=200)).json()["items"]
        return [one for one in found if not codes or one["code"] in codes]

    async def wait_for(self, count: int, *states: str, seconds: float = 30) -> list[dict[str, Any]]:
        """The orders, once exactly so many are in these states."""

        async def there() -> Any:
            found = await self.orders(*states)
            return (found or True) if len(found) == count else None

        found = await eventually(there, seconds)
        return found if isinstance(found, list) else []

    async def state_of(self, job: dict[str, Any]) -> str:
        """The job's state now."""
        return str((await self.member("GET", f"/v1/jobs/{job['job_id']}", expect=200)).json()["state"])

    async def running(self) -> int:
        """Live allocations of the pool."""
        path = "/v1/allocations?limit=200"
        found = (await self.member("GET", path, expect=200)).json()["items"]
        return sum(one["released_at"] is None for one in found)

    async def outbox(self) -> list[str]:
        """The types of the autoscaler's events in their order."""
        async with self.database.begin(SYSTEM) as unit:
            rows = await unit.fetch("SELECT type FROM outbox ORDER BY id")
        return [row["type"].split(".")[1] for row in rows]

    async def outbox_has(self, name: str) -> bool:
        """Whether the autoscaler has told of this."""
        return name in await self.outbox()


@pytest.fixture
async def growing(migrated: MigratedDatabase, tmp_path: Path) -> AsyncIterator[Growing]:
    """An empty pool with a tenant that may use a hundred devices of it."""
    folder = tmp_path / "orders"
    async with (
        migrated.opened("autoscaler") as database,
        run_services(
            migrated,
            NAMES,
            log_folder=tmp_path / "logs",
            verdict_seconds=0.1,
            capacity_interval_seconds=0.1,
            simulated_folder=folder,
            decide_seconds=0.2,
            signals_seconds=0.2,
            settle_seconds=10.0,
        ) as services,
        run_machines(Machines(services.http, folder)) as machines,
    ):
        operator = services.as_key()
        pool = {"name": "metal", "allow_oversubscription": True, "unreachable_after_seconds": 3600}
        pool_id = (await operator("POST", "/v1/pools", pool, expect=201)).json()["pool_id"]
        tenant = (await operator("POST", "/v1/tenants", {"name": "acme"}, expect=201)).json()["tenant_id"]
        key = {"name": "k", "role": "member", "tenant_id": tenant}
        member = services.as_key((await operator("POST", "/v1/api-keys", key, expect=201)).json()["secret"])
        share = await make_share(operator, tenant, pool_id)
        yield Growing(services, operator, member, machines, database, pool_id, share)


async def make_share(operator: Caller, tenant: str, pool_id: str, devices: int = 100) -> str:
    """A virtual pool, known to the scheduler."""
    limits = {
        "cpu": {"borrow": 1_000_000},
        "memory": {"borrow": 1_000_000},
        "devices": {FLAVOR: {"borrow": 1000 * devices}},
    }
    spec = {"name": f"share-{devices}", "tenant_id": tenant, "pool_id": pool_id, "limits": limits}

    async def made() -> Any:
        answer = await operator("POST", "/v1/virtual-pools", spec)
        return answer.json() if answer.status_code == 201 else None

    share = str((await eventually(made))["virtual_pool_id"])

    async def known() -> bool:
        return (await operator("GET", f"/v1/queues/{share}")).status_code == 200

    await eventually(known)
    return share
