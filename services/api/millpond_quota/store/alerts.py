"""Opening and closing of limit alerts: at most one open alert per virtual pool, resource and flavor."""

from datetime import datetime

import asyncpg

from millpond_contracts.events.scheduler import AdmissionChanged
from millpond_contracts.ids import AlertId
from millpond_kernel.uow import UnitOfWork


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
