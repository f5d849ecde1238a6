"""The base of every event and the envelope it travels in (attributes after CloudEvents 1.0)."""

from typing import ClassVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from millpond_contracts.ids import TenantId
from millpond_contracts.quantities import Instant


class Event(BaseModel):
    """A fact that a service committed. Unknown fields are ignored so that an old consumer reads a newer event.

    A subclass sets `type` (`<publisher>.<what>.v<n>`); `subject`, `tenant`, `generation_of` say what it is about.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    type: ClassVar[str] = ""

    def subject(self) -> str:
        """The id of the object that the event is about."""
        raise NotImplementedError

    def tenant(self) -> TenantId | None:
        """The tenant that may see the event; none for operators only."""
        return None

    def generation_of(self) -> int:
        """The object's generation; per subject it strictly rises with the sequence."""
        return 0


class Envelope(BaseModel):
    """One event as it is delivered. `seq` is dense per publisher; `body` is the event's JSON object."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    seq: int
    id: UUID
    type: str
    source: str
    subject: str
    tenant_id: UUID | None
    generation: int
    happened_at: Instant
    traceparent: str | None = None
    body: dict[str, object]
