"""Changes of a node by operators and the scheduler's word, and the one way in which each is written and told."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from millpond_contracts.bodies.nodes import (
    Condition,
    CordonReason,
    CordonRequest,
    DrainRequest,
    MoveRequest,
    NodeChange,
    NodeState,
    NodeView,
)
from millpond_contracts.bodies.tenants import Role
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.registry import (
    NodeCordoned,
    NodeDrainRequested,
    NodeEvent,
    NodeLabelsChanged,
    NodeMarketChanged,
    NodeMoved,
    NodeRemoved,
)
from millpond_contracts.events.scheduler import NodeEmptied, NodeQuarantined
from millpond_contracts.ids import NodeId
from millpond_contracts.resources import NodeInventory
from millpond_kernel.audit import audit
from millpond_kernel.generation import check_generation, check_if_match
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_registry.domain.devices import KnownDevice
from millpond_registry.domain.nodes import (
    Node,
    add_cordon,
    change_labels,
    enter_pool,
    enter_state,
    mark_emptied,
    node_view,
    remove_cordon,
    request_drain,
)
from millpond_registry.domain.pools import unique_name
from millpond_registry.store import allocations, capacity, heartbeats, nodes, pools
from millpond_registry.store.clock import read_clock
from millpond_registry.store.devices import devices_of

_OF_OPERATORS = (CordonReason.OPERATOR, CordonReason.DRAIN, CordonReason.HEALTH)


async def announce(
    unit: UnitOfWork,
    node: Node,
    event: type[NodeEvent],
    devices: Sequence[KnownDevice] | None = None,
    **more: Any,
) -> NodeView:
    """Tells others of the stored node and has its pool counted; `more` are the event's own fields."""
    known = await devices_of(unit, node.id) if devices is None else devices
    view = node_view(node, known)
    unit.emit(event(node=view, **more))
    await capacity.mark_node(unit, node.id)
    return view


async def save_node(
    unit: UnitOfWork,
    before: Node,
    after: Node,
    event: type[NodeEvent],
    *,
    devices: Sequence[KnownDevice] | None = None,
    with_inventory: bool = False,
    **more: Any,
) -> NodeView:
    """Writes a changed node under its lock with the next generation, and announces it."""
    after = replace(after, generation=before.generation + 1)
    await nodes.update_node(unit, before, after, with_inventory=with_inventory)
    return await announce(unit, after, event, devices, **more)


async def lock_existing_node(unit: UnitOfWork, node_id: NodeId) -> Node:
    """The node, its row kept for this transaction.

    Raises:
        ProblemError: 404 when there is none, or it was removed.
    """
    node = await nodes.lock_node(unit, node_id)
    if node is None or node.state is NodeState.REMOVED:
        raise ProblemError(ErrorCode.NODE_NOT_FOUND, f"There is no node {node_id}, or it was removed.")
    return node


async def get_node(unit: UnitOfWork, node_id: NodeId) -> NodeView:
    """The node with its devices, also after its removal.

    Raises:
        ProblemError: 404 when there is none.
    """
    node = await nodes.find_node(unit, node_id)
    if node is None:
        raise ProblemError(ErrorCode.NODE_NOT_FOUND, f"There is no node {node_id}.")
    return node_view(node, await devices_of(unit, node_id))


async def get_inventory(unit: UnitOfWork, node_id: NodeId) -> NodeInventory:
    """The newest complete inventory, with the devices that it named.

    Raises:
        ProblemError: 404 when there is no such node.
    """
    node = await nodes.find_node(unit, node_id)
    if node is None:
        raise ProblemError(ErrorCode.NODE_NOT_FOUND, f"There is no node {node_id}.")
    reported = [device.report for device in await devices_of(unit, node_id) if device.reported]
    return node.inventory.model_copy(update={"devices": tuple(sorted(reported, key=lambda device: device.index))})


async def cordon_node(unit: UnitOfWork, caller: Principal, node_id: NodeId, request: CordonRequest) -> NodeView:
    """The node closed for new work by the operator; nothing changes when it is already."""
    node = await lock_existing_node(unit, node_id)
    check_generation(request.generation, node.generation)
    return await _save_if_changed(unit, caller, node, add_cordon(node, CordonReason.OPERATOR), "node.cordon")


async def uncordon_node(unit: UnitOfWork, caller: Principal, node_id: NodeId, request: CordonRequest) -> NodeView:
    """The node without the caller's own reasons, a drain that the caller asked for included; those of others stay.

    Whether a node is well again is an operator's to say.
    """
    node = await lock_existing_node(unit, node_id)
    check_generation(request.generation, node.generation)
    own = (CordonReason.SCALE_IN,) if caller.role is Role.SERVICE else _OF_OPERATORS
    opened = node
    for reason in own:
        opened = remove_cordon(opened, reason)
    if CordonReason.HEALTH in node.cordons - opened.cordons:
        await heartbeats.put_conditions(unit, node.id, [_quarantine_condition(is_open=False)])
    return await _save_if_changed(unit, caller, node, opened, "node.uncordon")


async def drain_node(unit: UnitOfWork, caller: Principal, node_id: NodeId, request: DrainRequest) -> NodeView:
    """The node asked to become empty, for its operator or for scale-in; the scheduler answers when nothing is left.

    An operator takes over a drain for scale-in: what the operator wants does not end when the load rises.
    """
    node = await lock_existing_node(unit, node_id)
    check_generation(request.generation, node.generation)
    reason = CordonReason.SCALE_IN if caller.role is Role.SERVICE else CordonReason.DRAIN
    may_follow = {reason} if caller.role is Role.SERVICE else {reason, CordonReason.SCALE_IN}
    if node.drain is not None and node.drain.reason not in may_follow:
        raise ProblemError(
            ErrorCode.NODE_STATE, f"Node {node.name} is being emptied for {node.drain.reason}; let that end first."
        )
    now = await read_clock(unit)
    draining = request_drain(node, reason, request.deadline_seconds, now)
    view = await save_node(unit, node, draining, NodeDrainRequested)
    audit(unit, caller, "node.drain", str(node_id), after=view.drain)
    return view


