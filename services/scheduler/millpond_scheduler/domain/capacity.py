"""What a pool has: of it what is free on the nodes that take new work, and in all."""

import numpy as np

from millpond_contracts.ids import PoolId
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.admission import CPU, MEMORY, Resource, device
from millpond_scheduler.domain.snapshot import Snapshot


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


def sum_total(snapshot: Snapshot, pool: PoolId) -> dict[Resource, int]:
    """What all nodes of a pool have together, in each resource's unit, whether they take new work or not."""
    columns = snapshot.columns
    rows = np.flatnonzero((columns.pool == snapshot.pools.find(pool))[: columns.rows])
    flavor = columns.device_flavor[rows]
    total = {CPU: int(columns.cpu_total[rows].sum()), MEMORY: int(columns.memory_total[rows].sum())}
    for index, name in enumerate(snapshot.flavors.values):
        total[device(name)] = int(np.count_nonzero(flavor == index)) * WHOLE_DEVICE_MILLI
    return total
