"""What rating, publishing and closing must not do at the same time: locks that last until the transaction ends."""

from collections.abc import Iterable

import asyncpg

from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import TenantId
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork

_PRICES = "hashtextextended('billing.prices', 0)"


def _tenant(tenant_id: TenantId) -> str:
    # Rendered from integers, so nothing a caller sends can reach this text.
    return f"hashtextextended('billing.tenant.{tenant_id.int:032x}', 0)"


async def lock_for_rating(unit: UnitOfWork, tenant_ids: Iterable[TenantId]) -> None:
    """Lets no price be published and no statement of these tenants be closed meanwhile; others may rate."""
    wanted = sorted({_tenant(tenant_id) for tenant_id in tenant_ids})
    await unit.execute("; ".join(f"SELECT pg_advisory_xact_lock_shared({key})" for key in (_PRICES, *wanted)))


async def lock_for_keeping(unit: UnitOfWork, tenant_ids: Iterable[TenantId]) -> None:
    """Lets nobody else add periods to these tenants meanwhile. Taken after the locks of rating and closing."""
    keys = sorted(f"hashtextextended('billing.periods.{tenant_id.int:032x}', 0)" for tenant_id in set(tenant_ids))
    await unit.execute("; ".join(f"SELECT pg_advisory_xact_lock({key})" for key in keys))


async def lock_for_publishing(unit: UnitOfWork) -> None:
    """Lets nobody rate or publish meanwhile: what is rated already happened before this moment.

    Raises:
        ProblemError: 503: somebody rates for longer than this transaction waits.
    """
    try:
        await unit.execute(f"SELECT pg_advisory_xact_lock({_PRICES})")
    except asyncpg.LockNotAvailableError as error:
        raise ProblemError(
            ErrorCode.DEPENDENCY_AWAY,
            "Statements are being closed. Nothing was changed; try again.",
            retry_after_seconds=5,
        ) from error


async def lock_for_closing(unit: UnitOfWork, tenant_id: TenantId) -> None:
    """Lets nobody rate anything of the tenant meanwhile, and no price be published."""
    # Prices first, as everywhere: a publisher that waits for a rater must not stand between the two.
    await unit.execute(
        f"SELECT pg_advisory_xact_lock_shared({_PRICES}); SELECT pg_advisory_xact_lock({_tenant(tenant_id)})"
    )
