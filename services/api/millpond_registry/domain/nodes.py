"""One node: its state, why nothing new may start there, its drain, and the view that every node event carries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from millpond_contracts.bodies.nodes import CordonReason, DrainView, Market, NodeState, NodeView
from millpond_contracts.bodies.scaling import NODE_ORDER_LABEL
from millpond_contracts.ids import NodeId, PoolId
from millpond_contracts.resources import NodeInventory, place_of
from millpond_registry.domain.devices import KnownDevice, device_view
from millpond_registry.domain.states import transition


@dataclass(frozen=True, slots=True)
class Node:
    """A node as stored. `inventory` is the newest complete one, without devices.

    `sequence` is the inventory's number within the incarnation, None while this incarnation sent none.
    `labels` are those given at the join and by operators; they win over those that the machine reports of itself.
    """

    id: NodeId
    pool_id: PoolId
    name: str
    public_key: bytes
    state: NodeState
    state_since: datetime
    inventory: NodeInventory
    created_at: datetime
    cordons: frozenset[CordonReason] = frozenset()
    drain: DrainView | None = None
    market: Market = Market.ON_DEMAND
    incarnation: int = 0
    boot_id: str | None = None
    agent_version: str | None = None
    labels: dict[str, str] | None = None
    sequence: int | None = None
    last_heartbeat_at: datetime | None = None
    generation: int = 1

    @property
    def schedulable(self) -> bool:
        """Whether new work may start here: ready, and no reason against it."""
        return self.state is NodeState.READY and not self.cordons

    @property
    def emptied(self) -> bool:
        """Whether the scheduler said that nothing is left, after a drain was asked for."""
        return self.drain is not None and self.drain.emptied_at is not None


def enter_state(node: Node, state: NodeState, now: datetime) -> Node:
    """The node in another state since `now`.

    Raises:
        IllegalTransition: the state machine has no such edge.
    """
    return replace(node, state=transition(node.state, state), state_since=now)


def open_session(node: Node, boot_id: str, agent_version: str, now: datetime) -> Node:
    """The node under a new agent session: a higher incarnation that expects its own inventory.

    A restart of the agent alone leaves the state; the first session and a new boot of the machine ask for fresh checks.
    """
    booted = node.boot_id != boot_id
    opened = replace(
        node, incarnation=node.incarnation + 1, boot_id=boot_id, agent_version=agent_version, sequence=None
    )
    if node.state is NodeState.JOINED or (booted and node.state in (NodeState.READY, NodeState.UNREACHABLE)):
        return enter_state(opened, NodeState.CHECKING, now)
    return opened


def add_cordon(node: Node, reason: CordonReason) -> Node:
    """The node with one more reason against new work."""
    return replace(node, cordons=node.cordons | {reason})


def remove_cordon(node: Node, reason: CordonReason) -> Node:
    """The node without this one reason; a drain for that reason ends, the other reasons stay."""
    keeps_drain = node.drain is not None and node.drain.reason is not reason
    return replace(node, cordons=node.cordons - {reason}, drain=node.drain if keeps_drain else None)


def request_drain(
    node: Node, reason: CordonReason, deadline_seconds: int, now: datetime, move_to: PoolId | None = None
) -> Node:
    """The node asked to become empty; the drain is named by the generation that the node gets with this change.

    A drain for another reason that was under way gives up its own reason: a node has one drain.
    """
    if node.drain is not None and node.drain.reason is not reason:
        node = remove_cordon(node, node.drain.reason)
    drain = DrainView(
        generation=node.generation + 1,
        deadline=now + timedelta(seconds=deadline_seconds),
        reason=reason,
        move_to=move_to,
    )
    return replace(node, cordons=node.cordons | {reason}, drain=drain)


def mark_emptied(node: Node, now: datetime) -> Node:
    """The node after the scheduler's word that nothing is left; it stays cordoned until an owner opens it again."""
    assert node.drain is not None
    return replace(node, drain=node.drain.model_copy(update={"emptied_at": now}))


def enter_pool(node: Node, pool_id: PoolId, name: str) -> Node:
    """The emptied node in its new pool, free of the move's reason."""
    return replace(remove_cordon(node, CordonReason.MOVE), pool_id=pool_id, name=name)


def node_labels(node: Node) -> dict[str, str]:
    """Labels of the machine's report, overridden by those given at the join and by operators."""
    return {**own_labels(node.inventory.labels), **(node.labels or {})}


def change_labels(node: Node, wanted: Mapping[str, str | None]) -> Node:
    """The node with labels as an operator says; None takes one back, and what the machine says of itself remains."""
    labels = {**(node.labels or {}), **wanted}
    return replace(node, labels={key: value for key, value in labels.items() if value is not None})


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """What a machine may say of itself: never whose order it is, which a join token alone tells."""
    return {key: value for key, value in labels.items() if key != NODE_ORDER_LABEL}


def node_view(node: Node, devices: Sequence[KnownDevice]) -> NodeView:
    """The whole node as others see it."""
    inventory, labels = node.inventory, node_labels(node)
    ordered = sorted(devices, key=lambda device: (device.report.index, device.id.int))
    return NodeView(
        node_id=node.id,
        pool_id=node.pool_id,
        name=node.name,
        state=node.state,
        state_since=node.state_since,
        schedulable=node.schedulable,
        cordon_reasons=tuple(sorted(node.cordons)),
        drain=node.drain,
        market=node.market,
        incarnation=node.incarnation,
        boot_id=node.boot_id,
        arch=inventory.cpu.arch,
        cpu_milli=inventory.allocatable_cpu_milli,
        memory_mib=inventory.allocatable_memory_mib,
        devices=tuple(device_view(device) for device in ordered),
        labels=labels,
        taints=inventory.taints,
        topology=place_of(inventory.topology, labels),
        ecosystem=inventory.ecosystem,
        runtimes=inventory.runtimes,
        isolation=inventory.isolation,
        last_heartbeat_at=node.last_heartbeat_at,
        created_at=node.created_at,
        generation=node.generation,
    )
