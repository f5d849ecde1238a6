"""What each pool has in all, and of it what is free on the nodes that take new work: kept up as rows change."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.columns import ABSENT, NodeColumns


@dataclass(slots=True)
class Amounts:
    """CPU in milli, memory in MiB, device milli by the flavor's index, and nodes that do not keep users apart."""

    unisolated_nodes: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    device_milli: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))


class PoolSums:
    """Sums over the rows of each pool, by its index.

    Attributes:
        total: of all nodes.
        free: on usable devices of nodes that are ready and not cordoned.
    """

    def __init__(self, columns: NodeColumns) -> None:
        self.total: defaultdict[int, Amounts] = defaultdict(Amounts)
        self.free: defaultdict[int, Amounts] = defaultdict(Amounts)
        self._columns = columns

    def count_node(self, row: int, sign: int) -> None:
        """Count a node as its row is now, or take it off."""
        columns, pool = self._columns, int(self._columns.pool[row])
        total = self.total[pool]
        total.unisolated_nodes += sign * int(columns.unisolated[row])
        total.cpu_milli += sign * int(columns.cpu_total[row])
        total.memory_mib += sign * int(columns.memory_total[row])
        flavors: list[int] = columns.device_flavor[row].tolist()
        for flavor in flavors:
            if flavor != ABSENT:
                total.device_milli[flavor] += sign * WHOLE_DEVICE_MILLI
        free = self.free_of(row)
        if free is None:
            return
        free.cpu_milli += sign * int(columns.cpu_free[row])
        free.memory_mib += sign * int(columns.memory_free[row])
        for slot in np.flatnonzero(columns.device_usable[row]).tolist():
            free.device_milli[flavors[slot]] += sign * int(columns.device_milli_free[row, slot])

    def free_of(self, row: int) -> Amounts | None:
        """Where what is free on a row is counted; None where it is not."""
        is_open = self._columns.ready[row] and not self._columns.cordoned[row]
        return self.free[int(self._columns.pool[row])] if is_open else None
