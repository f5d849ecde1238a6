"""Rows of reservations."""

from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.reservations import ReservationSpec, ReservationView
from millpond_contracts.bodies.tenants import VirtualPoolView
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import PoolId, ReservationId, TenantId, VirtualPoolId
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork
from millpond_quota.domain.windows import Window


def reservation_view(row: asyncpg.Record) -> ReservationView:
    """The reservation of a row."""
    return ReservationView(
        reservation_id=ReservationId.of(row["id"]),
        tenant_id=TenantId.of(row["tenant_id"]),
        virtual_pool_id=VirtualPoolId.of(row["virtual_pool_id"]),
        pool_id=PoolId.of(row["pool_id"]),
        flavor=row["flavor"],
        device_milli=row["device_milli"],
        starts_at=row["starts_at"],
        ends_at=row["ends_at"],
        labels=row["labels"],
        cancelled_at=row["cancelled_at"],
        created_at=row["created_at"],
        generation=row["generation"],
    )


async def insert_reservation(unit: UnitOfWork, spec: ReservationSpec, virtual_pool: VirtualPoolView) -> ReservationView:
    """A new reservation of the virtual pool."""
    row = await unit.fetchrow(
        "INSERT INTO reservation (id, tenant_id, virtual_pool_id, pool_id, flavor, device_milli, starts_at, ends_at,"
        " labels, generation) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 1) RETURNING *",
        ReservationId.new(),
        virtual_pool.tenant_id,
        virtual_pool.virtual_pool_id,
        virtual_pool.pool_id,
        spec.flavor,
        spec.device_milli,
        spec.starts_at,
        spec.ends_at,
        spec.labels,
    )
    assert row is not None, "an insert returns its row"
    return reservation_view(row)


async def get_reservation(unit: UnitOfWork, reservation: ReservationId, *, lock: bool = False) -> ReservationView:
    """The reservation, locked when asked.

    Raises:
        ProblemError: 404 `quota.reservation.not_found`.
    """
    row = await unit.fetchrow("SELECT * FROM reservation WHERE id = $1" + (" FOR UPDATE" if lock else ""), reservation)
    if row is None:
        raise ProblemError(ErrorCode.RESERVATION_NOT_FOUND, f"There is no reservation {reservation}.")
    return reservation_view(row)


async def list_reservations(
    unit: UnitOfWork,
    after: UUID | None,
    limit: int,
    *,
    tenant_id: TenantId | None = None,
    virtual_pool_id: VirtualPoolId | None = None,
    pool_id: PoolId | None = None,
) -> list[asyncpg.Record]:
    """Reservations by id, cancelled ones left out."""
    return await unit.fetch(
        "SELECT * FROM reservation WHERE cancelled_at IS NULL AND ($1::uuid IS NULL OR id > $1)"
        " AND ($3::uuid IS NULL OR tenant_id = $3) AND ($4::uuid IS NULL OR virtual_pool_id = $4)"
        " AND ($5::uuid IS NULL OR pool_id = $5) ORDER BY id LIMIT $2",
        after,
        limit,
        tenant_id,
        virtual_pool_id,
        pool_id,
    )


async def cancel_reservation(unit: UnitOfWork, reservation: ReservationId, now: datetime) -> ReservationView:
    """Marks the locked reservation cancelled."""
    row = await unit.fetchrow(
        "UPDATE reservation SET cancelled_at = $2, generation = generation + 1 WHERE id = $1 RETURNING *",
        reservation,
        now,
    )
    assert row is not None, "the row was locked before"
    return reservation_view(row)


async def cancel_reservations_of(unit: UnitOfWork, virtual_pool: VirtualPoolId, now: datetime) -> list[ReservationView]:
    """Marks every reservation of a virtual pool cancelled."""
    rows = await unit.fetch(
        "UPDATE reservation SET cancelled_at = $2, generation = generation + 1 WHERE virtual_pool_id = $1"
        " AND cancelled_at IS NULL RETURNING *",
        virtual_pool,
        now,
    )
    return [reservation_view(row) for row in rows]


async def list_windows(
    unit: UnitOfWork, pool: PoolId, virtual_pool: VirtualPoolId | None = None
) -> dict[str, list[Window]]:
    """Flavor -> what is reserved of it in a pool, or by one virtual pool alone."""
    rows = await unit.fetch(
        "SELECT flavor, starts_at, ends_at, device_milli FROM reservation WHERE pool_id = $1 AND cancelled_at IS NULL"
        " AND ($2::uuid IS NULL OR virtual_pool_id = $2)",
        pool,
        virtual_pool,
    )
    windows: dict[str, list[Window]] = {}
    for row in rows:
        window = Window(row["starts_at"], row["ends_at"], row["device_milli"])
        windows.setdefault(row["flavor"], []).append(window)
    return windows
