"""Who is calling, and whose rows that caller may touch."""

from dataclasses import dataclass

from millpond_contracts.bodies.tenants import Role
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import ApiKeyId, NodeId, PoolId, ProjectId, TenantId
from millpond_kernel.db import SYSTEM, Scope, TenantScope
from millpond_kernel.problem import ProblemError


@dataclass(frozen=True, slots=True)
class Principal:
    """The verified identity of a caller. A node token carries `node_id`, `pool_id` and `incarnation`."""

    role: Role
    subject: str
    expires_at: float
    tenant_id: TenantId | None = None
    project_id: ProjectId | None = None
    api_key_id: ApiKeyId | None = None
    node_id: NodeId | None = None
    pool_id: PoolId | None = None
    incarnation: int | None = None

    @property
    def scope(self) -> Scope:
        """The scope of this caller's transactions: its tenant, or the system for operators, services and nodes."""
        return SYSTEM if self.tenant_id is None else TenantScope(self.tenant_id)

    def tenant_for(self, wanted: TenantId | None) -> TenantId:
        """The tenant that a request is about: the caller's own, or the one an operator names.

        Raises:
            ProblemError: an operator named none (422), or a tenant's caller named another (404).
        """
        if self.tenant_id is None:
            if wanted is None:
                raise ProblemError(ErrorCode.BODY_INVALID, "Operator keys belong to no tenant: name tenant_id.")
            return wanted
        if wanted is not None and wanted != self.tenant_id:
            raise ProblemError(ErrorCode.OBJECT_NOT_FOUND, f"There is no tenant {wanted}.")
        return self.tenant_id

    def project_for(self, wanted: ProjectId | None) -> ProjectId | None:
        """The project that a request counts for: that of a bound key, else the one it names, if any.

        Raises:
            ProblemError: 404 for another project than the one that the key is bound to.
        """
        if self.project_id is not None and wanted not in (None, self.project_id):
            raise ProblemError(ErrorCode.PROJECT_NOT_FOUND, f"There is no project {wanted}.")
        return wanted if self.project_id is None else self.project_id
