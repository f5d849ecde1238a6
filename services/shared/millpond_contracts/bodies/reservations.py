"""Reservations: devices that are held for a virtual pool in a time window, though idle."""

from typing import Annotated

from pydantic import Field, model_validator

from millpond_contracts.bodies.shapes import Incoming, Outgoing
from millpond_contracts.bodies.tenants import FlavorName
from millpond_contracts.ids import PoolId, ReservationId, TenantId, VirtualPoolId
from millpond_contracts.quantities import DeviceMilli, Instant, Labels


class ReservationSpec(Incoming):
    """So much of a flavor beside the guarantee, from `starts_at` until `ends_at` (null = without end); never lent."""

    virtual_pool_id: VirtualPoolId
    flavor: FlavorName
    device_milli: Annotated[DeviceMilli, Field(ge=1)]
    starts_at: Instant
    ends_at: Instant | None = None
    labels: Labels = Field(default_factory=dict)

    @model_validator(mode="after")
    def _window(self) -> "ReservationSpec":
        if self.ends_at is not None and self.ends_at <= self.starts_at:
            raise ValueError("ends_at must be after starts_at")
        return self


class ReservationView(Outgoing):
    """A reservation; once `cancelled_at` is set it holds nothing any more."""

    reservation_id: ReservationId
    tenant_id: TenantId
    virtual_pool_id: VirtualPoolId
    pool_id: PoolId
    flavor: str
    device_milli: int
    starts_at: Instant
    ends_at: Instant | None
    labels: dict[str, str]
    cancelled_at: Instant | None
    created_at: Instant
    generation: int
