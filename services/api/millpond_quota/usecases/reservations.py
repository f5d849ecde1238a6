"""Making and cancelling reservations, under the pool's registered capacity and the virtual pool's own limit."""

from datetime import datetime

from millpond_contracts.bodies.reservations import ReservationSpec, ReservationView
from millpond_contracts.bodies.tenants import Limit, VirtualPoolView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.quota import ReservationChanged
from millpond_contracts.ids import ReservationId
from millpond_kernel.audit import audit
from millpond_kernel.generation import check_if_match
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_quota.domain.guarantees import guaranteed_amounts, registered_amounts
from millpond_quota.domain.windows import Window, find_peak
from millpond_quota.store import reservations, virtual_pools


async def create_reservation(unit: UnitOfWork, caller: Principal, spec: ReservationSpec) -> ReservationView:
    """A new reservation.

    Raises:
        ProblemError: 404 no such virtual pool, 422 the window has passed, 409 the virtual pool may not hold so much, or
            the pool cannot keep it beside the guarantees and the reservations of others.
    """
    virtual_pool = await virtual_pools.get_virtual_pool(unit, spec.virtual_pool_id, lock=True)
    now: datetime = await unit.fetchval("SELECT clock_timestamp()")
    if spec.ends_at is not None and spec.ends_at <= now:
        raise ProblemError(ErrorCode.RESERVATION_WINDOW, f"The window ended at {spec.ends_at.isoformat()}.")
    window = Window(spec.starts_at, spec.ends_at)
    await _check_own_limit(unit, virtual_pool, spec, window)
    await _check_capacity(unit, virtual_pool, spec, window)
    made = await reservations.insert_reservation(unit, spec, virtual_pool)
    unit.emit(ReservationChanged(reservation=made))
    audit(unit, caller, "reservation.create", str(made.reservation_id), after=made)
    return made


async def _check_own_limit(
    unit: UnitOfWork, virtual_pool: VirtualPoolView, spec: ReservationSpec, window: Window
) -> None:
    limit = virtual_pool.limits.devices.get(spec.flavor, Limit())
    own = await reservations.list_windows(unit, virtual_pool.pool_id, virtual_pool.virtual_pool_id)
    reserved = find_peak(own.get(spec.flavor, ()), window) + spec.device_milli
    if limit.guaranteed + reserved > limit.cap:
        raise ProblemError(
            ErrorCode.RESERVATION_OVER_LIMIT,
            f"Guaranteed {limit.guaranteed} and reserved {reserved} of {spec.flavor} would be more than the"
            f" {limit.cap} that virtual pool {virtual_pool.name} may use at most. Raise hard or borrow first.",
        )


async def _check_capacity(
    unit: UnitOfWork, virtual_pool: VirtualPoolView, spec: ReservationSpec, window: Window
) -> None:
    pool = await virtual_pools.lock_pool(unit, virtual_pool.pool_id)
    if pool.allow_oversubscription:
        return
    key = ("device", spec.flavor)
    all_limits = await virtual_pools.list_limits_of_pool(unit, virtual_pool.pool_id, None)
    guaranteed = sum(guaranteed_amounts(limits).get(key, 0) for limits in all_limits)
    others = await reservations.list_windows(unit, virtual_pool.pool_id)
    reserved = find_peak(others.get(spec.flavor, ()), window) + spec.device_milli
    capacity = registered_amounts(await virtual_pools.find_capacity(unit, virtual_pool.pool_id)).get(key, 0)
    if guaranteed + reserved > capacity:
        raise ProblemError(
            ErrorCode.POOL_OVERSUBSCRIBED,
            f"Pool {pool.name} cannot hold this: guarantees {guaranteed} and reservations {reserved} of {spec.flavor}"
            f" at some instant of the window, registered {capacity}.",
        )


async def cancel_reservation(unit: UnitOfWork, caller: Principal, reservation_id: ReservationId, if_match: str) -> None:
    """Cancels a reservation: from now on it holds nothing. What runs goes on.

    Raises:
        ProblemError: 404 (also when it was cancelled before) or 412.
    """
    before = await reservations.get_reservation(unit, reservation_id, lock=True)
    if before.cancelled_at is not None:
        raise ProblemError(ErrorCode.RESERVATION_NOT_FOUND, f"There is no reservation {reservation_id}.")
    check_if_match(if_match, before.generation)
    now: datetime = await unit.fetchval("SELECT clock_timestamp()")
    after = await reservations.cancel_reservation(unit, reservation_id, now)
    unit.emit(ReservationChanged(reservation=after))
    audit(unit, caller, "reservation.cancel", str(reservation_id), before=before, after=after)
