"""Pools: named sets of nodes."""

from collections.abc import Iterator, Sequence

from millpond.client.calls import change, create, delete, get, get_page
from millpond.client.naming import find_id, pick_one
from millpond.client.nouns import Noun
from millpond_contracts.bodies.nodes import PoolCapacity, PoolSpec, PoolView
from millpond_contracts.ids import PoolId


class Pools(Noun):
    """`/v1/pools`."""

    def create(self, spec: PoolSpec) -> PoolView:
        """Creates a pool."""
        return self._send(create("/v1/pools", spec, PoolView))

    def list(self, *, name: str | None = None, label: str | Sequence[str] = ()) -> Iterator[PoolView]:
        """The pools that these credentials may use."""
        return self._pages(get_page("/v1/pools", PoolView, name=name, label=label))

    def get(self, pool: str | PoolId) -> PoolView:
        """One pool, by id or name."""
        pool_id = find_id(PoolId, pool)
        if pool_id is None:
            return pick_one("pool", str(pool), self.list(name=str(pool)), lambda found: str(found.pool_id))
        return self._send(get(f"/v1/pools/{pool_id}", PoolView))

    def capacity(self, pool_id: PoolId) -> PoolCapacity:
        """What a pool has, holds, and can still take."""
        return self._send(get(f"/v1/pools/{pool_id}/capacity", PoolCapacity))

    def replace(self, pool: PoolView, spec: PoolSpec) -> PoolView:
        """Replaces a pool's description; `pool` is the pool as it was read."""
        return self._send(change("PUT", f"/v1/pools/{pool.pool_id}", spec, PoolView, pool.generation))

    def delete(self, pool: PoolView) -> None:
        """Deletes an empty pool."""
        self._send(delete(f"/v1/pools/{pool.pool_id}", pool.generation))

    def id_of(self, pool: str | PoolId) -> PoolId:
        """The id of a pool given by id or name."""
        return find_id(PoolId, pool) or self.get(pool).pool_id
