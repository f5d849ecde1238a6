"""Packings: settings that replays of a pool's own jobs propose."""

from collections.abc import Iterator

from millpond.client.calls import act, create, get, get_page
from millpond.client.nouns import Noun
from millpond_contracts.bodies.packings import PackingSpec, PackingView
from millpond_contracts.ids import PackingId, PoolId


class Packings(Noun):
    """`/v1/packings`."""

    def create(self, pool: PoolId) -> PackingView:
        """Replays a pool's newest jobs in the background; read the proposal until it is ready."""
        return self._send(create("/v1/packings", PackingSpec(pool_id=pool), PackingView))

    def list(self, *, pool_id: PoolId | None = None) -> Iterator[PackingView]:
        """Proposals, without how much of the demand changed since."""
        return self._pages(get_page("/v1/packings", PackingView, pool_id=pool_id))

    def get(self, packing: PackingId) -> PackingView:
        """One proposal."""
        return self._send(get(f"/v1/packings/{packing}", PackingView))

    def accept(self, packing: PackingId) -> PackingView:
        """Puts a proposal in force for its pool; the former one is withdrawn."""
        return self._send(act(f"/v1/packings/{packing}/accept", PackingView))

    def withdraw(self, packing: PackingId) -> PackingView:
        """Gives the pool the default setting again."""
        return self._send(act(f"/v1/packings/{packing}/withdraw", PackingView))
