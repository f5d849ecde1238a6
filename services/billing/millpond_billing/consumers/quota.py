"""Tenants, as quota tells them: zone and currency of their statements."""

from collections.abc import Sequence
from typing import Any

from millpond_billing.store.tenants import save_tenant
from millpond_contracts.bodies.tenants import TenantView
from millpond_contracts.events import Envelope
from millpond_contracts.events.quota import TenantChanged
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork


async def _on_tenant(unit: UnitOfWork, envelope: Envelope, event: TenantChanged) -> None:
    await save_tenant(unit, event.tenant_view)


async def _load_tenants(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await save_tenant(unit, TenantView.model_validate(item))


def tenants_consumer() -> Consumer:
    """Follows quota's tenants."""
    return Consumer("tenants", "quota", {TenantChanged: _on_tenant}, snapshots={"tenants": _load_tenants})
