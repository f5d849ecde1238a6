"""Follows quota: virtual pools with their limits, reservations, and projects."""

from collections.abc import Callable, Sequence
from typing import Any

from millpond_contracts.bodies.reservations import ReservationView
from millpond_contracts.bodies.tenants import ProjectView, VirtualPoolView
from millpond_contracts.events import Envelope
from millpond_contracts.events.quota import ProjectChanged, ReservationChanged, VirtualPoolChanged
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store import views
from millpond_scheduler.usecases.virtual_pools import take_reservation, take_virtual_pool


def quota_consumer(after_batch: Callable[[], None]) -> Consumer:
    """The consumer of quota's events; `after_batch` wakes the leader of this process."""
    return Consumer(
        name="virtual-pools",
        publisher="quota",
        handlers={
            VirtualPoolChanged: _on_virtual_pool,
            ReservationChanged: _on_reservation,
            ProjectChanged: _on_project,
        },
        snapshots={
            "virtual-pools": _load_virtual_pools,
            "reservations": _load_reservations,
            "projects": _load_projects,
        },
        after_batch=after_batch,
        clear=_clear,
    )


async def _clear(unit: UnitOfWork) -> None:
    # Usage stays: it counts allocations, which are this service's own.
    await unit.execute("DELETE FROM virtual_pool_view")
    await unit.execute("DELETE FROM reservation_view")
    await unit.execute("DELETE FROM project_view")


async def _on_virtual_pool(unit: UnitOfWork, envelope: Envelope, event: VirtualPoolChanged) -> None:
    await take_virtual_pool(unit, event.virtual_pool)


async def _on_reservation(unit: UnitOfWork, envelope: Envelope, event: ReservationChanged) -> None:
    await take_reservation(unit, event.reservation)


async def _on_project(unit: UnitOfWork, envelope: Envelope, event: ProjectChanged) -> None:
    await views.write_project(unit, event.project, deleted=event.deleted)


async def _load_virtual_pools(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await take_virtual_pool(unit, VirtualPoolView.model_validate(item))


async def _load_reservations(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await take_reservation(unit, ReservationView.model_validate(item))


async def _load_projects(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await views.write_project(unit, ProjectView.model_validate(item), deleted=False)
