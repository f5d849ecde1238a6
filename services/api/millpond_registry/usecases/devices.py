"""Devices as a list shows them, and forgetting those that left their node for good."""

import asyncpg

from millpond_contracts.bodies.devices import DeviceListing
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.registry import InventoryChanged
from millpond_contracts.ids import DeviceId, NodeId, PoolId
from millpond_kernel.audit import audit
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_registry.domain.devices import device_view
from millpond_registry.store import devices
from millpond_registry.usecases.nodes import lock_existing_node, save_node


def device_listing(row: asyncpg.Record) -> DeviceListing:
    """The device of a row with its place."""
    device = devices.device_of(row)
    return DeviceListing(
        **dict(device_view(device)),
        node_id=NodeId.of(row["node_id"]),
        node_name=row["node_name"],
        pool_id=PoolId.of(row["pool_id"]),
        reported=device.reported,
        last_seen_at=device.last_seen_at,
    )


async def forget_device(unit: UnitOfWork, caller: Principal, device_id: DeviceId) -> None:
    """Removes a device that its node's newest inventory lacks; if it comes back, it is a new device.

    Raises:
        ProblemError: 404 unknown, 409 while the node still reports it.
    """
    node_id = await devices.find_node_of(unit, device_id)
    if node_id is None:
        raise ProblemError(ErrorCode.DEVICE_NOT_FOUND, f"There is no device {device_id}.")
    node = await lock_existing_node(unit, node_id)
    known = {device.id: device for device in await devices.devices_of(unit, node_id)}
    forgotten = known.pop(device_id, None)
    if forgotten is None:
        raise ProblemError(ErrorCode.DEVICE_NOT_FOUND, f"There is no device {device_id}.")
    if forgotten.reported:
        raise ProblemError(
            ErrorCode.NODE_STATE, f"Node {node.name} still reports {forgotten.report.identity}: take it out first."
        )
    await devices.delete_device(unit, device_id)
    await save_node(unit, node, node, InventoryChanged, devices=list(known.values()))
    audit(unit, caller, "device.forget", str(device_id), before=device_view(forgotten))
