"""Tenants as quota told them last: whose zone and currency a statement follows."""

from collections.abc import Iterable

from millpond_billing.domain.periods import Calendar
from millpond_contracts.bodies.tenants import TenantView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import TenantId
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork


async def save_tenant(unit: UnitOfWork, tenant: TenantView) -> None:
    """Keeps the newest state of a tenant."""
    await unit.execute(
        "INSERT INTO tenant_view AS v (tenant_id, body, generation) VALUES ($1, $2, $3) ON CONFLICT (tenant_id)"
        " DO UPDATE SET body = excluded.body, generation = excluded.generation"
        " WHERE excluded.generation > v.generation",
        tenant.tenant_id,
        tenant.model_dump(mode="json"),
        tenant.generation,
    )


async def find_tenant(unit: UnitOfWork, tenant_id: TenantId) -> TenantView | None:
    """The tenant, or None when quota has not told of it yet."""
    body = await unit.fetchval("SELECT body FROM tenant_view WHERE tenant_id = $1", tenant_id)
    return None if body is None else TenantView.model_validate(body)


async def get_tenant(unit: UnitOfWork, tenant_id: TenantId) -> TenantView:
    """The tenant.

    Raises:
        ProblemError: 404 `quota.tenant.not_found`.
    """
    tenant = await find_tenant(unit, tenant_id)
    if tenant is None:
        raise ProblemError(ErrorCode.TENANT_NOT_FOUND, f"There is no tenant {tenant_id}.")
    return tenant


async def find_tenants(unit: UnitOfWork, tenant_ids: Iterable[TenantId]) -> dict[TenantId, TenantView]:
    """Those of the tenants that quota has told of, deleted ones too: they may still have a statement to come."""
    rows = await unit.fetch("SELECT body FROM tenant_view WHERE tenant_id = ANY($1::uuid[])", list(tenant_ids))
    found = [TenantView.model_validate(row["body"]) for row in rows]
    return {tenant.tenant_id: tenant for tenant in found}


async def list_zones(unit: UnitOfWork) -> list[str]:
    """The time zones that tenants live in."""
    rows = await unit.fetch("SELECT DISTINCT body->>'timezone' AS zone FROM tenant_view ORDER BY 1")
    return [row["zone"] for row in rows]


def calendar_of(tenant: TenantView) -> Calendar:
    """How the tenant's months are counted from now on."""
    return Calendar.of(tenant.timezone)
