"""Rows of API keys. Only the hash of a secret is ever stored."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.tenants import ApiKeySpec, ApiKeyView, Role
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import ApiKeyId, ProjectId, TenantId
from millpond_kernel.filters import Where
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork


def api_key_view(row: asyncpg.Record, secret: str | None = None) -> ApiKeyView:
    """The key of a row, without its secret unless given."""
    return ApiKeyView(
        api_key_id=ApiKeyId.of(row["id"]),
        name=row["name"],
        role=Role(row["role"]),
        tenant_id=None if row["tenant_id"] is None else TenantId.of(row["tenant_id"]),
        project_id=None if row["project_id"] is None else ProjectId.of(row["project_id"]),
        secret=secret,
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        last_used_at=row["last_used_at"],
        created_at=row["created_at"],
        generation=row["generation"],
    )


async def insert_api_key(
    unit: UnitOfWork, api_key_id: ApiKeyId, spec: ApiKeySpec, tenant_id: TenantId | None, secret_hash: bytes
) -> asyncpg.Record | None:
    """A new key; None when the id exists already."""
    return await unit.fetchrow(
        "INSERT INTO api_key (id, tenant_id, project_id, name, role, secret_hash, expires_at, generation)"
        " VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp() + make_interval(secs => $7), 1)"
        " ON CONFLICT (id) DO NOTHING RETURNING *",
        api_key_id,
        tenant_id,
        spec.project_id,
        spec.name,
        spec.role.value,
        secret_hash,
        None if spec.expires_in_seconds is None else float(spec.expires_in_seconds),
    )


async def find_api_key(unit: UnitOfWork, api_key_id: ApiKeyId) -> asyncpg.Record | None:
    """The row with its hash and whether it is over now, or None."""
    return await unit.fetchrow(
        "SELECT k.*, coalesce(k.expires_at <= clock_timestamp(), false) AS expired,"
        " extract(epoch FROM k.expires_at)::float8 AS expires_epoch,"
        " coalesce(t.state <> 'active', false) AS tenant_inactive"
        " FROM api_key k LEFT JOIN tenant t USING (tenant_id) WHERE k.id = $1",
        api_key_id,
    )


async def get_api_key(unit: UnitOfWork, api_key_id: ApiKeyId, *, lock: bool = False) -> asyncpg.Record:
    """The row.

    Raises:
        ProblemError: 404 `quota.api_key.not_found`.
    """
    row = await unit.fetchrow("SELECT * FROM api_key WHERE id = $1" + (" FOR UPDATE" if lock else ""), api_key_id)
    if row is None:
        raise ProblemError(ErrorCode.API_KEY_NOT_FOUND, f"There is no API key {api_key_id}.")
    return row


async def list_api_keys(
    unit: UnitOfWork,
    after: UUID | None,
    limit: int,
    *,
    tenant_id: TenantId | None = None,
    project: ProjectId | None = None,
    roles: Sequence[Role] = (),
    name: str | None = None,
    is_revoked: bool | None = None,
) -> list[asyncpg.Record]:
    """Keys by id, revoked ones included unless told otherwise."""
    where = Where()
    where.after("id", after)
    where.add("tenant_id = {}", tenant_id)
    where.add("project_id = {}", project)
    where.among("role", roles)
    where.add("name = {}", name)
    where.add("(revoked_at IS NOT NULL) = {}", is_revoked)
    return await unit.fetch(
        f"SELECT * FROM api_key{where.text()} ORDER BY id LIMIT {where.value(limit)}", *where.arguments
    )


async def revoke_api_key(unit: UnitOfWork, api_key_id: ApiKeyId) -> asyncpg.Record | None:
    """Marks a key revoked; None when it was already."""
    return await unit.fetchrow(
        "UPDATE api_key SET revoked_at = clock_timestamp(), generation = generation + 1"
        " WHERE id = $1 AND revoked_at IS NULL RETURNING *",
        api_key_id,
    )


async def change_role(unit: UnitOfWork, api_key_id: ApiKeyId, role: Role) -> asyncpg.Record:
    """Gives the locked key another role."""
    row = await unit.fetchrow(
        "UPDATE api_key SET role = $2, generation = generation + 1 WHERE id = $1 RETURNING *", api_key_id, role.value
    )
    assert row is not None, "the row was locked before"
    return row


async def touch_api_key(unit: UnitOfWork, api_key_id: ApiKeyId) -> None:
    """Notes the use of a key, at most once a minute."""
    await unit.execute(
        "UPDATE api_key SET last_used_at = clock_timestamp() WHERE id = $1"
        " AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '1 minute')",
        api_key_id,
    )
