"""What of a pool is free, summed over the nodes that take new work."""

import numpy as np

from millpond_contracts.ids import PoolId
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