async def move_node(unit: UnitOfWork, caller: Principal, node_id: NodeId, request: MoveRequest) -> NodeView:
    """The node asked to become empty and to enter another pool then; naming its own pool calls a move off.

    Raises:
        ProblemError: 404 for an unknown node or pool, 409 while the node is being emptied for another reason.
    """
    node = await lock_existing_node(unit, node_id)
    if await pools.lock_pool(unit, request.pool_id) is None:
        raise ProblemError(ErrorCode.POOL_NOT_FOUND, f"There is no pool {request.pool_id}.")
    if request.pool_id == node.pool_id:
        stays = remove_cordon(node, CordonReason.MOVE)
        return await _save_if_changed(unit, caller, node, stays, "node.move_cancel")
    if node.drain is not None and node.drain.reason is not CordonReason.MOVE:
        raise ProblemError(
            ErrorCode.NODE_STATE, f"Node {node.name} is being emptied for {node.drain.reason}; uncordon it first."
        )
    now = await read_clock(unit)
    moving = request_drain(node, CordonReason.MOVE, request.deadline_seconds, now, move_to=request.pool_id)
    view = await save_node(unit, node, moving, NodeDrainRequested)
    audit(unit, caller, "node.move", str(node_id), after=view.drain)
    return view


async def change_node(
    unit: UnitOfWork, caller: Principal, node_id: NodeId, if_match: str, change: NodeChange
) -> NodeView:
    """The node paid for and labelled as the operator says.

    Raises:
        ProblemError: 404 unknown or removed, 412 stale.
    """
    node = await lock_existing_node(unit, node_id)
    check_if_match(if_match, node.generation)
    after = replace(change_labels(node, change.labels), market=change.market or node.market)
    if after == node:
        return node_view(node, await devices_of(unit, node_id))
    view = await save_node(unit, node, after, NodeLabelsChanged if after.labels != node.labels else NodeMarketChanged)
    labels = node.labels or {}
    before = NodeChange(market=node.market, labels={key: labels.get(key) for key in change.labels})
    audit(unit, caller, "node.change", str(node_id), before=before, after=change)
    return view


async def take_emptied(unit: UnitOfWork, event: NodeEmptied) -> None:
    """Ends the drain that the scheduler answers: a moving node enters its new pool, any other waits for its owner.

    An answer to a drain that was called off or repeated is late and changes nothing.
    """
    node = await nodes.lock_node(unit, event.node_id)
    if node is None or node.state is NodeState.REMOVED or node.drain is None or node.emptied:
        return
    if node.drain.generation != event.drain_generation:
        return
    target = node.drain.move_to
    if target is None or await pools.lock_pool(unit, target) is None:
        await save_node(unit, node, mark_emptied(node, await read_clock(unit)), NodeCordoned)
        return
    name = unique_name(node.name, await nodes.names_in_pool(unit, target))
    await save_node(unit, node, enter_pool(node, target, name), NodeMoved, from_pool_id=node.pool_id)


async def take_quarantined(unit: UnitOfWork, event: NodeQuarantined) -> None:
    """Closes a node on which job after job failed, and keeps why; an operator's uncordon opens it again."""
    node = await nodes.lock_node(unit, event.node_id)
    if node is None or node.state is NodeState.REMOVED:
        return
    evidence = (
        f"{event.failures} different jobs in a row failed within {event.within_seconds} s of their start, the last by"
        f" {event.last_reason.value}"
    )
    await heartbeats.put_conditions(unit, node.id, [_quarantine_condition(is_open=True, evidence=evidence)])
    # Also when it is closed already: the scheduler keeps the node closed until it is told so.
    await save_node(unit, node, add_cordon(node, CordonReason.HEALTH), NodeCordoned)


def _quarantine_condition(*, is_open: bool, evidence: str = "") -> Condition:
    return Condition(target="node", name="quarantined", open=is_open, evidence=evidence)


async def remove_node(unit: UnitOfWork, caller: Principal, node_id: NodeId, if_match: str) -> NodeView:
    """The node removed; its machine may join again as a new node.

    A ready node must have been drained: only the scheduler's word rules out work that is on its way.

    Raises:
        ProblemError: 409 while the node may hold work.
    """
    node = await lock_existing_node(unit, node_id)
    check_if_match(if_match, node.generation)
    if node.state is NodeState.READY and not node.emptied:
        raise ProblemError(
            ErrorCode.NODE_STATE, f"Node {node.name} is ready and not drained: drain it and wait until it is empty."
        )
    held = await allocations.count_live(unit, node_id)
    if held:
        raise ProblemError(ErrorCode.NODE_STATE, f"Node {node.name} still holds {held} allocations; drain it first.")
    removed = enter_state(node, NodeState.REMOVED, await read_clock(unit))
    view = await save_node(unit, node, replace(removed, drain=None), NodeRemoved)
    audit(unit, caller, "node.remove", str(node_id), after=view)
    return view


async def _save_if_changed(unit: UnitOfWork, caller: Principal, before: Node, after: Node, action: str) -> NodeView:
    if after == before:
        return node_view(before, await devices_of(unit, before.id))
    view = await save_node(unit, before, after, NodeCordoned)
    audit(unit, caller, action, str(before.id))
    return view
