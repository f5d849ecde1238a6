"""The door: scopes, rights, events with their transaction, and the leases' epochs."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from millpond_contracts.events.quota import ApiKeyRevoked
from millpond_contracts.ids import ApiKeyId, TenantId
from millpond_kernel.db import SYSTEM, Database, TenantScope, UnsafeRole
from millpond_kernel.leases import LeaseLost, acquire_lease, check_epoch
from millpond_kernel.uow import UnitOfWorkOpen
from tests.integration.databases import MigratedDatabase

pytestmark = pytest.mark.integration


def revoked(tenant: TenantId | None, generation: int = 1) -> ApiKeyRevoked:
    return ApiKeyRevoked(api_key_id=ApiKeyId.new(), tenant_id=tenant, generation=generation)


@pytest.fixture
async def database(migrated: MigratedDatabase) -> AsyncIterator[Database]:
    database = migrated.database("quota")
    await database.open()
    yield database
    await database.close()


async def test_tenant_scope_when_reading_outbox_then_sees_own_rows_only(database: Database) -> None:
    mine, other = TenantId.new(), TenantId.new()
    async with database.begin(SYSTEM) as unit:
        unit.emit(revoked(mine))
        unit.emit(revoked(other))
        unit.emit(revoked(None))
    async with database.begin(TenantScope(mine)) as unit:
        tenants = [row["tenant_id"] for row in await unit.fetch("SELECT tenant_id FROM outbox")]
    assert tenants == [mine]


async def test_tenant_scope_when_writing_foreign_row_then_refused(database: Database) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        async with database.begin(TenantScope(TenantId.new())) as unit:
            unit.emit(revoked(TenantId.new()))
    async with database.begin(SYSTEM) as unit:
        assert await unit.fetchval("SELECT count(*) FROM outbox") == 0


async def test_login_role_when_outside_the_door_then_has_no_rights(migrated: MigratedDatabase) -> None:
    connection = await asyncpg.connect(migrated.url("quota"))
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("SELECT * FROM quota.outbox")
        await connection.execute("SET ROLE millpond_quota_system")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("SELECT * FROM registry.outbox")
    finally:
        await connection.close()


async def test_open_when_role_is_superuser_then_refused(migrated: MigratedDatabase) -> None:
    database = Database("quota", migrated.owner_url)
    with pytest.raises(UnsafeRole):
        await database.open()
    await database.close()


async def test_begin_when_unit_is_open_then_refused(database: Database) -> None:
    async with database.begin(SYSTEM):
        with pytest.raises(UnitOfWorkOpen):
            async with database.begin(SYSTEM):
                pass


async def test_begin_when_cancelled_then_connection_returns_clean(database: Database) -> None:
    async def sleeper() -> None:
        async with database.begin(SYSTEM) as unit:
            await unit.execute("SELECT pg_sleep(10)")

    tasks = [asyncio.create_task(sleeper()) for _ in range(8)]
    await asyncio.sleep(0.2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with database.begin(SYSTEM) as unit:
        assert await unit.fetchval("SELECT 1") == 1


async def test_lease_when_it_lapses_then_epoch_rises_and_old_writes_fail(database: Database) -> None:
    first = await acquire_lease(database, "loop", uuid4(), 0.05)
    assert first is not None
    await asyncio.sleep(0.1)
    second = await acquire_lease(database, "loop", uuid4(), 30)
    assert second is not None
    assert second.epoch == first.epoch + 1
    assert await acquire_lease(database, "loop", first.holder, 30) is None
    with pytest.raises(LeaseLost):
        async with database.begin(SYSTEM) as unit:
            await check_epoch(unit, first)
