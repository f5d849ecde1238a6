"""Reservations as quota told of them: what a virtual pool has beside its guarantee in a time window."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from millpond_contracts.bodies.reservations import ReservationView
from millpond_contracts.ids import VirtualPoolId
from millpond_kernel.uow import UnitOfWork


@dataclass(frozen=True, slots=True)
class ReservationRecord:
    """One reservation that was not cancelled."""

    id: UUID
    virtual_pool: VirtualPoolId
    flavor: str
    device_milli: int
    starts_at: datetime
    ends_at: datetime | None
    generation: int

    def is_open(self, now: datetime) -> bool:
        """Whether its window holds this instant."""
        return self.starts_at <= now and (self.ends_at is None or now < self.ends_at)


async def write_reservation(unit: UnitOfWork, reservation: ReservationView) -> bool:
    """Takes a reservation as quota tells it; False = it was known as newly or newer."""
    touched = await unit.execute(
        "INSERT INTO reservation_view AS v (id, tenant_id, virtual_pool_id, flavor, device_milli, starts_at, ends_at,"
        " cancelled, generation) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (id) DO UPDATE SET"
        " cancelled = excluded.cancelled, generation = excluded.generation WHERE excluded.generation > v.generation",
        reservation.reservation_id,
        reservation.tenant_id,
        reservation.virtual_pool_id,
        reservation.flavor,
        reservation.device_milli,
        reservation.starts_at,
        reservation.ends_at,
        reservation.cancelled_at is not None,
        reservation.generation,
    )
    return touched == 1


async def list_reservations(unit: UnitOfWork) -> list[ReservationRecord]:
    """Reservations that hold or will hold something."""
    rows = await unit.fetch(
        "SELECT * FROM reservation_view WHERE NOT cancelled AND (ends_at IS NULL OR ends_at > clock_timestamp())"
    )
    return [
        ReservationRecord(
            id=row["id"],
            virtual_pool=VirtualPoolId.of(row["virtual_pool_id"]),
            flavor=row["flavor"],
            device_milli=row["device_milli"],
            starts_at=row["starts_at"],
            ends_at=row["ends_at"],
            generation=row["generation"],
        )
        for row in rows
    ]


async def list_open(unit: UnitOfWork, now: datetime) -> frozenset[tuple[UUID, int]]:
    """Id and generation of every reservation whose window is open."""
    rows = await unit.fetch(
        "SELECT id, generation FROM reservation_view WHERE NOT cancelled AND starts_at <= $1"
        " AND (ends_at IS NULL OR ends_at > $1)",
        now,
    )
    return frozenset((row["id"], row["generation"]) for row in rows)
