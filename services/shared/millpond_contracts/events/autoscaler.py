"""Events of the autoscaler. They are for operators: a pool's size is nobody's secret, but no tenant's thing either."""

from millpond_contracts.bodies.scaling import NodeOrderView, ScalingDecisionView, ScalingPolicyView
from millpond_contracts.events.envelope import Event


class ScalingPolicyChanged(Event):
    """A scaling policy was created, changed or deleted."""

    type = "autoscaler.scaling_policy_changed.v1"
    policy: ScalingPolicyView
    deleted: bool = False

    def subject(self) -> str:
        return str(self.policy.scaling_policy_id)

    def generation_of(self) -> int:
        return self.policy.generation


class ScalingDecided(Event):
    """A decision was made that changes the number of nodes, or whose reason is another than before."""

    type = "autoscaler.scaling_decided.v1"
    decision: ScalingDecisionView

    def subject(self) -> str:
        return str(self.decision.scaling_decision_id)

    def generation_of(self) -> int:
        return 1


class NodeOrderEvent(Event):
    """A change of one order; `order` is its state after the change."""

    order: NodeOrderView

    def subject(self) -> str:
        return str(self.order.node_order_id)

    def generation_of(self) -> int:
        return self.order.generation


class NodeOrdered(NodeOrderEvent):
    """The order is durable; the provider is asked next."""

    type = "autoscaler.node_ordered.v1"


class NodeProvisioned(NodeOrderEvent):
    """The ordered node has joined and is ready for work."""

    type = "autoscaler.node_provisioned.v1"


class NodeReleaseAnnounced(NodeOrderEvent):
    """The node is to leave: it is drained first."""

    type = "autoscaler.node_release_announced.v1"


class NodeReleaseCancelled(NodeOrderEvent):
    """The node stays: it is needed again."""

    type = "autoscaler.node_release_cancelled.v1"


class NodeReleased(NodeOrderEvent):
    """The node is gone and given back."""

    type = "autoscaler.node_released.v1"


class NodeOrderFailed(NodeOrderEvent):
    """The order did not become a node in time, or the provider refused it for good."""

    type = "autoscaler.node_order_failed.v1"
