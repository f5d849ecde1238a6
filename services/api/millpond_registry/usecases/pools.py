"""Creating, replacing and deleting pools."""

import asyncpg

from millpond_contracts.bodies.pools import PoolIsolation, PoolSpec, PoolView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.registry import PoolChanged
from millpond_contracts.ids import PoolId
from millpond_kernel.audit import audit
from millpond_kernel.generation import check_if_match
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_registry.store import capacity, loans, pools

DEFAULT_POOL = "default"


async def ensure_a_pool(unit: UnitOfWork) -> None:
    """Makes the pool `default`, which takes every node, when there is no pool; any number of processes may ask."""
    await pools.lock_default_pool(unit)
    if await pools.read_all_pools(unit):
        return
    created = await pools.insert_pool(unit, PoolId.new(), PoolSpec(name=DEFAULT_POOL))
    assert created is not None, "the lock keeps others from creating it"
    unit.emit(PoolChanged(pool=created))


async def create_pool(unit: UnitOfWork, caller: Principal, spec: PoolSpec) -> PoolView:
    """A new, empty pool.

    Raises:
        ProblemError: 409 when the name is taken, 422 when isolation and tenant contradict each other.
    """
    _check_isolation(spec)
    created = await pools.insert_pool(unit, PoolId.new(), spec)
    if created is None:
        raise ProblemError(ErrorCode.NAME_TAKEN, f"There is a pool {spec.name} already; choose another name.")
    unit.emit(PoolChanged(pool=created))
    audit(unit, caller, "pool.create", str(created.pool_id), after=created)
    return created


async def replace_pool(unit: UnitOfWork, caller: Principal, pool_id: PoolId, spec: PoolSpec, if_match: str) -> PoolView:
    """The pool as described now. Its nodes stay: a selector is asked only when a node joins.

    Raises:
        ProblemError: 404 unknown, 412 stale, 409 when the name is taken, 422 contradictory.
    """
    _check_isolation(spec)
    current = await lock_existing_pool(unit, pool_id)
    check_if_match(if_match, current.generation)
    try:
        changed = await pools.update_pool(unit, current, spec)
    except asyncpg.UniqueViolationError as error:
        raise ProblemError(ErrorCode.NAME_TAKEN, f"There is a pool {spec.name} already.") from error
    if changed.reference_task_milli != current.reference_task_milli:
        await capacity.mark_pool(unit, pool_id)
    unit.emit(PoolChanged(pool=changed))
    audit(unit, caller, "pool.replace", str(pool_id), before=current, after=changed)
    return changed


async def delete_pool(unit: UnitOfWork, caller: Principal, pool_id: PoolId, if_match: str) -> None:
    """Removes an empty pool.

    Raises:
        ProblemError: 404 unknown, 412 stale, 409 while nodes are in it or on their way into it.
    """
    current = await lock_existing_pool(unit, pool_id)
    check_if_match(if_match, current.generation)
    held = await pools.count_nodes(unit, pool_id)
    if held:
        raise ProblemError(
            ErrorCode.POOL_NOT_EMPTY, f"Pool {current.name} holds or expects {held} nodes; move or remove them first."
        )
    if await loans.count_open_loans(unit, pool_id):
        raise ProblemError(
            ErrorCode.POOL_NOT_EMPTY, f"Pool {current.name} lends or borrows nodes; let them return first."
        )
    await pools.delete_pool(unit, pool_id)
    gone = current.model_copy(update={"generation": current.generation + 1})
    unit.emit(PoolChanged(pool=gone, deleted=True))
    audit(unit, caller, "pool.delete", str(pool_id), before=current)


async def get_pool(unit: UnitOfWork, pool_id: PoolId) -> PoolView:
    """The pool, when the scope may see it.

    Raises:
        ProblemError: 404 otherwise; a pool dedicated to another tenant does not exist for a tenant.
    """
    pool = await pools.find_pool(unit, pool_id)
    if pool is None:
        raise ProblemError(ErrorCode.POOL_NOT_FOUND, f"There is no pool {pool_id}.")
    return pool


async def lock_existing_pool(unit: UnitOfWork, pool_id: PoolId) -> PoolView:
    """The pool, its row kept for this transaction; raises like `get_pool`."""
    pool = await pools.lock_pool(unit, pool_id)
    if pool is None:
        raise ProblemError(ErrorCode.POOL_NOT_FOUND, f"There is no pool {pool_id}.")
    return pool


def _check_isolation(spec: PoolSpec) -> None:
    dedicated = spec.isolation is PoolIsolation.DEDICATED
    if dedicated != (spec.tenant_id is not None):
        raise ProblemError(
            ErrorCode.BODY_INVALID,
            f"isolation is {spec.isolation} and tenant_id is {spec.tenant_id}: a dedicated pool names its tenant,"
            " a shared one names none.",
        )
