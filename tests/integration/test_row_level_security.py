"""Tenants see their own rows only, login roles have no rights of their own, and no role reaches another's schema."""

from typing import Any

import asyncpg
import pytest

from millpond_contracts.events import PUBLISHERS
from millpond_kernel.migrate import service_role
from tests.integration.databases import MigratedDatabase

pytestmark = pytest.mark.integration

_TENANT_TABLES = """
SELECT n.nspname AS schema, c.relname AS name, c.relrowsecurity AS enabled, c.relforcerowsecurity AS forced
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
WHERE c.relkind IN ('r', 'p') AND n.nspname = ANY($1)
"""
_POLICIES = """
SELECT policyname, roles::text[] AS roles, permissive, cmd, qual, with_check FROM pg_policies
WHERE schemaname = $1 AND tablename = $2 ORDER BY policyname
"""
_OWNED_BY_OTHERS = """
SELECT n.nspname || '.' || c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'S') AND n.nspname = ANY($1) AND c.relowner <> 'millpond_owner'::regrole
"""
_RIGHTS = """
SELECT grantee, table_schema || '.' || table_name AS name, privilege_type FROM information_schema.role_table_grants
WHERE table_schema = ANY($1) AND grantee = ANY($2)
"""
_OWN = "(tenant_id = (NULLIF(current_setting('app.tenant_id'::text, true), ''::text))::uuid)"

# Rows that belong to nobody may be read by every tenant: pools that are not dedicated, public prices.
_NOBODYS = "(tenant_id IS NULL)"
_OWN_OR_NOBODYS = f"({_NOBODYS} OR {_OWN})"


async def _rows(migrated: MigratedDatabase, query: str, *arguments: object) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(migrated.owner_url)
    try:
        rows: list[asyncpg.Record] = await connection.fetch(query, *arguments)
    finally:
        await connection.close()
    return rows


def _faults(schema: str, policies: list[asyncpg.Record]) -> list[str]:
    """What is wrong with the policies of one table: each is the system's, the tenant's own, or reads rows of nobody."""
    system, tenant = f"millpond_{schema}_system", f"millpond_{schema}_tenant"
    seen = {(tuple(row["roles"]), row["cmd"], row["qual"], row["with_check"]) for row in policies}
    allowed: set[tuple[Any, ...]] = {
        ((system,), "ALL", "true", "true"),
        ((tenant,), "ALL", _OWN, _OWN),
        ((tenant,), "SELECT", _OWN_OR_NOBODYS, None),
        ((tenant,), "SELECT", _NOBODYS, None),
    }
    missing = [] if ((system,), "ALL", "true", "true") in seen else ["no policy for the system"]
    missing += [] if any(_OWN in str(qual) for _, _, qual, _ in seen) else ["no policy for the tenant's own rows"]
    return missing + [str(one) for one in seen - allowed]


async def test_tenant_tables_when_listed_then_security_is_forced_by_both_policies(migrated: MigratedDatabase) -> None:
    tables = await _rows(migrated, _TENANT_TABLES, list(PUBLISHERS))
    assert {"outbox", "audit", "idempotency"} <= {row["name"] for row in tables if row["schema"] == "quota"}
    assert [f"{row['schema']}.{row['name']}" for row in tables if not (row["enabled"] and row["forced"])] == []
    faults = {
        f"{row['schema']}.{row['name']}": _faults(
            row["schema"], await _rows(migrated, _POLICIES, row["schema"], row["name"])
        )
        for row in tables
    }
    assert {name: found for name, found in faults.items() if found} == {}


async def test_tables_when_listed_then_they_belong_to_the_owner(migrated: MigratedDatabase) -> None:
    assert await _rows(migrated, _OWNED_BY_OTHERS, list(PUBLISHERS)) == []


async def test_roles_when_listed_then_logins_have_no_rights_and_nobody_reaches_another_schema(
    migrated: MigratedDatabase,
) -> None:
    logins = [service_role(service) for service in PUBLISHERS]
    scopes = [f"{login}_{scope}" for login in logins for scope in ("tenant", "system")]
    grants = await _rows(migrated, _RIGHTS, list(PUBLISHERS), [*logins, *scopes])
    assert [tuple(row) for row in grants if row["grantee"] in logins] == []
    crossing = [row for row in grants if row["name"].partition(".")[0] != row["grantee"].split("_")[1]]
    assert crossing == []
    assert {row["grantee"] for row in grants} == set(scopes)
    flags = await _rows(
        migrated,
        "SELECT rolname FROM pg_roles WHERE rolname LIKE 'millpond\\_%' AND rolname <> 'millpond_owner'"
        " AND (rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR (rolinherit AND rolcanlogin))",
    )
    assert flags == []


async def test_tenant_roles_when_listed_then_they_may_not_touch_the_kernel_of_their_service(
    migrated: MigratedDatabase,
) -> None:
    forbidden = {"outbox_counter", "cursor", "dead_letter", "lease", "signing_key", "worker_state"}
    grants = await _rows(
        migrated, _RIGHTS, list(PUBLISHERS), [f"{service_role(service)}_tenant" for service in PUBLISHERS]
    )
    assert [tuple(row) for row in grants if row["name"].partition(".")[2] in forbidden] == []
    assert {row["privilege_type"] for row in grants} <= {"SELECT", "INSERT", "UPDATE", "DELETE"}


async def test_role_when_it_asks_for_another_schema_then_refused(migrated: MigratedDatabase) -> None:
    for service in PUBLISHERS:
        connection = await asyncpg.connect(migrated.url(service))
        try:
            for scope in ("tenant", "system"):
                await connection.execute(f"SET ROLE {service_role(service)}_{scope}")
                for other in set(PUBLISHERS) - {service}:
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        await connection.fetch(f"SELECT 1 FROM {other}.outbox")
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        await connection.execute(f"SET ROLE {service_role(other)}_system")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute("SET ROLE millpond_owner")
        finally:
            await connection.close()


async def test_audit_when_the_system_changes_or_deletes_a_row_then_refused(migrated: MigratedDatabase) -> None:
    for service in PUBLISHERS:
        connection = await asyncpg.connect(migrated.url(service))
        try:
            await connection.execute(f"SET ROLE {service_role(service)}_system")
            for statement in ("UPDATE audit SET actor = 'nobody'", "DELETE FROM audit", "TRUNCATE audit"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(statement)
        finally:
            await connection.close()
