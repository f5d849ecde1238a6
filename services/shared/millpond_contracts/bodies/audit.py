"""The audit trail as every service tells it: who did what to which object."""

from typing import Any

from millpond_contracts.bodies.shapes import Outgoing
from millpond_contracts.ids import TenantId
from millpond_contracts.quantities import Instant


class AuditView(Outgoing):
    """One audit row. `hash` covers the row and the previous row's hash; null until chained (about a second)."""

    seq: int | None
    at: Instant
    actor: str
    role: str
    tenant_id: TenantId | None
    action: str
    object: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str | None
    hash: str | None
