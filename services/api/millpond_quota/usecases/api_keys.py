"""Making, exchanging, re-roling and revoking API keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from millpond_contracts.bodies.tenants import ApiKeySpec, ApiKeyView, Me, Role
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.quota import ApiKeyRevoked, RoleChanged
from millpond_contracts.ids import ApiKeyId, TenantId
from millpond_kernel.audit import audit
from millpond_kernel.generation import check_if_match
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_quota.domain.keys import format_key, hash_secret, is_secret, make_secret, parse_key, role_fits
from millpond_quota.store import api_keys, projects, tenants


@dataclass(frozen=True, slots=True)
class KeyClaims:
    """What a token made from a key says. `expires_epoch` is the key's own end as POSIX time, or None."""

    subject: str
    claims: Mapping[str, str]
    expires_epoch: float | None


async def create_api_key(unit: UnitOfWork, caller: Principal, spec: ApiKeySpec) -> ApiKeyView:
    """A new key, with its secret, which is not stored and cannot be shown again.

    No key reaches further than the one that made it: a key that is bound to a project makes keys of that project.

    Raises:
        ProblemError: a role that does not fit, or a tenant or project that does not exist.
    """
    tenant_id = spec.tenant_id
    if caller.role is not Role.OPERATOR:
        tenant_id = caller.tenant_for(spec.tenant_id)
    if not role_fits(spec.role, has_tenant=tenant_id is not None):
        raise ProblemError(
            ErrorCode.API_KEY_ROLE,
            f"A key with role {spec.role.value} {'cannot belong to' if tenant_id else 'must belong to'} a tenant.",
        )
    if tenant_id is not None:
        await tenants.get_tenant(unit, tenant_id)
    project_id = caller.project_for(spec.project_id)
    if project_id is not None:
        project = await projects.get_project(unit, project_id)
        if project.tenant_id != tenant_id:
            raise ProblemError(ErrorCode.PROJECT_NOT_FOUND, f"There is no project {project_id} in this tenant.")
    spec = spec.model_copy(update={"project_id": project_id})
    api_key_id, secret = ApiKeyId.new(), make_secret()
    row = await api_keys.insert_api_key(unit, api_key_id, spec, tenant_id, hash_secret(secret))
    assert row is not None, "the id is new"
    view = api_keys.api_key_view(row, format_key(api_key_id, secret))
    audit(unit, caller, "api_key.create", str(api_key_id), after=view)
    return view


async def exchange_api_key(unit: UnitOfWork, text: str) -> KeyClaims:
    """What a token for this key has to say.

    Raises:
        ProblemError: 401 invalid, or 401 revoked when the key was valid once.
    """
    parsed = parse_key(text)
    row = None if parsed is None else await api_keys.find_api_key(unit, parsed[0])
    if parsed is None or row is None or not is_secret(parsed[1], bytes(row["secret_hash"])):
        raise ProblemError(ErrorCode.CREDENTIALS_INVALID, "This API key does not exist.")
    if row["revoked_at"] is not None or row["expired"] or row["tenant_inactive"]:
        raise ProblemError(
            ErrorCode.CREDENTIALS_REVOKED, "This API key was revoked, has expired, or its tenant is not active."
        )
    await api_keys.touch_api_key(unit, parsed[0])
    view = api_keys.api_key_view(row)
    claims = {"role": view.role.value, "key": str(view.api_key_id)}
    if view.tenant_id is not None:
        claims["tenant"] = str(view.tenant_id)
    if view.project_id is not None:
        claims["project"] = str(view.project_id)
    return KeyClaims(f"{view.role.value}:{view.api_key_id}", claims, row["expires_epoch"])


async def describe_caller(unit: UnitOfWork, caller: Principal, *, is_token: bool) -> Me:
    """The caller with the names of its tenant, project and key. A project or key that is gone has none."""
    tenant = None if caller.tenant_id is None else await tenants.get_tenant(unit, caller.tenant_id)
    project = None if caller.project_id is None else await projects.find_project(unit, caller.project_id)
    key = None if caller.api_key_id is None else await api_keys.find_api_key(unit, caller.api_key_id)
    return Me(
        role=caller.role,
        tenant_id=caller.tenant_id,
        project_id=caller.project_id,
        api_key_id=caller.api_key_id,
        tenant_name=None if tenant is None else tenant.name,
        timezone=None if tenant is None else tenant.timezone,
        currency=None if tenant is None else tenant.currency,
        project_name=None if project is None else project.name,
        api_key_name=None if key is None else key["name"],
        expires_at=None if key is None else key["expires_at"],
        credentials_expire_at=datetime.fromtimestamp(caller.expires_at, UTC) if is_token else None,
        node_id=caller.node_id,
    )


async def revoke_api_key(unit: UnitOfWork, caller: Principal, api_key_id: ApiKeyId) -> ApiKeyView:
    """The revoked key; revoking again changes nothing.

    Raises:
        ProblemError: 404.
    """
    before = await api_keys.get_api_key(unit, api_key_id, lock=True)
    row = await api_keys.revoke_api_key(unit, api_key_id)
    if row is None:
        return api_keys.api_key_view(before)
    view = api_keys.api_key_view(row)
    unit.emit(ApiKeyRevoked(api_key_id=api_key_id, tenant_id=view.tenant_id, generation=view.generation))
    audit(unit, caller, "api_key.revoke", str(api_key_id), before=api_keys.api_key_view(before), after=view)
    return view


async def change_role(
    unit: UnitOfWork, caller: Principal, api_key_id: ApiKeyId, role: Role, if_match: str
) -> ApiKeyView:
    """The key with another role; tokens with the old one are refused within seconds.

    Raises:
        ProblemError: 404, 412, or a role that does not fit.
    """
    before = api_keys.api_key_view(await api_keys.get_api_key(unit, api_key_id, lock=True))
    check_if_match(if_match, before.generation)
    if not role_fits(role, has_tenant=before.tenant_id is not None):
        raise ProblemError(ErrorCode.API_KEY_ROLE, f"This key cannot have the role {role.value}.")
    after = api_keys.api_key_view(await api_keys.change_role(unit, api_key_id, role))
    unit.emit(RoleChanged(api_key_id=api_key_id, tenant_id=after.tenant_id, role=role, generation=after.generation))
    audit(unit, caller, "api_key.change_role", str(api_key_id), before=before, after=after)
    return after


async def insert_given_key(
    unit: UnitOfWork, text: str, name: str, role: Role, tenant_id: TenantId | None = None
) -> bool:
    """Stores a key that was made elsewhere (the first operator's, the services'); False when it is there already.

    Raises:
        ValueError: not written like a key.
    """
    parsed = parse_key(text)
    if parsed is None:
        raise ValueError(f"the key {name!r} is not of the form mp_<id>_<secret>")
    spec = ApiKeySpec(name=name, role=role, tenant_id=tenant_id)
    return await api_keys.insert_api_key(unit, parsed[0], spec, tenant_id, hash_secret(parsed[1])) is not None
