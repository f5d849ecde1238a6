"""What every service answers about its health."""

from pydantic import BaseModel, Field

from millpond_contracts.bodies.shapes import Outgoing
from millpond_contracts.quantities import Instant


class HealthPart(BaseModel):
    """One thing that a service needs: its database, its schema, its worker.

    Unwell it has a `reason`; `effect` = what follows for people, `remedy` = what to do.
    """

    ok: bool
    reason: str | None = None
    since: Instant | None = None
    effect: str | None = None
    remedy: str | None = None


class ServiceHealth(Outgoing):
    """How a service is; `status` is `ok`, `degraded` or `down`."""

    service: str
    status: str
    ready: bool
    parts: dict[str, HealthPart] = Field(default_factory=dict)
