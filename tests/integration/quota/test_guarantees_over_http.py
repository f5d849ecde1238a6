"""Guarantees of virtual pools while the capacity of their pool shrinks."""

from datetime import UTC, datetime
from typing import Any

import pytest

from millpond_contracts.bodies.pools import HostCapacity, PoolCapacity, PoolSpec, PoolView
from millpond_contracts.ids import PoolId
from millpond_kernel.db import SYSTEM
from millpond_quota.store.virtual_pools import save_capacity, save_pool
from tests.integration.databases import MigratedDatabase
from tests.integration.services import run_services

pytestmark = pytest.mark.integration

POOL = PoolId.new()
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def limits(cpu: int, memory: int = 0) -> dict[str, Any]:
    return {"limits": {"cpu": {"guaranteed": cpu}, "memory": {"guaranteed": memory}}}


async def tell_registered(migrated: MigratedDatabase, cpu: int, generation: int) -> None:
    """What the registry says that the pool has."""
    pool = PoolView(pool_id=POOL, created_at=NOW, generation=generation, **PoolSpec(name="p").model_dump())
    hosts = [
        HostCapacity(resource=name, total=total, unschedulable=0, allocated=0, reserved=0, available=total)
        for name, total in (("cpu", cpu), ("memory", 1024))
    ]
    figures = PoolCapacity(pool_id=POOL, as_of=NOW, nodes={}, hosts=hosts, devices=[], generation=generation)
    async with migrated.opened("quota") as database, database.begin(SYSTEM) as unit:
        await save_pool(unit, pool, deleted=False)
        await save_capacity(unit, figures)


async def test_guarantees_when_their_pool_shrinks_then_they_may_be_lowered_step_by_step_and_not_raised(
    migrated: MigratedDatabase,
) -> None:
    await tell_registered(migrated, 10_000, 1)
    async with run_services(migrated, ["quota"], workers=False) as services:
        operator = services.as_key()
        tenant = (await operator("POST", "/v1/tenants", {"name": "acme"}, expect=201)).json()["tenant_id"]
        paths = []
        for name in ("one", "two"):
            spec = {"name": name, "tenant_id": tenant, "pool_id": str(POOL), **limits(5000)}
            paths.append((await operator("POST", "/v1/virtual-pools", spec, expect=201)).headers["location"])
        await tell_registered(migrated, 6_000, 2)
        changes: tuple[tuple[dict[str, Any], int], ...] = (
            ({"labels": {"a": "b"}}, 200),
            (limits(5001), 409),
            (limits(4000), 200),
            (limits(4000, 1025), 409),
            (limits(3500, 1024), 200),
            (limits(3501, 1024), 409),
        )
        for change, status in changes:
            await operator("PATCH", paths[0], change, headers={"If-Match": "*"}, expect=status)
