"""Creating, replacing and deleting scaling policies."""

import asyncpg

from millpond_autoscaler.store import orders, policies
from millpond_contracts.bodies.scaling import ScalingPolicySpec, ScalingPolicyView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.autoscaler import ScalingPolicyChanged
from millpond_contracts.ids import ScalingPolicyId
from millpond_kernel.audit import audit
from millpond_kernel.generation import check_if_match
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork


async def create_policy(unit: UnitOfWork, caller: Principal, spec: ScalingPolicySpec) -> ScalingPolicyView:
    """A new policy, in force at once when it is enabled.

    Raises:
        ProblemError: 404 for an unknown pool, 409 when the name is taken or the pool has one for this flavor.
    """
    if await policies.find_pool(unit, spec.pool_id) is None:
        raise ProblemError(ErrorCode.SCALING_POOL_UNKNOWN, f"There is no pool {spec.pool_id}, as far as is known here.")
    try:
        made = await policies.insert_policy(unit, ScalingPolicyId.new(), spec)
    except asyncpg.UniqueViolationError as error:
        raise _taken(error, spec) from error
    unit.emit(ScalingPolicyChanged(policy=made))
    audit(unit, caller, "scaling_policy.create", str(made.scaling_policy_id), after=made)
    return made


async def get_policy(unit: UnitOfWork, policy_id: ScalingPolicyId, *, is_locked: bool = False) -> ScalingPolicyView:
    """The policy.

    Raises:
        ProblemError: 404.
    """
    found = await policies.find_policy(unit, policy_id, is_locked=is_locked)
    if found is None:
        raise ProblemError(ErrorCode.SCALING_POLICY_NOT_FOUND, f"There is no scaling policy {policy_id}.")
    return found


async def replace_policy(
    unit: UnitOfWork, caller: Principal, policy_id: ScalingPolicyId, spec: ScalingPolicySpec, if_match: str
) -> ScalingPolicyView:
    """The policy as described now; its nodes stay as they are, and new rules speak at the next pass.

    Raises:
        ProblemError: 404 unknown, 412 stale, 409 when the name is taken, 422 when pool or flavor differ.
    """
    current = await get_policy(unit, policy_id, is_locked=True)
    check_if_match(if_match, current.generation)
    if (spec.pool_id, spec.flavor) != (current.pool_id, current.flavor):
        raise ProblemError(
            ErrorCode.SCALING_POLICY_INVALID,
            "A policy keeps its pool and its flavor; make another policy for another pool or flavor.",
        )
    try:
        changed = await policies.update_policy(unit, current, spec)
    except asyncpg.UniqueViolationError as error:
        raise _taken(error, spec) from error
    unit.emit(ScalingPolicyChanged(policy=changed))
    audit(unit, caller, "scaling_policy.replace", str(policy_id), before=current, after=changed)
    return changed


async def delete_policy(unit: UnitOfWork, caller: Principal, policy_id: ScalingPolicyId, if_match: str) -> None:
    """Deletes a policy that has no nodes any more.

    Raises:
        ProblemError: 404 unknown, 412 stale, 409 while orders of it are not over: nobody else would release them.
    """
    current = await get_policy(unit, policy_id, is_locked=True)
    check_if_match(if_match, current.generation)
    live = await orders.count_live(unit, policy_id)
    if live:
        raise ProblemError(
            ErrorCode.SCALING_POLICY_IN_USE,
            f"Policy {current.name} still has {live} nodes: set its min_nodes and max_nodes to 0, then drain and remove"
            " them.",
        )
    await policies.delete_policy(unit, policy_id)
    gone = current.model_copy(update={"generation": current.generation + 1})
    unit.emit(ScalingPolicyChanged(policy=gone, deleted=True))
    audit(unit, caller, "scaling_policy.delete", str(policy_id), before=current)


def _taken(error: asyncpg.UniqueViolationError, spec: ScalingPolicySpec) -> ProblemError:
    if error.constraint_name == "scaling_policy_flavor":
        return ProblemError(
            ErrorCode.SCALING_POLICY_EXISTS, f"Pool {spec.pool_id} has a policy for {spec.flavor} already; change that."
        )
    return ProblemError(ErrorCode.NAME_TAKEN, f"There is a scaling policy {spec.name} already; choose another name.")
