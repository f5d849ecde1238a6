"""Creating, changing and deleting virtual pools under the pool's registered capacity; alerts on their limits."""

from datetime import datetime, timedelta

from millpond_contracts.bodies.pools import PoolIsolation
from millpond_contracts.bodies.tenants import (
    Limits,
    Preemption,
    QueuePolicy,
    VirtualPoolChange,
    VirtualPoolSpec,
    VirtualPoolView,
)
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.quota import LimitExhausted, ReservationChanged, VirtualPoolChanged
from millpond_contracts.events.scheduler import AdmissionChanged
from millpond_contracts.ids import PoolId, TenantId, VirtualPoolId
from millpond_kernel.audit import audit
from millpond_kernel.generation import check_if_match
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_quota.domain.guarantees import find_shortfalls, raised_amounts
from millpond_quota.domain.windows import Window, find_peak
from millpond_quota.store import alerts, reservations, tenants, virtual_pools

# What a change may name beside limits; what it does not name stays.
_CHANGED = ("policy", "labels", "preemption", "minimum_runtime_seconds")


async def _check_pool(
    unit: UnitOfWork, pool_id: PoolId, tenant_id: TenantId, limits: Limits, before: VirtualPoolView | None = None
) -> None:
    """Refuses a guarantee that is new or raised and that the pool cannot keep beside those of others.

    What was guaranteed before machines left stays; it may be lowered step by step.
    """
    pool = await virtual_pools.lock_pool(unit, pool_id)
    if pool.isolation is PoolIsolation.DEDICATED and pool.tenant_id != tenant_id:
        raise ProblemError(ErrorCode.POOL_UNKNOWN, f"There is no pool {pool_id} for this tenant: it is dedicated.")
    if pool.allow_oversubscription:
        return
    others = await virtual_pools.list_limits_of_pool(unit, pool_id, before.virtual_pool_id if before else None)
    raised = raised_amounts(before.limits if before else None, limits)
    windows = await reservations.list_windows(unit, pool_id)
    always = Window(await unit.fetchval("SELECT clock_timestamp()"), None)
    reserved: dict[tuple[str, str | None], int] = {
        ("device", flavor): find_peak(found, always) for flavor, found in windows.items()
    }
    all_short = find_shortfalls([*others, limits], await virtual_pools.find_capacity(unit, pool_id), reserved)
    shortfalls = [short for short in all_short if (short.resource, short.flavor) in raised]
    if shortfalls:
        words = "; ".join(
            f"{s.resource}{'/' + s.flavor if s.flavor else ''}: guarantees and reservations would be {s.guaranteed},"
            f" registered {s.capacity}"
            for s in shortfalls[:5]
        )
        raise ProblemError(
            ErrorCode.POOL_OVERSUBSCRIBED,
            f"Pool {pool.name} cannot guarantee this ({words}). Lower guaranteed (use borrow), or add nodes,"
            " or set allow_oversubscription on the pool.",
        )


async def create_virtual_pool(unit: UnitOfWork, caller: Principal, spec: VirtualPoolSpec) -> VirtualPoolView:
    """A new virtual pool.

    Raises:
        ProblemError: no such tenant or pool, guarantees beyond the capacity, or the name is taken.
    """
    # Locked, so that the tenant cannot be deleted meanwhile.
    await tenants.get_tenant(unit, spec.tenant_id, lock=True)
    await _check_pool(unit, spec.pool_id, spec.tenant_id, spec.limits)
    created = await virtual_pools.insert_virtual_pool(unit, spec)
    unit.emit(VirtualPoolChanged(virtual_pool=created))
    audit(unit, caller, "virtual_pool.create", str(created.virtual_pool_id), after=created)
    return created


async def change_virtual_pool(
    unit: UnitOfWork, caller: Principal, virtual_pool_id: VirtualPoolId, change: VirtualPoolChange, if_match: str
) -> VirtualPoolView:
    """The virtual pool with new limits, policy or labels; lowering a limit stops nothing unless it says so.

    Raises:
        ProblemError: 404, 412, a raised guarantee beyond the capacity, or preemption with another policy than priority.
    """
    before = await virtual_pools.get_virtual_pool(unit, virtual_pool_id, lock=True)
    check_if_match(if_match, before.generation)
    limits = before.limits if change.limits is None else change.limits
    await _check_pool(unit, before.pool_id, before.tenant_id, limits, before)
    reclaim_at = before.reclaim_at if change.limits is None else None
    if change.reclaim:
        now: datetime = await unit.fetchval("SELECT clock_timestamp()")
        reclaim_at = now + timedelta(seconds=change.reclaim_grace_seconds)
    named = {name: value for name in _CHANGED if (value := getattr(change, name)) is not None}
    wanted = before.model_copy(update={**named, "limits": limits, "reclaim_at": reclaim_at})
    if wanted.preemption is not Preemption.NEVER and wanted.policy is not QueuePolicy.PRIORITY:
        raise ProblemError(
            ErrorCode.VIRTUAL_POOL_INVALID,
            f"The policy {wanted.policy.value} knows no lower priority: set the policy priority, or preemption never.",
        )
    after = await virtual_pools.update_virtual_pool(unit, wanted)
    unit.emit(VirtualPoolChanged(virtual_pool=after))
    audit(unit, caller, "virtual_pool.change", str(virtual_pool_id), before=before, after=after)
    return after


async def delete_virtual_pool(
    unit: UnitOfWork, caller: Principal, virtual_pool_id: VirtualPoolId, if_match: str
) -> None:
    """Deletes a virtual pool with its reservations: nothing new is admitted, what runs ends by itself.

    Raises:
        ProblemError: 404 or 412.
    """
    before = await virtual_pools.get_virtual_pool(unit, virtual_pool_id, lock=True)
    check_if_match(if_match, before.generation)
    gone = before.model_copy(update={"reclaim_at": None, "deleted": True})
    after = await virtual_pools.update_virtual_pool(unit, gone)
    now: datetime = await unit.fetchval("SELECT clock_timestamp()")
    for cancelled in await reservations.cancel_reservations_of(unit, virtual_pool_id, now):
        unit.emit(ReservationChanged(reservation=cancelled))
    unit.emit(VirtualPoolChanged(virtual_pool=after))
    audit(unit, caller, "virtual_pool.delete", str(virtual_pool_id), before=before)


async def note_admission(unit: UnitOfWork, event: AdmissionChanged, at: datetime) -> None:
    """Opens one alert when work begins to wait for a limit, closes it when it no longer does."""
    if not event.blocked:
        await alerts.close_alert(unit, event, at)
        return
    row = await alerts.open_alert(unit, event, at)
    if row is not None:
        unit.emit(LimitExhausted(alert=alerts.limit_alert(row), generation=1))
