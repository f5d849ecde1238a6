"""What a pool has, holds and can still take, read from the snapshot with the formula that all services share."""

from collections.abc import Mapping

import numpy as np

from millpond_contracts.bodies.nodes import CapacityFigures, HostCapacity
from millpond_contracts.capacity import (
    DeviceRoom,
    HostRoom,
    sum_tallies,
    tally_node,
    tell_capacity,
    tell_host_capacity,
)
from millpond_contracts.ids import PoolId
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.admission import CPU, MEMORY, Resource, device
from millpond_scheduler.domain.snapshot import Snapshot


def measure_devices(
    snapshot: Snapshot,
    pool: PoolId,
    reserved_milli: Mapping[str, int] | None = None,
    reference_milli: int = WHOLE_DEVICE_MILLI,
) -> list[CapacityFigures]:
    """The pool's figures per flavor, by name."""
    columns, flavors = snapshot.columns, snapshot.flavors.values
    rows = np.flatnonzero(columns.pool[: columns.rows] == snapshot.pools.find(pool))
    open_node = columns.ready & ~columns.cordoned
    usable = columns.device_usable & open_node[:, np.newaxis]
    nodes = (
        tally_node(
            [
                DeviceRoom(flavors[flavor], milli, ok)
                for flavor, milli, ok in zip(flavor_row, milli_row, usable_row, strict=True)
                if flavor >= 0
            ],
            reference_milli,
        )
        for flavor_row, milli_row, usable_row in zip(
            columns.device_flavor[rows].tolist(),
            columns.device_milli_free[rows].tolist(),
            usable[rows].tolist(),
            strict=True,
        )
    )
    reserved = reserved_milli or {}
    tallies = sum_tallies(nodes)
    return [tell_capacity(flavor, tallies[flavor], reserved.get(flavor, 0)) for flavor in sorted(tallies)]


def measure_hosts(snapshot: Snapshot, pool: PoolId, reserved: Mapping[str, int] | None = None) -> list[HostCapacity]:
    """The pool's figures for CPU and memory."""
    columns = snapshot.columns
    rows = np.flatnonzero(columns.pool[: columns.rows] == snapshot.pools.find(pool))
    open_node = (columns.ready & ~columns.cordoned)[rows].tolist()
    amounts = {
        CPU.name: (columns.cpu_total[rows].tolist(), columns.cpu_free[rows].tolist()),
        MEMORY.name: (columns.memory_total[rows].tolist(), columns.memory_free[rows].tolist()),
    }
    return [
        tell_host_capacity(
            name,
            (HostRoom(total, free, ok) for total, free, ok in zip(totals, frees, open_node, strict=True)),
            (reserved or {}).get(name, 0),
        )
        for name, (totals, frees) in amounts.items()
    ]


def sum_free(snapshot: Snapshot, pool: PoolId) -> dict[Resource, int]:
    """What is free on the nodes of a pool that take new work, in each resource's unit."""
    columns = snapshot.columns
    is_open = columns.ready & ~columns.cordoned & (columns.pool == snapshot.pools.find(pool))
    rows = np.flatnonzero(is_open[: columns.rows])
    milli, usable = columns.device_milli_free[rows], columns.device_usable[rows]
    flavor = columns.device_flavor[rows]
    free = {CPU: int(columns.cpu_free[rows].sum()), MEMORY: int(columns.memory_free[rows].sum())}
    for index, name in enumerate(snapshot.flavors.values):
        free[device(name)] = int(milli[usable & (flavor == index)].sum())
    return free
