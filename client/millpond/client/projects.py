"""Projects: parts of a tenant that are told apart on its bill."""

from collections.abc import Iterator, Sequence

from millpond.client.calls import create, delete, get, get_page
from millpond.client.naming import find_id, pick_one
from millpond.client.nouns import Noun
from millpond_contracts.bodies.tenants import ProjectSpec, ProjectView
from millpond_contracts.ids import ProjectId, TenantId


class Projects(Noun):
    """`/v1/projects`."""

    def create(self, spec: ProjectSpec) -> ProjectView:
        """Creates a project."""
        return self._send(create("/v1/projects", spec, ProjectView))

    def list(
        self, *, tenant_id: TenantId | None = None, name: str | None = None, label: str | Sequence[str] = ()
    ) -> Iterator[ProjectView]:
        """Projects of a tenant."""
        return self._pages(get_page("/v1/projects", ProjectView, tenant_id=tenant_id, name=name, label=label))

    def get(self, project: str | ProjectId, *, tenant_id: TenantId | None = None) -> ProjectView:
        """One project, by id or name."""
        project_id = find_id(ProjectId, project)
        if project_id is None:
            found = self.list(tenant_id=tenant_id, name=str(project))
            return pick_one("project", str(project), found, lambda each: f"{each.project_id} of {each.tenant_id}")
        return self._send(get(f"/v1/projects/{project_id}", ProjectView))

    def delete(self, project: ProjectView) -> None:
        """Deletes a project."""
        self._send(delete(f"/v1/projects/{project.project_id}", project.generation))
