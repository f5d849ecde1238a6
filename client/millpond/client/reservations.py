"""Reservations: devices held for a virtual pool in a time window, though idle."""

from collections.abc import Iterator

from millpond.client.calls import create, delete, get, get_page
from millpond.client.nouns import Noun
from millpond_contracts.bodies.reservations import ReservationSpec, ReservationView
from millpond_contracts.ids import PoolId, ReservationId, TenantId, VirtualPoolId


class Reservations(Noun):
    """`/v1/reservations`."""

    def create(self, spec: ReservationSpec) -> ReservationView:
        """Holds devices for a virtual pool; nobody else gets them in the window."""
        return self._send(create("/v1/reservations", spec, ReservationView))

    def list(
        self,
        *,
        tenant_id: TenantId | None = None,
        virtual_pool_id: VirtualPoolId | None = None,
        pool_id: PoolId | None = None,
    ) -> Iterator[ReservationView]:
        """Reservations that were not cancelled."""
        filters = {"tenant_id": tenant_id, "virtual_pool_id": virtual_pool_id, "pool_id": pool_id}
        return self._pages(get_page("/v1/reservations", ReservationView, **filters))

    def get(self, reservation: ReservationId) -> ReservationView:
        """One reservation."""
        return self._send(get(f"/v1/reservations/{reservation}", ReservationView))

    def cancel(self, reservation: ReservationView) -> None:
        """Cancels a reservation: from now on it holds nothing; what runs goes on."""
        self._send(delete(f"/v1/reservations/{reservation.reservation_id}", reservation.generation))
