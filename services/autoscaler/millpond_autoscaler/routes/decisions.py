"""`/v1/scaling-decisions`: what was decided, by which rule, from which inputs, and why."""

from fastapi import APIRouter, Request

from millpond_autoscaler.store import decisions as rows_of_decisions
from millpond_contracts.bodies.scaling import ScalingDecisionView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import PoolId, ScalingDecisionId, ScalingPolicyId
from millpond_kernel.auth import OperatorCaller
from millpond_kernel.pagination import Paging, make_page
from millpond_kernel.problem import ProblemError

router = APIRouter(prefix="/v1/scaling-decisions", tags=["scaling"])


@router.get("")
async def list_decisions(
    request: Request,
    caller: OperatorCaller,
    paging: Paging,
    scaling_policy_id: ScalingPolicyId | None = None,
    pool_id: PoolId | None = None,
) -> Page[ScalingDecisionView]:
    """Lists decisions, the newest first."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        rows = await rows_of_decisions.list_decisions(
            unit, paging.after_uuid(), paging.limit + 1, policy_id=scaling_policy_id, pool_id=pool_id
        )
    return make_page(rows, paging, rows_of_decisions.decision_view, lambda row: ScalingDecisionId.of(row["id"]))


@router.get("/{scaling_decision_id}")
async def get_decision(
    request: Request, scaling_decision_id: ScalingDecisionId, caller: OperatorCaller
) -> ScalingDecisionView:
    """One decision with everything it was drawn from."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        row = await rows_of_decisions.find_decision(unit, scaling_decision_id)
    if row is None:
        raise ProblemError(ErrorCode.SCALING_DECISION_NOT_FOUND, f"There is no decision {scaling_decision_id}.")
    return rows_of_decisions.decision_view(row)
