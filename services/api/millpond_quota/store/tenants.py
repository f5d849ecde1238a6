"""Rows of tenants."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.tenants import TenantSpec, TenantState, TenantView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import TenantId
from millpond_kernel.filters import EVER, Span, Where
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork


def tenant_view(row: asyncpg.Record) -> TenantView:
    """The tenant of a row."""
    return TenantView(
        tenant_id=TenantId.of(row["tenant_id"]),
        name=row["name"],
        timezone=row["timezone"],
        currency=row["currency"],
        state=TenantState(row["state"]),
        labels=row["labels"],
        created_at=row["created_at"],
        generation=row["generation"],
    )


async def insert_tenant(unit: UnitOfWork, spec: TenantSpec) -> TenantView:
    """A new tenant.

    Raises:
        ProblemError: 409 `kernel.name.taken`.
    """
    row = await unit.fetchrow(
        "INSERT INTO tenant (tenant_id, name, timezone, currency, state, labels, generation)"
        " VALUES ($1, $2, $3, $4, 'active', $5, 1) ON CONFLICT (name) WHERE state <> 'deleted' DO NOTHING RETURNING *",
        TenantId.new(),
        spec.name,
        spec.timezone,
        spec.currency,
        spec.labels,
    )
    if row is None:
        raise ProblemError(ErrorCode.NAME_TAKEN, f"A tenant named {spec.name!r} exists.")
    return tenant_view(row)


async def get_tenant(unit: UnitOfWork, tenant_id: TenantId, *, lock: bool = False) -> TenantView:
    """The tenant, locked for a change when asked.

    Raises:
        ProblemError: 404 `quota.tenant.not_found`.
    """
    row = await unit.fetchrow(
        "SELECT * FROM tenant WHERE tenant_id = $1 AND state <> 'deleted'" + (" FOR UPDATE" if lock else ""), tenant_id
    )
    if row is None:
        raise ProblemError(ErrorCode.TENANT_NOT_FOUND, f"There is no tenant {tenant_id}.")
    return tenant_view(row)


async def list_tenants(
    unit: UnitOfWork,
    after: UUID | None,
    limit: int,
    *,
    name: str | None = None,
    states: Sequence[TenantState] = (),
    labels: Sequence[str] = (),
    created: Span = EVER,
) -> list[asyncpg.Record]:
    """Tenants by id; deleted ones only when asked for by state."""
    where = Where()
    where.after("tenant_id", after)
    where.add("name = {}", name)
    where.among("state", states or [state for state in TenantState if state is not TenantState.DELETED])
    where.labelled("labels", labels)
    where.within("created_at", created, "tenant_id")
    return await unit.fetch(
        f"SELECT * FROM tenant{where.text()} ORDER BY tenant_id LIMIT {where.value(limit)}", *where.arguments
    )


async def update_tenant(unit: UnitOfWork, tenant_id: TenantId, spec: TenantSpec, state: TenantState) -> TenantView:
    """The tenant with its new fields and a risen generation; the caller holds its lock.

    Raises:
        ProblemError: 409 `kernel.name.taken`.
    """
    try:
        row = await unit.fetchrow(
            "UPDATE tenant SET name = $2, timezone = $3, currency = $4, labels = $5, state = $6,"
            " generation = generation + 1 WHERE tenant_id = $1 RETURNING *",
            tenant_id,
            spec.name,
            spec.timezone,
            spec.currency,
            spec.labels,
            state.value,
        )
    except asyncpg.UniqueViolationError as error:
        raise ProblemError(ErrorCode.NAME_TAKEN, f"A tenant named {spec.name!r} exists.") from error
    assert row is not None, "the row was locked before"
    return tenant_view(row)
