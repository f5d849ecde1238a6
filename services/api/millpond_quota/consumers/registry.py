"""Pools and their capacity, as the registry tells them: what guarantees are checked against."""

from collections.abc import Sequence
from typing import Any

from millpond_contracts.bodies.pools import PoolCapacity, PoolView
from millpond_contracts.events import Envelope
from millpond_contracts.events.registry import CapacityChanged, PoolChanged
from millpond_kernel.streams import Consumer
from millpond_kernel.uow import UnitOfWork
from millpond_quota.store.virtual_pools import clear_pools, save_capacity, save_pool


async def _on_pool(unit: UnitOfWork, envelope: Envelope, event: PoolChanged) -> None:
    await save_pool(unit, event.pool, event.deleted)


async def _on_capacity(unit: UnitOfWork, envelope: Envelope, event: CapacityChanged) -> None:
    await save_capacity(unit, event.capacity)


async def _load_pools(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await save_pool(unit, PoolView.model_validate(item), deleted=False)


async def _load_capacity(unit: UnitOfWork, items: Sequence[dict[str, Any]]) -> None:
    for item in items:
        await save_capacity(unit, PoolCapacity.model_validate(item))


def pools_consumer() -> Consumer:
    """Follows the registry's pools."""
    return Consumer(
        "pools",
        "registry",
        {PoolChanged: _on_pool, CapacityChanged: _on_capacity},
        snapshots={"pools": _load_pools, "capacity": _load_capacity},
        clear=clear_pools,
    )
