"""Pools: named sets of nodes."""

from collections.abc import Iterator, Sequence

from millpond.client.calls import act, change, create, delete, get, get_page
from millpond.client.naming import find_id, pick_one
from millpond.client.nouns import Noun
from millpond_contracts.bodies.loans import LoanState, LoanView, ReturnRequest, ShortageView
from millpond_contracts.bodies.pools import PoolCapacity, PoolSpec, PoolView
from millpond_contracts.bodies.shapes import Page
from millpond_contracts.ids import LoanId, PoolId


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

    def shortages(self, pool_id: PoolId) -> Page[ShortageView]:
        """What a pool has less of than its thresholds ask for."""
        return self._send(get(f"/v1/pools/{pool_id}/shortages", Page[ShortageView]))

    def loans(self, pool_id: PoolId, *, state: LoanState | None = None) -> Iterator[LoanView]:
        """Nodes that a pool lent or borrowed, oldest first."""
        return self._pages(get_page(f"/v1/pools/{pool_id}/loans", LoanView, state=state))

    def return_node(self, pool_id: PoolId, loan_id: LoanId, *, deadline_seconds: int = 3600) -> LoanView:
        """Sends a lent node home; what still runs at the deadline is stopped."""
        body = ReturnRequest(deadline_seconds=deadline_seconds)
        return self._send(act(f"/v1/pools/{pool_id}/loans/{loan_id}/return", LoanView, body))

    def delete(self, pool: PoolView) -> None:
        """Deletes an empty pool."""
        self._send(delete(f"/v1/pools/{pool.pool_id}", pool.generation))

    def id_of(self, pool: str | PoolId) -> PoolId:
        """The id of a pool given by id or name."""
        return find_id(PoolId, pool) or self.get(pool).pool_id
