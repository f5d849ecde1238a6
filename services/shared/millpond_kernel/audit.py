"""Adding audit rows: who did what, with the object before and after, in the transaction of the change."""

from pydantic import BaseModel

from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import AuditEntry, UnitOfWork

# Never written down, whatever object holds them.
_SECRET_FIELDS = {"secret", "token", "command", "env", "spec"}


def audit(
    unit: UnitOfWork,
    caller: Principal,
    action: str,
    target: str,
    *,
    before: BaseModel | None = None,
    after: BaseModel | None = None,
) -> None:
    """Records a change of `target` by `caller`; secrets, commands and environments are left out."""
    unit.record(
        AuditEntry(
            actor=caller.subject,
            role=caller.role.value,
            tenant_id=caller.tenant_id,
            action=action,
            object=target,
            before=None if before is None else before.model_dump_json(exclude=_SECRET_FIELDS),
            after=None if after is None else after.model_dump_json(exclude=_SECRET_FIELDS),
        )
    )
