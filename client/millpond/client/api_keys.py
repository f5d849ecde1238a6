"""API keys: credentials of people and programs."""

from collections.abc import Iterator, Sequence

from millpond.client.calls import act, change, create, get, get_page
from millpond.client.naming import find_id, pick_one
from millpond.client.nouns import Noun
from millpond_contracts.bodies.shapes import Incoming
from millpond_contracts.bodies.tenants import ApiKeySpec, ApiKeyView, Role
from millpond_contracts.ids import ApiKeyId, ProjectId, TenantId


class _RoleChange(Incoming):
    role: Role


class ApiKeys(Noun):
    """`/v1/api-keys`."""

    def create(self, spec: ApiKeySpec) -> ApiKeyView:
        """Creates a key; this answer alone holds its secret."""
        return self._send(create("/v1/api-keys", spec, ApiKeyView))

    def list(
        self,
        *,
        tenant_id: TenantId | None = None,
        project: ProjectId | None = None,
        role: Role | Sequence[Role] = (),
        name: str | None = None,
        revoked: bool | None = None,
    ) -> Iterator[ApiKeyView]:
        """Keys, never their secrets; `revoked` = only those that are, or only those that are not."""
        filters = {"tenant_id": tenant_id, "project": project, "role": role, "name": name, "revoked": revoked}
        return self._pages(get_page("/v1/api-keys", ApiKeyView, **filters))

    def get(self, key: str | ApiKeyId, *, tenant_id: TenantId | None = None) -> ApiKeyView:
        """One key, by id or name; of several with one name, those in force are meant."""
        key_id = find_id(ApiKeyId, key)
        if key_id is None:
            found = self.list(tenant_id=tenant_id, name=str(key), revoked=False)
            named = [each for each in found if each.name == key and each.revoked_at is None]
            return pick_one("key", str(key), named, lambda each: str(each.api_key_id))
        return self._send(get(f"/v1/api-keys/{key_id}", ApiKeyView))

    def change_role(self, key: ApiKeyView, role: Role) -> ApiKeyView:
        """Changes a key's role, in force everywhere within seconds."""
        path = f"/v1/api-keys/{key.api_key_id}/role"
        return self._send(change("PUT", path, _RoleChange(role=role), ApiKeyView, key.generation))

    def revoke(self, key_id: ApiKeyId) -> ApiKeyView:
        """Revokes a key: refused everywhere within seconds."""
        return self._send(act(f"/v1/api-keys/{key_id}/revoke", ApiKeyView))
