"""Events of billing."""

from millpond_contracts.bodies.bills import PriceVersionView, StatementView
from millpond_contracts.events.envelope import Event
from millpond_contracts.ids import TenantId


class PricePublished(Event):
    """A price version was published; it is in force from its `valid_from`."""

    type = "billing.price_published.v1"
    price: PriceVersionView

    def subject(self) -> str:
        return str(self.price.price_version_id)

    def tenant(self) -> TenantId | None:
        return self.price.tenant_id

    def generation_of(self) -> int:
        return self.price.generation


class StatementClosed(Event):
    """A statement is final; its digest proves it."""

    type = "billing.statement_closed.v1"
    statement: StatementView
    generation: int

    def subject(self) -> str:
        return str(self.statement.statement_id)

    def tenant(self) -> TenantId:
        return self.statement.tenant_id

    def generation_of(self) -> int:
        return self.generation


class MeteringDriftFound(Event):
    """Segments and live allocations differed and were repaired. An alarm."""

    type = "billing.metering_drift_found.v1"
    allocation: str
    detail: str
    generation: int

    def subject(self) -> str:
        return self.allocation

    def generation_of(self) -> int:
        return self.generation
