"""Nodes, their devices, and the tokens with which machines join."""

from collections.abc import Iterator, Sequence

from millpond.client.calls import act, change, create, delete, get, get_page
from millpond.client.naming import find_id, pick_one
from millpond.client.nouns import Noun
from millpond_contracts.bodies.devices import ConditionView, DeviceListing
from millpond_contracts.bodies.nodes import (
    CordonRequest,
    DrainRequest,
    JoinTokenSpec,
    JoinTokenView,
    MoveRequest,
    NodeChange,
    NodeState,
    NodeView,
)
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import DeviceId, JoinTokenId, NodeId, PoolId
from millpond_contracts.resources import DeviceHealth, NodeInventory


class Nodes(Noun):
    """`/v1/nodes`."""

    def list(
        self,
        *,
        pool_id: PoolId | None = None,
        state: NodeState | Sequence[NodeState] = (),
        name: str | None = None,
        label: str | Sequence[str] = (),
    ) -> Iterator[NodeView]:
        """Nodes with their devices; removed ones only when asked for. `label` is `key` or `key=value`."""
        filters = {"pool_id": pool_id, "state": state, "name": name, "label": label}
        return self._pages(get_page("/v1/nodes", NodeView, **filters))

    def get(self, node: str | NodeId) -> NodeView:
        """One node, by id or name."""
        node_id = find_id(NodeId, node)
        if node_id is None:
            named = (each for each in self.list(name=str(node)) if each.name == node)
            return pick_one("node", str(node), named, lambda each: f"{each.node_id} in {each.pool_id}")
        return self._send(get(f"/v1/nodes/{node_id}", NodeView))

    def inventory(self, node_id: NodeId) -> NodeInventory:
        """The newest complete inventory as the agent reported it."""
        return self._send(get(f"/v1/nodes/{node_id}/inventory", NodeInventory))

    def conditions(self, node_id: NodeId) -> Iterator[ConditionView]:
        """What the agent found wrong, open conditions first."""
        return self._pages(get(f"/v1/nodes/{node_id}/conditions", Page[ConditionView]))

    def cordon(self, node_id: NodeId) -> NodeView:
        """Lets nothing new start on a node; what runs goes on."""
        return self._send(act(f"/v1/nodes/{node_id}/cordon", NodeView, CordonRequest()))

    def uncordon(self, node_id: NodeId) -> NodeView:
        """Takes the operator's cordon or drain back."""
        return self._send(act(f"/v1/nodes/{node_id}/uncordon", NodeView, CordonRequest()))

    def drain(self, node_id: NodeId, *, deadline_seconds: int = 3600) -> NodeView:
        """Empties a node; at the deadline what is left is stopped."""
        body = DrainRequest(deadline_seconds=deadline_seconds)
        return self._send(act(f"/v1/nodes/{node_id}/drain", NodeView, body))

    def move(self, node_id: NodeId, pool_id: PoolId, *, deadline_seconds: int = 3600) -> NodeView:
        """Moves a node to another pool once it is empty."""
        body = MoveRequest(pool_id=pool_id, deadline_seconds=deadline_seconds)
        return self._send(act(f"/v1/nodes/{node_id}/move", NodeView, body))

    def change(self, node_id: NodeId, wanted: NodeChange, *, generation: int | None = None) -> NodeView:
        """Changes a node itself, at a generation; None = whatever it is at."""
        return self._send(change("PATCH", f"/v1/nodes/{node_id}", wanted, NodeView, generation))

    def remove(self, node: NodeView) -> None:
        """Removes a node that holds nothing."""
        self._send(delete(f"/v1/nodes/{node.node_id}", node.generation))


class Devices(Noun):
    """`/v1/devices`."""

    def list(
        self,
        *,
        node_id: NodeId | None = None,
        pool_id: PoolId | None = None,
        flavor: str | None = None,
        health: DeviceHealth | None = None,
    ) -> Iterator[DeviceListing]:
        """Devices with their place and health."""
        filters = {"node_id": node_id, "pool_id": pool_id, "flavor": flavor, "health": health}
        return self._pages(get_page("/v1/devices", DeviceListing, **filters))

    def forget(self, device_id: DeviceId) -> None:
        """Forgets a device that was taken out of its node for good."""
        self._send(delete(f"/v1/devices/{device_id}"))


class JoinTokens(Noun):
    """`/v1/join-tokens`."""

    def create(self, spec: JoinTokenSpec) -> JoinTokenView:
        """Creates a join token; this answer alone holds its text."""
        return self._send(create("/v1/join-tokens", spec, JoinTokenView))

    def list(self) -> Iterator[JoinTokenView]:
        """Join tokens without their texts."""
        return self._pages(get_page("/v1/join-tokens", JoinTokenView))

    def revoke(self, join_token_id: JoinTokenId) -> None:
        """Revokes a join token; nodes that joined with it stay."""
        self._send(delete(f"/v1/join-tokens/{join_token_id}"))
