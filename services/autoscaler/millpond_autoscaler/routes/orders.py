"""`/v1/node-orders`: nodes asked of a provider, from the order to their release."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from millpond_autoscaler.store import orders as rows_of_orders
from millpond_contracts.bodies.scaling import NodeOrderState, NodeOrderView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import NodeOrderId, PoolId, ScalingPolicyId
from millpond_kernel.auth import OperatorCaller
from millpond_kernel.generation import etag
from millpond_kernel.pagination import Paging, make_page
from millpond_kernel.problem import ProblemError

router = APIRouter(prefix="/v1/node-orders", tags=["scaling"])


@router.get("")
async def list_orders(
    request: Request,
    caller: OperatorCaller,
    paging: Paging,
    scaling_policy_id: ScalingPolicyId | None = None,
    pool_id: PoolId | None = None,
    state: Annotated[NodeOrderState | None, Query()] = None,
) -> Page[NodeOrderView]:
    """Lists orders, the newest first."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        rows = await rows_of_orders.list_orders(
            unit, paging.after_uuid(), paging.limit + 1, policy_id=scaling_policy_id, pool_id=pool_id, state=state
        )
    return make_page(rows, paging, rows_of_orders.order_view, lambda row: NodeOrderId.of(row["id"]))


@router.get("/{node_order_id}")
async def get_order(
    request: Request, response: Response, node_order_id: NodeOrderId, caller: OperatorCaller
) -> NodeOrderView:
    """One order."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        row = await rows_of_orders.find_order(unit, node_order_id)
    if row is None:
        raise ProblemError(ErrorCode.NODE_ORDER_NOT_FOUND, f"There is no node order {node_order_id}.")
    order = rows_of_orders.order_view(row)
    response.headers["ETag"] = etag(order.generation)
    return order
