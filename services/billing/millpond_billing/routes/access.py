"""Which tenant a request about money is about."""

from fastapi import Request

from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import TenantId
from millpond_kernel.app import Kernel
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal


def kernel_of(request: Request) -> Kernel:
    """The service's parts."""
    kernel: Kernel = request.app.state.kernel
    return kernel


def wanted_tenant(caller: Principal, tenant_id: TenantId | None) -> TenantId:
    """The caller's tenant, or the one an operator names.

    Raises:
        ProblemError: an operator named none, or a tenant's caller another.
    """
    if caller.tenant_id is None and tenant_id is None:
        raise ProblemError(ErrorCode.BODY_INVALID, "Operator keys belong to no tenant: add ?tenant_id=…")
    return caller.tenant_for(tenant_id)


def tenant_filter(caller: Principal, tenant_id: TenantId | None) -> TenantId | None:
    """The tenant that a list is narrowed to; None = every tenant, for operators.

    Raises:
        ProblemError: a tenant's caller named another.
    """
    return tenant_id if caller.tenant_id is None else caller.tenant_for(tenant_id)
