"""Tenants: who pays."""

from collections.abc import Iterator, Sequence

from millpond.client.calls import change, create, delete, get, get_page
from millpond.client.naming import find_id, pick_one
from millpond.client.nouns import Noun
from millpond_contracts.bodies.tenants import TenantSpec, TenantState, TenantView
from millpond_contracts.ids import TenantId


class Tenants(Noun):
    """`/v1/tenants`."""

    def create(self, spec: TenantSpec) -> TenantView:
        """Creates a tenant."""
        return self._send(create("/v1/tenants", spec, TenantView))

    def list(
        self,
        *,
        name: str | None = None,
        state: TenantState | Sequence[TenantState] = (),
        label: str | Sequence[str] = (),
    ) -> Iterator[TenantView]:
        """Tenants; a tenant's own key sees its tenant alone. Deleted ones only when asked for."""
        return self._pages(get_page("/v1/tenants", TenantView, name=name, state=state, label=label))

    def get(self, tenant: str | TenantId) -> TenantView:
        """One tenant, by id or name."""
        tenant_id = find_id(TenantId, tenant)
        if tenant_id is None:
            return pick_one("tenant", str(tenant), self.list(name=str(tenant)), lambda found: str(found.tenant_id))
        return self._send(get(f"/v1/tenants/{tenant_id}", TenantView))

    def replace(self, tenant: TenantView, spec: TenantSpec) -> TenantView:
        """Replaces a tenant's fields; `tenant` is the tenant as it was read."""
        return self._send(change("PUT", f"/v1/tenants/{tenant.tenant_id}", spec, TenantView, tenant.generation))

    def delete(self, tenant: TenantView) -> None:
        """Deletes a tenant that has no virtual pool."""
        self._send(delete(f"/v1/tenants/{tenant.tenant_id}", tenant.generation))

    def id_of(self, tenant: str | TenantId) -> TenantId:
        """The id of a tenant given by id or name."""
        return find_id(TenantId, tenant) or self.get(tenant).tenant_id
