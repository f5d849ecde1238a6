"""Virtual pools: a tenant's share of a pool, with limits, where its jobs queue."""

from collections.abc import Iterator, Sequence

from millpond.client.calls import change, create, delete, get, get_page
from millpond.client.errors import InvalidRequest
from millpond.client.naming import find_id, pick_one
from millpond.client.nouns import Noun
from millpond_contracts.bodies.tenants import LimitAlert, VirtualPoolChange, VirtualPoolSpec, VirtualPoolView
from millpond_contracts.ids import PoolId, TenantId, VirtualPoolId


class VirtualPools(Noun):
    """`/v1/virtual-pools`."""

    def create(self, spec: VirtualPoolSpec) -> VirtualPoolView:
        """Creates a tenant's share of a pool."""
        return self._send(create("/v1/virtual-pools", spec, VirtualPoolView))

    def list(
        self,
        *,
        tenant_id: TenantId | None = None,
        pool_id: PoolId | None = None,
        name: str | None = None,
        label: str | Sequence[str] = (),
    ) -> Iterator[VirtualPoolView]:
        """Virtual pools that these credentials may see."""
        filters = {"tenant_id": tenant_id, "pool_id": pool_id, "name": name, "label": label}
        return self._pages(get_page("/v1/virtual-pools", VirtualPoolView, **filters))

    def get(self, virtual_pool: str | VirtualPoolId, *, tenant_id: TenantId | None = None) -> VirtualPoolView:
        """One virtual pool, by id or name; `tenant_id` tells equal names apart."""
        pool_id = find_id(VirtualPoolId, virtual_pool)
        if pool_id is None:
            found = self.list(tenant_id=tenant_id, name=str(virtual_pool))
            return pick_one(
                "virtual pool", str(virtual_pool), found, lambda each: f"{each.virtual_pool_id} of {each.tenant_id}"
            )
        return self._send(get(f"/v1/virtual-pools/{pool_id}", VirtualPoolView))

    def get_only(self, *, tenant_id: TenantId | None = None) -> VirtualPoolView:
        """The virtual pool when these credentials may see exactly one.

        Raises:
            InvalidRequest: there is none, or several to choose from.
        """
        found = list(self.list(tenant_id=tenant_id))
        if len(found) == 1:
            return found[0]
        if not found:
            raise InvalidRequest(
                "there is no virtual pool to run in; an operator creates one with"
                " `millpond limit create NAME --tenant TENANT --pool POOL --cpu 2 --memory 4GiB`",
                code="client.virtual_pool.none",
            )
        names = ", ".join(f"{each.name} ({each.virtual_pool_id})" for each in found[:10])
        raise InvalidRequest(
            f"there are {len(found)} virtual pools to run in: {names}; name one", code="client.virtual_pool.several"
        )

    def change(self, virtual_pool: VirtualPoolView, change_: VirtualPoolChange) -> VirtualPoolView:
        """Changes limits, policy or labels; `virtual_pool` is the one as it was read."""
        path = f"/v1/virtual-pools/{virtual_pool.virtual_pool_id}"
        return self._send(change("PATCH", path, change_, VirtualPoolView, virtual_pool.generation))

    def delete(self, virtual_pool: VirtualPoolView) -> None:
        """Deletes a virtual pool: nothing new is admitted."""
        self._send(delete(f"/v1/virtual-pools/{virtual_pool.virtual_pool_id}", virtual_pool.generation))

    def alerts(self, virtual_pool_id: VirtualPoolId) -> Iterator[LimitAlert]:
        """The crossings of its limits."""
        return self._pages(get_page(f"/v1/virtual-pools/{virtual_pool_id}/alerts", LimitAlert))
