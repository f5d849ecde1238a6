"""Who may read what every tenant may know, and who may close nodes and open them again."""

from typing import Annotated

from millpond_contracts.bodies.tenants import Role
from millpond_kernel.auth import allow
from millpond_kernel.tenancy import Principal

# People who look after machines, and the autoscaler: what each may take back is its own reason alone.
NodeKeeper = Annotated[Principal, allow(Role.OPERATOR, Role.SERVICE)]
CatalogueReader = Annotated[Principal, allow(Role.OPERATOR, Role.TENANT_ADMIN, Role.MEMBER, Role.VIEWER, Role.SERVICE)]
