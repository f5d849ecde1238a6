"""What every node provider can do. Each call may be repeated: after a crash nobody knows whether it was heard."""

from dataclasses import dataclass
from typing import Protocol

from millpond_contracts.bodies.scaling import NodeTemplate
from millpond_contracts.ids import NodeOrderId


@dataclass(frozen=True, slots=True)
class ProviderOrder:
    """One node to be made. `id` is its tag, by which the provider finds it again; `number` counts the policy's orders.

    The machine joins with `join_token`, which leads into the pool and puts the tag on the node.
    """

    id: NodeOrderId
    number: int
    template: NodeTemplate
    join_token: str


class StockOut(Exception):
    """The provider has none of these now; asking again at once is of no use."""


class ProviderFailed(Exception):
    """The provider did not do what it was asked, and may when asked again."""


class NodeProvider(Protocol):
    """Creates and releases nodes."""

    async def create(self, order: ProviderOrder) -> None:
        """Has the node made; it joins by itself when it has booted. Twice with one id makes one.

        Raises:
            StockOut: see there.
            ProviderFailed: see there.
        """

    async def release(self, order_id: NodeOrderId) -> None:
        """Gives the node of an order back; one that is not there is given back already.

        Raises:
            ProviderFailed: see there.
        """

    async def list_tags(self) -> frozenset[NodeOrderId]:
        """The orders of which the provider has a machine, in whatever state.

        Raises:
            ProviderFailed: see there.
        """
