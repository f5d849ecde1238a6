"""What quota tells of virtual pools and reservations, taken into the views and the usage counters."""

from millpond_contracts.bodies.reservations import ReservationView
from millpond_contracts.bodies.tenants import Limit, VirtualPoolView
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.admission import CPU, MEMORY, Resource, device
from millpond_scheduler.store import reservations, views
from millpond_scheduler.store.changes import ChangeKind, note_changes
from millpond_scheduler.store.guards import set_limits


async def take_virtual_pool(unit: UnitOfWork, virtual_pool: VirtualPoolView) -> None:
    """Takes a virtual pool's newer limits: lowering admits nothing new and stops nothing."""
    if not await views.write_virtual_pool(unit, virtual_pool):
        return
    limits = virtual_pool.limits
    named: dict[Resource, Limit] = {CPU: limits.cpu, MEMORY: limits.memory}
    named |= {device(flavor): limit for flavor, limit in limits.devices.items()}
    if virtual_pool.deleted:
        named = dict.fromkeys(named, Limit())
    await set_limits(
        unit,
        virtual_pool.virtual_pool_id,
        virtual_pool.tenant_id,
        {resource: (limit.guaranteed, limit.cap) for resource, limit in named.items()},
        virtual_pool.generation,
    )
    await note_changes(unit, ChangeKind.VIRTUAL_POOL, [virtual_pool.virtual_pool_id])


async def take_reservation(unit: UnitOfWork, reservation: ReservationView) -> None:
    """Takes a reservation: the leader reads it again with the virtual pools."""
    if await reservations.write_reservation(unit, reservation):
        await note_changes(unit, ChangeKind.VIRTUAL_POOL, [reservation.virtual_pool_id])
