"""What is asked of the registry: tokens to join with, drains, and the removal of nodes that are empty."""

from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

import httpx

from millpond_contracts.bodies.nodes import JoinTokenView, NodeView
from millpond_contracts.bodies.scaling import NODE_ORDER_LABEL
from millpond_contracts.ids import NodeId, NodeOrderId, PoolId
from millpond_kernel.clients import ServiceAway, ServiceClient, json_of

SHORTEST_TOKEN_SECONDS = 60


class Refused(Exception):
    """The registry answered and did not do it; the text is its reason."""


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """The drain that the registry answered with."""

    generation: int
    deadline: datetime


class RegistryCalls:
    """The registry's routes with this service's own key. Every call may raise ServiceAway."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    async def create_join_token(self, order_id: NodeOrderId, pool_id: PoolId, seconds: float) -> str:
        """A token for one machine, which leads into the pool and puts the order's tag on the node.

        Raises:
            Refused: the pool is gone.
        """
        body = {
            "pool_id": str(pool_id),
            "expires_in_seconds": max(SHORTEST_TOKEN_SECONDS, int(seconds)),
            "max_uses": 1,
            "labels": {NODE_ORDER_LABEL: str(order_id)},
        }
        answer = await self._client.request(
            "POST", "/v1/join-tokens", json=body, headers={"Idempotency-Key": uuid4().hex}
        )
        token = JoinTokenView.model_validate(_accepted(answer)).token
        if token is None:
            raise ServiceAway("registry: the join token was not shown")
        return token

    async def drain(self, node_id: NodeId, deadline_seconds: int) -> DrainStarted:
        """Closes the node for scale-in and asks that it become empty.

        Raises:
            Refused: it is being emptied for somebody else, or it is gone.
        """
        answer = await self._client.request(
            "POST", f"/v1/nodes/{node_id}/drain", json={"deadline_seconds": deadline_seconds}
        )
        node = NodeView.model_validate(_accepted(answer))
        if node.drain is None:
            raise ServiceAway("registry: the drained node tells of no drain")
        return DrainStarted(node.drain.generation, node.drain.deadline)

    async def keep(self, node_id: NodeId) -> None:
        """Takes scale-in's own reason back; those of others stay.

        Raises:
            Refused: the node is gone.
        """
        _accepted(await self._client.request("POST", f"/v1/nodes/{node_id}/uncordon", json={}))

    async def remove(self, node_id: NodeId) -> None:
        """Removes a node that holds nothing; one that is gone is removed.

        Raises:
            Refused: it may still hold work.
        """
        answer = await self._client.request("DELETE", f"/v1/nodes/{node_id}", headers={"If-Match": "*"})
        if answer.status_code != 404:
            _accepted(answer)


def _accepted(answer: httpx.Response) -> object:
    if answer.status_code >= 400:
        problem = json_of(answer)
        raise Refused(str(problem.get("detail", problem))[:300])
    return None if answer.status_code == 204 else json_of(answer)
