"""`/v1/nodes`: operators see every node and say which takes work."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from millpond_contracts.bodies.devices import ConditionView
from millpond_contracts.bodies.nodes import (
    CordonRequest,
    DrainRequest,
    MoveRequest,
    NodeChange,
    NodeState,
    NodeView,
)
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import NodeId, PoolId
from millpond_contracts.resources import NodeInventory
from millpond_kernel.auth import OperatorCaller
from millpond_kernel.filters import LabelQuery, NameQuery, Spanning
from millpond_kernel.generation import IfMatch, etag
from millpond_kernel.pagination import Paging, make_page
from millpond_registry.domain.nodes import node_view
from millpond_registry.routes.access import NodeKeeper
from millpond_registry.store import heartbeats
from millpond_registry.store import nodes as rows_of_nodes
from millpond_registry.store.devices import devices_of_nodes
from millpond_registry.usecases import nodes as usecases

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


@router.get("")
async def list_nodes(
    request: Request,
    caller: OperatorCaller,
    paging: Paging,
    joined: Spanning,
    pool_id: PoolId | None = None,
    state: Annotated[
        tuple[NodeState, ...], Query(max_length=8, description="any of these; removed nodes only when asked for")
    ] = (),
    name: NameQuery = None,
    label: LabelQuery = (),
) -> Page[NodeView]:
    """Lists nodes with their devices; `since` and `until` are about when they joined."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        found = await rows_of_nodes.list_nodes(
            unit,
            paging.after_uuid(),
            paging.limit + 1,
            pool_id=pool_id,
            states=state,
            name=name,
            labels=label,
            joined=joined,
        )
        devices = await devices_of_nodes(unit, [node.id for node in found])
    return make_page(found, paging, lambda node: node_view(node, devices[node.id]), lambda node: node.id)


@router.get("/{node_id}")
async def get_node(request: Request, response: Response, node_id: NodeId, caller: OperatorCaller) -> NodeView:
    """One node with its devices."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        view = await usecases.get_node(unit, node_id)
    return _tagged(response, view)


@router.get("/{node_id}/inventory")
async def get_inventory(request: Request, node_id: NodeId, caller: OperatorCaller) -> NodeInventory:
    """The newest complete inventory as the agent reported it."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        return await usecases.get_inventory(unit, node_id)


@router.get("/{node_id}/conditions")
async def list_conditions(request: Request, node_id: NodeId, caller: OperatorCaller) -> Page[ConditionView]:
    """What was found wrong by its agent, or by jobs that failed there; open conditions first, at most 200."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        await usecases.get_node(unit, node_id)
        rows = await heartbeats.list_conditions(unit, node_id)
    return Page[ConditionView](items=[ConditionView.model_validate(dict(row)) for row in rows])


@router.post("/{node_id}/cordon")
async def cordon_node(
    request: Request, response: Response, node_id: NodeId, body: CordonRequest, caller: OperatorCaller
) -> NodeView:
    """Lets nothing new start on the node; what runs goes on."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        view = await usecases.cordon_node(unit, caller, node_id, body)
    return _tagged(response, view)


@router.post("/{node_id}/uncordon")
async def uncordon_node(
    request: Request, response: Response, node_id: NodeId, body: CordonRequest, caller: NodeKeeper
) -> NodeView:
    """Takes the caller's reasons back: an operator's cordon, drain and quarantine (`health`), a service's scale-in."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        view = await usecases.uncordon_node(unit, caller, node_id, body)
    return _tagged(response, view)


@router.post("/{node_id}/drain", status_code=202)
async def drain_node(
    request: Request, response: Response, node_id: NodeId, body: DrainRequest, caller: NodeKeeper
) -> NodeView:
    """Empties the node; at the deadline what is left is stopped. `drain.emptied_at` tells the end.

    The reason is `drain`, of a service `scale_in`.
    """
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        view = await usecases.drain_node(unit, caller, node_id, body)
    return _tagged(response, view)


@router.post("/{node_id}/move", status_code=202)
async def move_node(
    request: Request, response: Response, node_id: NodeId, body: MoveRequest, caller: OperatorCaller
) -> NodeView:
    """Moves the node to another pool once it is empty; its own pool calls a move off."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        view = await usecases.move_node(unit, caller, node_id, body)
    return _tagged(response, view)


@router.patch("/{node_id}")
async def change_node(
    request: Request, response: Response, node_id: NodeId, change: NodeChange, caller: OperatorCaller, match: IfMatch
) -> NodeView:
    """Changes how the operator pays for the node (`committed`, `on_demand`) and labels, which say where it stands."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        view = await usecases.change_node(unit, caller, node_id, match, change)
    return _tagged(response, view)


@router.delete("/{node_id}", status_code=204)
async def remove_node(request: Request, node_id: NodeId, caller: NodeKeeper, match: IfMatch) -> None:
    """Removes a node that holds nothing."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        await usecases.remove_node(unit, caller, node_id, match)


def _tagged(response: Response, view: NodeView) -> NodeView:
    response.headers["ETag"] = etag(view.generation)
    return view
