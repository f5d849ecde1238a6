"""The door: scopes, rights, events with their transaction, and the leases' epochs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg
import pytest

from millpond_contracts.events.quota import ApiKeyRevoked
from millpond_contracts.ids import ApiKeyId, TenantId
from millpond_kernel import db
from millpond_kernel.clients import ServiceAway, ServiceClient
from millpond_kernel.db import AWAY_ERRORS, SYSTEM, Database, DatabaseAway, TenantScope, UnsafeRole
from millpond_kernel.leases import LeaseLost, acquire_lease, check_epoch
from millpond_kernel.pausing import end_task
from millpond_kernel.uow import TransactionAborted, UnitOfWorkOpen
from tests.integration.databases import MigratedDatabase
from tests.integration.kernel.stage import run_as_owner

pytestmark = pytest.mark.integration


def revoked(tenant: TenantId | None, generation: int = 1) -> ApiKeyRevoked:
    return ApiKeyRevoked(api_key_id=ApiKeyId.new(), tenant_id=tenant, generation=generation)


@pytest.fixture
async def database(migrated: MigratedDatabase) -> AsyncIterator[Database]:
    async with migrated.opened("quota") as database:
        yield database


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


async def test_agent_bom_3665_open_when_role_is_superuser_then_refused(migrated: MigratedDatabase) -> None:
    database = Database("quota", migrated.owner_url)
    with pytest.raises(UnsafeRole):
        await database.open()
    await database.close()


async def test_begin_when_unit_is_open_then_refused(database: Database) -> None:
    async with database.begin(SYSTEM):
        with pytest.raises(UnitOfWorkOpen):
            async with database.begin(SYSTEM):
                pass


async def test_client_when_unit_is_open_then_it_refuses_to_call(database: Database) -> None:
    client = ServiceClient("quota", "http://127.0.0.1:9", "")
    async with database.begin(SYSTEM):
        with pytest.raises(UnitOfWorkOpen):
            await client.get_json("/healthz/quota")
    with pytest.raises(ServiceAway):
        await client.get_json("/healthz/quota")
    await client.close()


async def test_task_when_started_inside_a_unit_then_free_once_the_unit_has_ended(database: Database) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        with pytest.raises(UnitOfWorkOpen):
            async with database.begin(SYSTEM):
                pass
        await ended.wait()
        async with database.begin(SYSTEM) as unit:
            unit.emit(revoked(None))

    async with database.begin(SYSTEM):
        task = asyncio.create_task(work())
        await asyncio.sleep(0.01)
    ended.set()
    await task
    async with database.begin(SYSTEM) as unit:
        assert await unit.fetchval("SELECT count(*) FROM outbox") == 1


async def test_unit_when_a_failed_statement_is_swallowed_then_it_does_not_seem_committed(database: Database) -> None:
    async def swallow() -> None:
        async with database.begin(SYSTEM) as unit:
            await unit.execute("INSERT INTO lease VALUES ('kept', $1, 1, now())", uuid4())
            with contextlib.suppress(asyncpg.DivisionByZeroError):
                await unit.execute("SELECT 1 / 0")

    with pytest.raises(TransactionAborted):
        await swallow()
    async with database.begin(SYSTEM) as unit:
        assert await unit.fetchval("SELECT count(*) FROM lease") == 0


async def test_unit_when_our_own_call_is_wrong_then_the_database_is_not_called_away(database: Database) -> None:
    with pytest.raises(asyncpg.InterfaceError) as raised:
        async with database.begin(SYSTEM) as unit:
            await unit.fetch("SELECT $1::int", 1, 2)
    assert not isinstance(raised.value, AWAY_ERRORS)


async def test_unit_when_the_backend_is_ended_then_away_and_well_again_after(
    database: Database, migrated: MigratedDatabase
) -> None:
    async def lose() -> None:
        async with database.begin(SYSTEM) as unit:
            backend = await unit.fetchval("SELECT pg_backend_pid()")
            await run_as_owner(migrated, f"SELECT pg_terminate_backend({backend}, 5000)")
            await unit.fetch("SELECT 1")

    with pytest.raises(AWAY_ERRORS):
        await lose()
    async with database.begin(SYSTEM) as unit:
        assert await unit.fetchval("SELECT 1") == 1


async def test_unit_when_a_migration_changed_a_table_under_a_known_statement_then_to_be_asked_again(
    database: Database, migrated: MigratedDatabase
) -> None:
    read_all = "SELECT * FROM changed"
    await run_as_owner(migrated, "CREATE TABLE quota.changed (id int)")
    await run_as_owner(migrated, "GRANT SELECT ON quota.changed TO millpond_quota_system")
    async with database.begin(SYSTEM) as unit:
        await unit.fetch(read_all)
    await run_as_owner(migrated, "ALTER TABLE quota.changed ADD COLUMN more int")
    with pytest.raises(DatabaseAway):
        async with database.begin(SYSTEM) as unit:
            await unit.fetch(read_all)
    assert database.away_since is None
    async with database.begin(SYSTEM) as unit:
        assert await unit.fetch(read_all) == []


async def test_begin_when_every_connection_is_in_use_then_away_in_time(
    migrated: MigratedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "ACQUIRE_SECONDS", 0.3)
    async with migrated.opened("quota", pool_size=1) as database:
        held = asyncio.Event()

        async def hold() -> None:
            async with database.begin(SYSTEM):
                held.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(hold())
        await held.wait()
        with pytest.raises(DatabaseAway):
            async with database.begin(SYSTEM):
                pass
        await end_task(task)


async def test_asyncpg_1069_begin_when_cancelled_then_connection_returns_clean(database: Database) -> None:
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
