"""Events of quota: tenants, keys, virtual pools, alerts."""

from millpond_contracts.bodies.reservations import ReservationView
from millpond_contracts.bodies.tenants import LimitAlert, ProjectView, Role, TenantView, VirtualPoolView
from millpond_contracts.events.envelope import Event
from millpond_contracts.ids import ApiKeyId, TenantId


class TenantChanged(Event):
    """A tenant was created, changed or deleted (`state` tells)."""

    type = "quota.tenant_changed.v1"
    tenant_view: TenantView

    def subject(self) -> str:
        return str(self.tenant_view.tenant_id)

    def tenant(self) -> TenantId:
        return self.tenant_view.tenant_id

    def generation_of(self) -> int:
        return self.tenant_view.generation


class ProjectChanged(Event):
    type = "quota.project_changed.v1"
    project: ProjectView
    deleted: bool = False

    def subject(self) -> str:
        return str(self.project.project_id)

    def tenant(self) -> TenantId:
        return self.project.tenant_id

    def generation_of(self) -> int:
        return self.project.generation


class ApiKeyEvent(Event):
    """A change of one API key; it never carries the key itself."""

    api_key_id: ApiKeyId
    tenant_id: TenantId | None
    generation: int

    def subject(self) -> str:
        return str(self.api_key_id)

    def tenant(self) -> TenantId | None:
        return self.tenant_id

    def generation_of(self) -> int:
        return self.generation


class ApiKeyRevoked(ApiKeyEvent):
    """Every token made from this key is refused from now on."""

    type = "quota.api_key_revoked.v1"


class RoleChanged(ApiKeyEvent):
    """Tokens of this key that carry another role are refused from now on."""

    type = "quota.role_changed.v1"
    role: Role


class VirtualPoolChanged(Event):
    """A virtual pool was created, changed or deleted (`virtual_pool.deleted` tells)."""

    type = "quota.virtual_pool_changed.v1"
    virtual_pool: VirtualPoolView

    def subject(self) -> str:
        return str(self.virtual_pool.virtual_pool_id)

    def tenant(self) -> TenantId:
        return self.virtual_pool.tenant_id

    def generation_of(self) -> int:
        return self.virtual_pool.generation


class ReservationChanged(Event):
    """A reservation was made or cancelled (`reservation.cancelled_at` tells)."""

    type = "quota.reservation_changed.v1"
    reservation: ReservationView

    def subject(self) -> str:
        return str(self.reservation.reservation_id)

    def tenant(self) -> TenantId:
        return self.reservation.tenant_id

    def generation_of(self) -> int:
        return self.reservation.generation


class LimitExhausted(Event):
    """Work began to wait for a limit: one event per crossing."""

    type = "quota.limit_exhausted.v1"
    alert: LimitAlert
    generation: int

    def subject(self) -> str:
        return str(self.alert.alert_id)

    def tenant(self) -> TenantId:
        return self.alert.tenant_id

    def generation_of(self) -> int:
        return self.generation
