"""SQL of devices."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from millpond_contracts.ids import DeviceId, NodeId, PoolId
from millpond_contracts.resources import Device, DeviceHealth
from millpond_kernel.uow import UnitOfWork
from millpond_registry.domain.devices import KnownDevice


def device_of(row: asyncpg.Record) -> KnownDevice:
    """The device of a row."""
    return KnownDevice(
        id=DeviceId.of(row["id"]),
        report=Device.model_validate(row["report"]),
        flavor=row["flavor"],
        health=DeviceHealth(row["health"]),
        health_reason=row["health_reason"],
        reported=row["reported"],
        last_seen_at=row["last_seen_at"],
    )


async def devices_of(unit: UnitOfWork, node_id: NodeId) -> list[KnownDevice]:
    """The devices of one node."""
    return [device_of(row) for row in await unit.fetch("SELECT * FROM device WHERE node_id = $1", node_id)]


async def devices_of_nodes(unit: UnitOfWork, node_ids: Sequence[UUID]) -> dict[UUID, list[KnownDevice]]:
    """node id -> its devices, for several nodes at once."""
    found: dict[UUID, list[KnownDevice]] = {node_id: [] for node_id in node_ids}
    for row in await unit.fetch("SELECT * FROM device WHERE node_id = ANY($1::uuid[])", list(node_ids)):
        found[row["node_id"]].append(device_of(row))
    return found


async def nodes_with_devices(unit: UnitOfWork) -> list[NodeId]:
    """The nodes that have devices, always in the same order; removed ones are left out."""
    rows = await unit.fetch(
        "SELECT DISTINCT d.node_id FROM device d JOIN node n ON n.id = d.node_id WHERE n.state <> 'removed' ORDER BY 1"
    )
    return [NodeId.of(row["node_id"]) for row in rows]


async def put_devices(unit: UnitOfWork, node_id: NodeId, devices: Sequence[KnownDevice]) -> None:
    """Stores the devices of a locked node."""
    if not devices:
        return
    await unit.connection.executemany(
        "INSERT INTO device (id, node_id, identity, flavor, health, health_reason, reported, report, last_seen_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT ON CONSTRAINT device_identity DO UPDATE"
        " SET flavor = excluded.flavor, health = excluded.health, health_reason = excluded.health_reason,"
        " reported = excluded.reported, report = excluded.report, last_seen_at = excluded.last_seen_at",
        [
            (
                device.id,
                node_id,
                device.report.identity,
                device.flavor,
                device.health,
                device.health_reason,
                device.reported,
                device.report.model_dump(mode="json"),
                device.last_seen_at,
            )
            for device in devices
        ],
    )


async def list_devices(
    unit: UnitOfWork,
    after: UUID | None,
    limit: int,
    *,
    node_id: NodeId | None,
    pool_id: PoolId | None,
    flavor: str | None,
    health: DeviceHealth | None,
) -> list[asyncpg.Record]:
    """Rows of devices with `node_name` and `pool_id`, by id; those of removed nodes are left out."""
    return await unit.fetch(
        "SELECT d.*, n.name AS node_name, n.pool_id FROM device d JOIN node n ON n.id = d.node_id"
        " WHERE n.state <> 'removed' AND ($1::uuid IS NULL OR d.id > $1) AND ($3::uuid IS NULL OR d.node_id = $3)"
        " AND ($4::uuid IS NULL OR n.pool_id = $4) AND ($5::text IS NULL OR d.flavor = $5)"
        " AND ($6::text IS NULL OR d.health = $6) ORDER BY d.id LIMIT $2",
        after,
        limit,
        node_id,
        pool_id,
        flavor,
        health,
    )


async def find_node_of(unit: UnitOfWork, device_id: DeviceId) -> NodeId | None:
    """The node that a device belongs to, or None."""
    found = await unit.fetchval("SELECT node_id FROM device WHERE id = $1", device_id)
    return None if found is None else NodeId.of(found)


async def delete_device(unit: UnitOfWork, device_id: DeviceId) -> None:
    """Forgets a device of a locked node."""
    deleted = await unit.execute("DELETE FROM device WHERE id = $1", device_id)
    assert deleted == 1, f"device {device_id} vanished under its node's lock"
