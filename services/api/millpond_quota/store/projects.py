"""Rows of projects."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.tenants import ProjectView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import ProjectId, TenantId
from millpond_kernel.filters import Where
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork


def project_view(row: asyncpg.Record) -> ProjectView:
    """The project of a row."""
    return ProjectView(
        project_id=ProjectId.of(row["id"]),
        tenant_id=TenantId.of(row["tenant_id"]),
        name=row["name"],
        labels=row["labels"],
        created_at=row["created_at"],
        generation=row["generation"],
    )


async def insert_project(unit: UnitOfWork, tenant_id: TenantId, name: str, labels: dict[str, str]) -> ProjectView:
    """A new project.

    Raises:
        ProblemError: 409 `kernel.name.taken`.
    """
    row = await unit.fetchrow(
        "INSERT INTO project (id, tenant_id, name, labels, generation) VALUES ($1, $2, $3, $4, 1)"
        " ON CONFLICT (tenant_id, name) WHERE NOT deleted DO NOTHING RETURNING *",
        ProjectId.new(),
        tenant_id,
        name,
        labels,
    )
    if row is None:
        raise ProblemError(ErrorCode.NAME_TAKEN, f"A project named {name!r} exists in this tenant.")
    return project_view(row)


async def get_project(unit: UnitOfWork, project_id: ProjectId, *, lock: bool = False) -> ProjectView:
    """The project, locked when asked.

    Raises:
        ProblemError: 404 `quota.project.not_found`.
    """
    row = await unit.fetchrow(
        "SELECT * FROM project WHERE id = $1 AND NOT deleted" + (" FOR UPDATE" if lock else ""), project_id
    )
    if row is None:
        raise ProblemError(ErrorCode.PROJECT_NOT_FOUND, f"There is no project {project_id}.")
    return project_view(row)


async def find_project(unit: UnitOfWork, project_id: ProjectId) -> ProjectView | None:
    """The project, or None."""
    row = await unit.fetchrow("SELECT * FROM project WHERE id = $1 AND NOT deleted", project_id)
    return None if row is None else project_view(row)


async def list_projects(
    unit: UnitOfWork,
    after: UUID | None,
    limit: int,
    tenant_id: TenantId | None,
    name: str | None,
    labels: Sequence[str] = (),
) -> list[asyncpg.Record]:
    """Projects by id."""
    where = Where(conditions=["NOT deleted"])
    where.after("id", after)
    where.add("tenant_id = {}", tenant_id)
    where.add("name = {}", name)
    where.labelled("labels", labels)
    return await unit.fetch(
        f"SELECT * FROM project{where.text()} ORDER BY id LIMIT {where.value(limit)}", *where.arguments
    )


async def delete_project(unit: UnitOfWork, project_id: ProjectId) -> ProjectView:
    """Marks the locked project deleted."""
    row = await unit.fetchrow(
        "UPDATE project SET deleted = true, generation = generation + 1 WHERE id = $1 RETURNING *", project_id
    )
    assert row is not None, "the row was locked before"
    return project_view(row)
