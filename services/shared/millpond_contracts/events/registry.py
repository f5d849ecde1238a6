"""Events of the registry. Every node event carries the whole node, so that a view needs nothing else."""

from millpond_contracts.bodies.loans import LoanView, ShortageView
from millpond_contracts.bodies.nodes import FlavorView, NodeView
from millpond_contracts.bodies.pools import PoolCapacity, PoolView
from millpond_contracts.events.envelope import Event
from millpond_contracts.ids import DeviceId, PoolId


class NodeEvent(Event):
    """A change of one node; `node` is its state after the change."""

    node: NodeView

    def subject(self) -> str:
        return str(self.node.node_id)

    def generation_of(self) -> int:
        return self.node.generation


class NodeRegistered(NodeEvent):
    type = "registry.node_registered.v1"


class NodeSessionOpened(NodeEvent):
    type = "registry.node_session_opened.v1"


class NodeBecameReady(NodeEvent):
    type = "registry.node_became_ready.v1"


class NodeSuspected(NodeEvent):
    """The node fell silent for longer than its pool allows; nothing new goes there."""

    type = "registry.node_suspected.v1"


class NodeRecovered(NodeEvent):
    type = "registry.node_recovered.v1"


class NodeCordoned(NodeEvent):
    """The set of cordon reasons changed, in either direction."""

    type = "registry.node_cordoned.v1"


class NodeDrainRequested(NodeEvent):
    """`node.drain` tells generation and deadline; the scheduler answers with `scheduler.node_emptied.v1`."""

    type = "registry.node_drain_requested.v1"


class NodeMoved(NodeEvent):
    """The node is in another pool."""

    type = "registry.node_moved.v1"
    from_pool_id: PoolId


class NodeMarketChanged(NodeEvent):
    """The operator pays for the node in another way."""

    type = "registry.node_market_changed.v1"


class NodeLabelsChanged(NodeEvent):
    """An operator labelled the node otherwise, and perhaps so said where it stands."""

    type = "registry.node_labels_changed.v1"


class NodeRemoved(NodeEvent):
    type = "registry.node_removed.v1"


class InventoryChanged(NodeEvent):
    type = "registry.inventory_changed.v1"


class DeviceHealthChanged(NodeEvent):
    type = "registry.device_health_changed.v1"
    device_ids: tuple[DeviceId, ...]


class PoolChanged(Event):
    """A pool was created, changed or deleted."""

    type = "registry.pool_changed.v1"
    pool: PoolView
    deleted: bool = False

    def subject(self) -> str:
        return str(self.pool.pool_id)

    def generation_of(self) -> int:
        return self.pool.generation


class FlavorChanged(Event):
    type = "registry.flavor_changed.v1"
    flavor: FlavorView
    deleted: bool = False

    def subject(self) -> str:
        return self.flavor.name

    def generation_of(self) -> int:
        return self.flavor.generation


class CapacityChanged(Event):
    """The figures of a pool changed; at most one a second per pool."""

    type = "registry.capacity_changed.v1"
    capacity: PoolCapacity

    def subject(self) -> str:
        # Not the pool's own subject: figures have a generation of their own.
        return f"{self.capacity.pool_id}/capacity"

    def generation_of(self) -> int:
        return self.capacity.generation


class CapacityLow(Event):
    """A pool has less available than a threshold of its asks for: once per crossing."""

    type = "registry.capacity_low.v1"
    shortage: ShortageView
    generation: int

    def subject(self) -> str:
        return f"{self.shortage.pool_id}/capacity"

    def generation_of(self) -> int:
        return self.generation


class CapacityRestored(CapacityLow):
    """The pool has again what the threshold asks for."""

    type = "registry.capacity_restored.v1"


class LoanChanged(Event):
    """A node was lent, arrived, is on its way back, or the loan is over."""

    type = "registry.loan_changed.v1"
    loan: LoanView

    def subject(self) -> str:
        return str(self.loan.loan_id)

    def generation_of(self) -> int:
        return self.loan.generation


class CapacityDriftFound(Event):
    """The timed recount found figures that differ from what is; they were repaired. An alarm."""

    type = "registry.capacity_drift_found.v1"
    pool_id: PoolId
    detail: str
    generation: int

    def subject(self) -> str:
        return f"{self.pool_id}/capacity"

    def generation_of(self) -> int:
        return self.generation


NODE_EVENTS: tuple[type[NodeEvent], ...] = (
    NodeRegistered,
    NodeSessionOpened,
    NodeBecameReady,
    NodeSuspected,
    NodeRecovered,
    NodeCordoned,
    NodeDrainRequested,
    NodeMoved,
    NodeMarketChanged,
    NodeLabelsChanged,
    NodeRemoved,
    InventoryChanged,
    DeviceHealthChanged,
)
