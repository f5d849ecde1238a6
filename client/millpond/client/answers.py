"""Answers that every service gives and that no single service's contract describes: health and the audit trail."""

from typing import Any

from pydantic import BaseModel, Field

from millpond_contracts.bodies.shapes import Outgoing
from millpond_contracts.ids import TenantId
from millpond_contracts.quantities import Instant


class HealthPart(BaseModel):
    """One thing that a service needs: its database, its schema, its worker."""

    ok: bool
    reason: str | None = None
    since: Instant | None = None


class ServiceHealth(Outgoing):
    """How a service is; `status` is `ok`, `degraded` or `down`."""

    service: str
    status: str
    ready: bool
    parts: dict[str, HealthPart] = Field(default_factory=dict)


class AuditRow(Outgoing):
    """Who did what to which object. `hash` chains the rows; null for about a second."""

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
