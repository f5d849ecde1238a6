"""Who may read what every tenant may know: tenants, operators and other services."""

from typing import Annotated

from millpond_contracts.bodies.tenants import Role
from millpond_kernel.auth import allow
from millpond_kernel.tenancy import Principal

CatalogueReader = Annotated[Principal, allow(Role.OPERATOR, Role.TENANT_ADMIN, Role.MEMBER, Role.VIEWER, Role.SERVICE)]
