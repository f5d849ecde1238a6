"""What a pool has: of it what is free on the nodes that take new work, and in all."""

from millpond_contracts.ids import PoolId
from millpond_scheduler.domain.admission import CPU, MEMORY, Resource, device
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.sums import Amounts


def sum_free(snapshot: Snapshot, pool: PoolId) -> dict[Resource, int]:
    """What is free on the nodes of a pool that take new work, in each resource's unit."""
    return _name(snapshot, snapshot.sums.free[snapshot.pools.find(pool)])


def sum_total(snapshot: Snapshot, pool: PoolId) -> dict[Resource, int]:
    """What all nodes of a pool have together, in each resource's unit, whether they take new work or not."""
    return _name(snapshot, snapshot.sums.total[snapshot.pools.find(pool)])


def _name(snapshot: Snapshot, amounts: Amounts) -> dict[Resource, int]:
    devices = {device(name): amounts.device_milli[index] for index, name in enumerate(snapshot.flavors.values)}
    return {CPU: amounts.cpu_milli, MEMORY: amounts.memory_mib, **devices}
