"""How pools grow and shrink: policies, decisions, ordered nodes, signals."""

from collections.abc import Iterator

from millpond.client.calls import change, create, delete, get, get_page
from millpond.client.naming import find_id, pick_one
from millpond.client.nouns import Noun
from millpond_contracts.bodies.scaling import (
    NodeOrderState,
    NodeOrderView,
    ScalingDecisionView,
    ScalingPolicySpec,
    ScalingPolicyView,
    SignalAggregate,
)
from millpond_contracts.ids import NodeOrderId, PoolId, ScalingDecisionId, ScalingPolicyId


class ScalingPolicies(Noun):
    """`/v1/scaling-policies`."""

    def create(self, spec: ScalingPolicySpec) -> ScalingPolicyView:
        """Creates a policy."""
        return self._send(create("/v1/scaling-policies", spec, ScalingPolicyView))

    def list(self, *, pool_id: PoolId | None = None, name: str | None = None) -> Iterator[ScalingPolicyView]:
        """Policies."""
        return self._pages(get_page("/v1/scaling-policies", ScalingPolicyView, pool_id=pool_id, name=name))

    def get(self, policy: str | ScalingPolicyId) -> ScalingPolicyView:
        """One policy, by id or name.

        Raises:
            NotFound: there is none.
        """
        found = find_id(ScalingPolicyId, policy)
        if found is not None:
            return self._send(get(f"/v1/scaling-policies/{found}", ScalingPolicyView))
        named = self.list(name=str(policy))
        return pick_one("scaling policy", str(policy), named, lambda each: str(each.scaling_policy_id))

    def replace(self, policy: ScalingPolicyView, spec: ScalingPolicySpec) -> ScalingPolicyView:
        """Replaces a policy as it was read."""
        path = f"/v1/scaling-policies/{policy.scaling_policy_id}"
        return self._send(change("PUT", path, spec, ScalingPolicyView, policy.generation))

    def delete(self, policy: ScalingPolicyView) -> None:
        """Deletes a policy that has no nodes any more."""
        self._send(delete(f"/v1/scaling-policies/{policy.scaling_policy_id}", policy.generation))


class ScalingDecisions(Noun):
    """`/v1/scaling-decisions`, the newest first."""

    def list(self, *, scaling_policy_id: ScalingPolicyId | None = None) -> Iterator[ScalingDecisionView]:
        """Decisions, with everything they were drawn from."""
        query = {"scaling_policy_id": scaling_policy_id}
        return self._pages(get_page("/v1/scaling-decisions", ScalingDecisionView, **query))

    def get(self, decision_id: ScalingDecisionId) -> ScalingDecisionView:
        """One decision."""
        return self._send(get(f"/v1/scaling-decisions/{decision_id}", ScalingDecisionView))


class NodeOrders(Noun):
    """`/v1/node-orders`, the newest first."""

    def list(
        self, *, scaling_policy_id: ScalingPolicyId | None = None, state: NodeOrderState | None = None
    ) -> Iterator[NodeOrderView]:
        """Nodes asked of a provider."""
        query = {"scaling_policy_id": scaling_policy_id, "state": None if state is None else state.value}
        return self._pages(get_page("/v1/node-orders", NodeOrderView, **query))

    def get(self, order_id: NodeOrderId) -> NodeOrderView:
        """One order."""
        return self._send(get(f"/v1/node-orders/{order_id}", NodeOrderView))


class Signals(Noun):
    """`/v1/signals`, the newest first."""

    def list(
        self, *, pool_id: PoolId | None = None, flavor: str | None = None, name: str | None = None, hours: int = 1
    ) -> Iterator[SignalAggregate]:
        """Aggregates of 15 seconds."""
        return self._pages(
            get_page("/v1/signals", SignalAggregate, pool_id=pool_id, flavor=flavor, name=name, hours=hours)
        )
