"""`/v1/tenants` and `/v1/projects`."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from millpond_contracts.bodies.shapes import Page
from millpond_contracts.bodies.tenants import ProjectSpec, ProjectView, TenantSpec, TenantState, TenantView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import ProjectId, TenantId
from millpond_kernel.auth import AdminCaller, OperatorCaller, ReaderCaller
from millpond_kernel.filters import LabelQuery, NameQuery, Spanning
from millpond_kernel.generation import IfMatch, etag
from millpond_kernel.idempotency import IdempotencyKey, run_idempotent
from millpond_kernel.pagination import Paging, make_page
from millpond_kernel.problem import ProblemError
from millpond_quota.store import projects as project_rows
from millpond_quota.store import tenants as tenant_rows
from millpond_quota.usecases import tenants as usecases

router = APIRouter(prefix="/v1", tags=["tenants"])


@router.post("/tenants", status_code=201, response_model=TenantView)
async def create_tenant(request: Request, spec: TenantSpec, caller: OperatorCaller, key: IdempotencyKey) -> Response:
    """Creates a tenant."""
    return await run_idempotent(
        request,
        request.app.state.kernel.database,
        caller,
        key,
        lambda unit: usecases.create_tenant(unit, caller, spec),
        location=lambda tenant: f"/v1/tenants/{tenant.tenant_id}",
    )


@router.get("/tenants")
async def list_tenants(
    request: Request,
    caller: ReaderCaller,
    paging: Paging,
    created: Spanning,
    name: NameQuery = None,
    state: Annotated[
        tuple[TenantState, ...], Query(max_length=8, description="any of these; deleted tenants only when asked for")
    ] = (),
    label: LabelQuery = (),
) -> Page[TenantView]:
    """Lists tenants; a tenant's own key sees its tenant alone. `since` and `until`: when they were made."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        rows = await tenant_rows.list_tenants(
            unit, paging.after_uuid(), paging.limit + 1, name=name, states=state, labels=label, created=created
        )
    return make_page(rows, paging, tenant_rows.tenant_view, lambda row: TenantId.of(row["tenant_id"]))


@router.get("/tenants/{tenant_id}")
async def get_tenant(request: Request, response: Response, tenant_id: TenantId, caller: ReaderCaller) -> TenantView:
    """One tenant."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        tenant = await tenant_rows.get_tenant(unit, tenant_id)
    response.headers["ETag"] = etag(tenant.generation)
    return tenant


@router.put("/tenants/{tenant_id}")
async def replace_tenant(
    request: Request, response: Response, tenant_id: TenantId, spec: TenantSpec, caller: OperatorCaller, match: IfMatch
) -> TenantView:
    """Replaces a tenant's fields."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        tenant = await usecases.replace_tenant(unit, caller, tenant_id, spec, match)
    response.headers["ETag"] = etag(tenant.generation)
    return tenant


@router.delete("/tenants/{tenant_id}", status_code=204)
async def delete_tenant(request: Request, tenant_id: TenantId, caller: OperatorCaller, match: IfMatch) -> None:
    """Deletes a tenant that has no virtual pool."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        await usecases.delete_tenant(unit, caller, tenant_id, match)


@router.post("/projects", status_code=201, response_model=ProjectView)
async def create_project(request: Request, spec: ProjectSpec, caller: AdminCaller, key: IdempotencyKey) -> Response:
    """Creates a project."""
    return await run_idempotent(
        request,
        request.app.state.kernel.database,
        caller,
        key,
        lambda unit: usecases.create_project(unit, caller, spec),
        location=lambda project: f"/v1/projects/{project.project_id}",
    )


@router.get("/projects")
async def list_projects(
    request: Request,
    caller: ReaderCaller,
    paging: Paging,
    tenant_id: TenantId | None = None,
    name: NameQuery = None,
    label: LabelQuery = (),
) -> Page[ProjectView]:
    """Lists projects."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        rows = await project_rows.list_projects(unit, paging.after_uuid(), paging.limit + 1, tenant_id, name, label)
    return make_page(rows, paging, project_rows.project_view, lambda row: ProjectId.of(row["id"]))


@router.get("/projects/{project_id}")
async def get_project(request: Request, response: Response, project_id: ProjectId, caller: ReaderCaller) -> ProjectView:
    """One project."""
    if caller.project_id is not None and caller.project_id != project_id:
        raise ProblemError(ErrorCode.PROJECT_NOT_FOUND, f"There is no project {project_id}.")
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        project = await project_rows.get_project(unit, project_id)
    response.headers["ETag"] = etag(project.generation)
    return project


@router.delete("/projects/{project_id}", status_code=204)
async def delete_project(request: Request, project_id: ProjectId, caller: AdminCaller, match: IfMatch) -> None:
    """Deletes a project."""
    async with request.app.state.kernel.database.begin(caller.scope) as unit:
        await usecases.delete_project(unit, caller, project_id, match)
