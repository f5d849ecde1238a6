"""Creating, changing and deleting tenants and projects."""

from zoneinfo import available_timezones

from millpond_contracts.bodies.tenants import ProjectSpec, ProjectView, TenantSpec, TenantState, TenantView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.quota import ProjectChanged, TenantChanged
from millpond_contracts.ids import ProjectId, TenantId
from millpond_kernel.audit import audit
from millpond_kernel.generation import check_if_match
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_quota.store import projects, tenants, virtual_pools

_ZONES = available_timezones()


def _check_zone(spec: TenantSpec) -> None:
    if spec.timezone not in _ZONES:
        raise ProblemError(
            ErrorCode.TIMEZONE_UNKNOWN,
            f"{spec.timezone!r} is no IANA zone; examples: UTC, Asia/Shanghai, Europe/Berlin.",
        )


async def create_tenant(unit: UnitOfWork, caller: Principal, spec: TenantSpec) -> TenantView:
    """A new tenant.

    Raises:
        ProblemError: unknown time zone, or the name is taken.
    """
    _check_zone(spec)
    tenant = await tenants.insert_tenant(unit, spec)
    unit.emit(TenantChanged(tenant_view=tenant))
    audit(unit, caller, "tenant.create", str(tenant.tenant_id), after=tenant)
    return tenant


async def replace_tenant(
    unit: UnitOfWork, caller: Principal, tenant_id: TenantId, spec: TenantSpec, if_match: str
) -> TenantView:
    """The tenant with new fields. Raises as `create_tenant`, 404 and 412."""
    _check_zone(spec)
    before = await tenants.get_tenant(unit, tenant_id, lock=True)
    check_if_match(if_match, before.generation)
    after = await tenants.update_tenant(unit, tenant_id, spec, before.state)
    unit.emit(TenantChanged(tenant_view=after))
    audit(unit, caller, "tenant.replace", str(tenant_id), before=before, after=after)
    return after


async def delete_tenant(unit: UnitOfWork, caller: Principal, tenant_id: TenantId, if_match: str) -> None:
    """Deletes a tenant without virtual pools; its keys stop working with the event.

    Raises:
        ProblemError: 404, 412, or 409 while virtual pools exist.
    """
    before = await tenants.get_tenant(unit, tenant_id, lock=True)
    check_if_match(if_match, before.generation)
    if await virtual_pools.list_virtual_pools(unit, None, 1, tenant_id=tenant_id):
        raise ProblemError(ErrorCode.TENANT_NOT_EMPTY, "Delete the tenant's virtual pools first.")
    spec = TenantSpec(name=before.name, timezone=before.timezone, currency=before.currency, labels=before.labels)
    after = await tenants.update_tenant(unit, tenant_id, spec, TenantState.DELETED)
    unit.emit(TenantChanged(tenant_view=after))
    audit(unit, caller, "tenant.delete", str(tenant_id), before=before)


async def create_project(unit: UnitOfWork, caller: Principal, spec: ProjectSpec) -> ProjectView:
    """A new project in the caller's tenant, or in the one an operator names.

    Raises:
        ProblemError: no such tenant, or the name is taken.
    """
    tenant = await tenants.get_tenant(unit, caller.tenant_for(spec.tenant_id))
    project = await projects.insert_project(unit, tenant.tenant_id, spec.name, spec.labels)
    unit.emit(ProjectChanged(project=project))
    audit(unit, caller, "project.create", str(project.project_id), after=project)
    return project


async def delete_project(unit: UnitOfWork, caller: Principal, project_id: ProjectId, if_match: str) -> None:
    """Deletes a project; what was charged to it keeps its name.

    Raises:
        ProblemError: 404 or 412.
    """
    before = await projects.get_project(unit, project_id, lock=True)
    check_if_match(if_match, before.generation)
    after = await projects.delete_project(unit, project_id)
    unit.emit(ProjectChanged(project=after, deleted=True))
    audit(unit, caller, "project.delete", str(project_id), before=before)
