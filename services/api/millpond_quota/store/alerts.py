"""Rows of limit alerts: at most one open alert per virtual pool, resource and flavor."""

from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.tenants import LimitAlert
from millpond_contracts.events.scheduler import AdmissionChanged
from millpond_contracts.ids import AlertId, TenantId, VirtualPoolId
from millpond_kernel.uow import UnitOfWork


def limit_alert(row: asyncpg.Record) -> LimitAlert:
    """The alert of a row."""
    return LimitAlert(
        alert_id=AlertId.of(row["id"]),
        tenant_id=TenantId.of(row["tenant_id"]),
        virtual_pool_id=VirtualPoolId.of(row["virtual_pool_id"]),
        resource=row["resource"],
        flavor=row["flavor"],
        used=row["used"],
        hard=row["hard"],
        missing=row["missing"],
        opened_at=row["opened_at"],
        closed_at=row["closed_at"],
    )


async def open_alert(unit: UnitOfWork, event: AdmissionChanged, at: datetime) -> asyncpg.Record | None:
    """A new alert, or None while one is open for the same limit."""
    return await unit.fetchrow(
        "INSERT INTO limit_alert (id, tenant_id, virtual_pool_id, resource, flavor, used, hard, missing, opened_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
        " ON CONFLICT (virtual_pool_id, resource, coalesce(flavor, '')) WHERE closed_at IS NULL DO NOTHING RETURNING *",
        AlertId.new(),
        event.tenant_id,
        event.virtual_pool_id,
        event.resource,
        event.flavor,
        event.used,
        event.hard,
        event.missing,
        at,
    )


async def close_alert(unit: UnitOfWork, event: AdmissionChanged, at: datetime) -> int:
    """Closes the open alert of a limit; how many there were (0 or 1)."""
    return await unit.execute(
        "UPDATE limit_alert SET closed_at = $4 WHERE virtual_pool_id = $1 AND resource = $2"
        " AND coalesce(flavor, '') = coalesce($3, '') AND closed_at IS NULL",
        event.virtual_pool_id,
        event.resource,
        event.flavor,
        at,
    )


async def list_alerts(
    unit: UnitOfWork, virtual_pool_id: VirtualPoolId, after: UUID | None, limit: int
) -> list[asyncpg.Record]:
    """Alerts of a virtual pool by id."""
    return await unit.fetch(
        "SELECT * FROM limit_alert WHERE virtual_pool_id = $1 AND ($2::uuid IS NULL OR id > $2) ORDER BY id LIMIT $3",
        virtual_pool_id,
        after,
        limit,
    )
