"""`/v1/scaling-policies`: operators say how pools grow and shrink."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from millpond_autoscaler.store import policies as rows_of_policies
from millpond_autoscaler.usecases import policies as usecases
from millpond_contracts.bodies.scaling import ScalingPolicySpec, ScalingPolicyView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import PoolId, ScalingPolicyId
from millpond_kernel.auth import OperatorCaller
from millpond_kernel.generation import IfMatch, etag
from millpond_kernel.idempotency import IdempotencyKey, run_idempotent
from millpond_kernel.pagination import Paging, make_page

router = APIRouter(prefix="/v1/scaling-policies", tags=["scaling"])


@router.post("", status_code=201, response_model=ScalingPolicyView)
async def create_policy(
    request: Request, spec: ScalingPolicySpec, caller: OperatorCaller, key: IdempotencyKey
) -> Response:
    """Creates a policy for one flavor of one pool."""
    return await run_idempotent(
        request,
        request.app.state.kernel.database,
        caller,
        key,
        lambda unit: usecases.create_policy(unit, caller, spec),
        location=lambda made: f"/v1/scaling-policies/{made.scaling_policy_id}",
    )


@router.get("")
async def list_policies(
    request: Request,
    caller: OperatorCaller,
    paging: Paging,
    pool_id: PoolId | None = None,
    name: Annotated[str | None, Query(max_length=64)] = None,
) -> Page[ScalingPolicyView]:
    """Lists policies."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        rows = await rows_of_policies.list_policies(
            unit, paging.after_uuid(), paging.limit + 1, pool_id=pool_id, name=name
        )
    return make_page(rows, paging, rows_of_policies.policy_view, lambda row: ScalingPolicyId.of(row["id"]))


@router.get("/{scaling_policy_id}")
async def get_policy(
    request: Request, response: Response, scaling_policy_id: ScalingPolicyId, caller: OperatorCaller
) -> ScalingPolicyView:
    """One policy."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        policy = await usecases.get_policy(unit, scaling_policy_id)
    response.headers["ETag"] = etag(policy.generation)
    return policy


@router.put("/{scaling_policy_id}")
async def replace_policy(
    request: Request,
    response: Response,
    scaling_policy_id: ScalingPolicyId,
    spec: ScalingPolicySpec,
    caller: OperatorCaller,
    match: IfMatch,
) -> ScalingPolicyView:
    """Replaces a policy; its nodes stay, the new rules speak at the next pass."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        policy = await usecases.replace_policy(unit, caller, scaling_policy_id, spec, match)
    response.headers["ETag"] = etag(policy.generation)
    return policy


@router.delete("/{scaling_policy_id}", status_code=204)
async def delete_policy(
    request: Request, scaling_policy_id: ScalingPolicyId, caller: OperatorCaller, match: IfMatch
) -> None:
    """Deletes a policy that has no nodes any more."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        await usecases.delete_policy(unit, caller, scaling_policy_id, match)
