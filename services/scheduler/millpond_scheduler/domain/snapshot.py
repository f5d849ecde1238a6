"""The pool as the scheduler sees it at one instant: nodes as arrays, what is held of them, and undo.

Free amounts are never taken from outside: they are what a node has less the sum of its holdings, so that a node that
changes, leaves or comes back cannot lose or invent a holding. One task attempt has at most one holding.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from millpond_contracts.bodies.nodes import NodeState
from millpond_contracts.ids import DeviceId, NodeId, PoolId, TaskId, TenantId
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_contracts.resources import Isolation, TopologyLevel
from millpond_scheduler.domain.changes import RowChanges
from millpond_scheduler.domain.columns import ABSENT, SEVERAL, IntArray, Interner, NodeColumns
from millpond_scheduler.domain.fragmentation import Packing, PackingTable
from millpond_scheduler.domain.neighbours import Neighbours
from millpond_scheduler.domain.nodes import NodeRecord, NodeShape, NodeSize, PoolRules
from millpond_scheduler.domain.plans import DevicePick, Holding
from millpond_scheduler.domain.sums import Amounts, PoolSums
from millpond_scheduler.domain.topology import Places

_HALF, _SIGN = (1 << 64) - 1, 1 << 63  # an id is two int64 in order; a UUIDv7 begins with its instant
_STRICT = PoolRules()


class Snapshot:
    """Nodes and holdings of one shard. Ids are known outside, rows and slots only here and in the columns.

    Attributes:
        changes: which rows changed since when.
        layout: rises with every change of a node, or of what a pool rules; not with what is held.
    """

    def __init__(self, rules: Mapping[PoolId, PoolRules] | None = None) -> None:
        self.columns = NodeColumns()
        self.pools: Interner[PoolId] = Interner()
        self.flavors: Interner[str] = Interner()
        self.tenants: Interner[TenantId] = Interner()
        self.shapes: Interner[NodeShape] = Interner()
        self.sizes: Interner[NodeSize] = Interner()
        self.label_sets: Interner[frozenset[tuple[str, str]]] = Interner()
        self.places = Places()
        self.changes = RowChanges(self.columns)
        self.layout = 0
        self._rules: dict[PoolId, PoolRules] = dict(rules or {})
        self._packings: dict[PoolId, Packing] = {}
        self._tables: dict[PoolId, PackingTable] = {}
        self._records: list[NodeRecord | None] = []
        self._row_of: dict[NodeId, int] = {}
        self._empty_rows: list[int] = []
        self._slot_of: dict[DeviceId, tuple[int, int]] = {}
        self._holdings: dict[TaskId, Holding] = {}
        self.neighbours = Neighbours(self._holdings)
        self._tasks_of: defaultdict[NodeId, set[TaskId]] = defaultdict(set)
        self._node_tenants: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self._device_tenants: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        self._pool_flavors: defaultdict[PoolId, Counter[str]] = defaultdict(Counter)
        self.sums = PoolSums(self.columns)
        self._placed: list[Holding] = []

    # Nodes

    def upsert_node(self, record: NodeRecord) -> bool:
        """Add a node or take its newer description; its holdings stay charged. False = an older version, ignored."""
        row = self._row_of.get(record.id)
        if row is None:
            row = self._take_row(record)
        elif record.version < self.columns.version[row]:
            return False
        else:
            self.sums.count_node(row, -1)
            self._forget_devices(row)
            self.columns.clear(row)
        self._write_record(row, record)
        self.layout += 1
        for task in self._tasks_of[record.id]:
            self._charge(row, self._holdings[task], 1)
        self.sums.count_node(row, 1)
        self.changes.note(row)
        return True

    def remove_node(self, node: NodeId) -> None:
        """Forget a node. What is still held on it stays recorded until its release."""
        row = self._row_of.pop(node, None)
        if row is None:
            return
        self.sums.count_node(row, -1)
        self._forget_devices(row)
        self.columns.clear(row)
        self._records[row] = None
        self.layout += 1
        self._empty_rows.append(row)
        self.changes.note(row)

    def set_rules(self, pool: PoolId, rules: PoolRules) -> None:
        """Take a pool's rules on sharing; everything remembered about its nodes is computed anew."""
        self._rules[pool] = rules
        self._touch_pool(pool)

    def rules_of(self, pool: PoolId) -> PoolRules:
        """The pool's rules on sharing, the strict ones when none were given."""
        return self._rules.get(pool, _STRICT)

    def set_packing(self, pool: PoolId, packing: Packing) -> None:
        """Take what usually comes to a pool and what is scarce there; everything remembered is computed anew."""
        if packing == self.packing_of(pool):
            return
        self._packings[pool] = packing
        self._tables.pop(pool, None)
        self._touch_pool(pool)

    def packing_of(self, pool: PoolId) -> Packing:
        """How tasks are packed in the pool; by best fit when nothing is known of what usually comes."""
        return self._packings.get(pool, Packing())

    def table_of(self, pool: PoolId) -> PackingTable | None:
        """The pool's packing as arrays, for all flavors and sizes that are here; None when nothing usually comes."""
        packing = self._packings.get(pool)
        if packing is None or not packing.mix.classes:
            return None
        found = self._tables.get(pool)
        if found is None or found.known != (len(self.flavors.values), len(self.sizes.values)):
            found = self._tables[pool] = PackingTable(packing, self.flavors.values, self.sizes.values)
        return found

    def has_flavor(self, pool: PoolId, flavor: str) -> bool:
        """Whether a node of the pool has a device of the flavor."""
        return self._pool_flavors[pool][flavor] > 0

    def has_unisolated(self, pool: PoolId) -> bool:
        """Whether a node of the pool does not keep its users apart."""
        return self.sums.total[self.pools.find(pool)].unisolated_nodes > 0

    def find_flavor(self, device: DeviceId) -> str | None:
        """The flavor of a device, None when it is not here."""
        place = self._slot_of.get(device)
        return None if place is None else self.record_at(place[0]).devices[place[1]].profile.flavor

    def find_slot(self, device: DeviceId) -> int | None:
        """The place of a device on its node, None when it is not here."""
        place = self._slot_of.get(device)
        return None if place is None else place[1]

    def find_row(self, node: NodeId) -> int | None:
        """The row of a node, None when it is not here."""
        return self._row_of.get(node)

    def record_at(self, row: int) -> NodeRecord:
        """The description of the node in a row that is in use."""
        record = self._records[row]
        if record is None:
            raise KeyError(f"row {row} holds no node")
        return record

    def get_node(self, node: NodeId) -> NodeRecord:
        """The description of a node that is here."""
        return self.record_at(self._row_of[node])

    def domains_of(self, level: TopologyLevel, rows: IntArray) -> IntArray:
        """The domains of a level in which rows lie, ABSENT where it is not known; of `node` the rows themselves."""
        return rows if level is TopologyLevel.NODE else self.places.domains_of(level, self.columns.place[rows])

    def domain_name(self, level: TopologyLevel, domain: int) -> str:
        """A domain as people write it; of `node` the node's name."""
        return self.record_at(domain).name if level is TopologyLevel.NODE else self.places.name_of(level, domain)

    def list_nodes(self, pool: PoolId | None = None) -> Iterator[tuple[int, NodeRecord]]:
        """Rows in use with their nodes, of one pool or of all; for whoever looks on, as tests and simulations do."""
        for row, record in enumerate(self._records):
            if record is not None and (pool is None or record.pool == pool):
                yield row, record

    def count_sizes(self, pool: PoolId) -> dict[NodeSize, int]:
        """How many nodes of each size a pool has."""
        rows = self.columns.pool[: self.columns.rows] == self.pools.find(pool)
        found = np.bincount(self.columns.size[: self.columns.rows][rows], minlength=len(self.sizes.values)).tolist()
        return {size: count for size, count in zip(self.sizes.values, found, strict=True) if count}

    # Holdings

    def apply_allocation(self, holding: Holding) -> None:
        """Charge what an attempt holds; the same holding twice is charged once, another one replaces it."""
        if self._holdings.get(holding.task) == holding:
            return
        self.release_allocation(holding.task)
        self._holdings[holding.task] = holding
        self._hold(holding)

    def apply_allocations(self, holdings: Iterable[Holding]) -> None:
        """The same for many at once: a row is written once, however many are on it."""
        by_node: dict[NodeId, list[Holding]] = {}
        for holding in holdings:
            if holding.task in self._holdings:
                self.apply_allocation(holding)
                continue
            self._holdings[holding.task] = holding
            self.neighbours.note(holding, 1)
            by_node.setdefault(holding.node, []).append(holding)
        for node, held in by_node.items():
            self._tasks_of[node].update([holding.task for holding in held])
            row = self._row_of.get(node)
            if row is not None:
                self._charge_all(row, held)
                self.changes.note(row)

    def release_allocation(self, task: TaskId) -> Holding | None:
        """Give back what an attempt holds; None when it holds nothing."""
        holding = self._holdings.pop(task, None)
        if holding is None:
            return None
        self.neighbours.note(holding, -1)
        self._tasks_of[holding.node].discard(task)
        row = self._row_of.get(holding.node)
        if row is not None:
            self._charge(row, holding, -1, self.sums.free_of(row))
            self.changes.note(row)
        return holding

    def find_holding(self, task: TaskId) -> Holding | None:
        """What an attempt holds, None when nothing."""
        return self._holdings.get(task)

    def list_holdings(self, node: NodeId | None = None) -> list[Holding]:
        """Everything held, on one node or on all."""
        if node is None:
            return list(self._holdings.values())
        return [self._holdings[task] for task in self._tasks_of.get(node, ())]

    # Trial placement

    def place(self, holding: Holding) -> None:
        """Charge a holding that is only planned: it can be undone until `keep`.

        Raises:
            ValueError: the task holds something already.
        """
        if self._holdings.setdefault(holding.task, holding) is not holding:
            raise ValueError(f"{holding.task} is placed already")
        self._hold(holding)
        self._placed.append(holding)

    def mark(self) -> int:
        """The present end of the undo log, for `undo_to`."""
        return len(self._placed)

    def undo_to(self, mark: int) -> None:
        """Take back every placement after `mark`, newest first."""
        while len(self._placed) > mark:
            holding = self._placed.pop()
            if self._holdings.get(holding.task) == holding:
                self.release_allocation(holding.task)

    def keep(self) -> None:
        """Placements so far are committed: forget how to undo them."""
        self._placed.clear()

    # Rows

    def _take_row(self, record: NodeRecord) -> int:
        if self._empty_rows:
            row = self._empty_rows.pop()
        else:
            row = self.columns.rows
            self.columns.reserve(row + 1, 1)
            self.columns.rows += 1
            self._records.append(None)
        self._row_of[record.id] = row
        return row

    def _write_record(self, row: int, record: NodeRecord) -> None:
        self.columns.reserve(row + 1, len(record.devices))
        columns = self.columns
        self._records[row] = record
        columns.pool[row] = self.pools.index(record.pool)
        columns.cpu_total[row] = columns.cpu_free[row] = record.cpu_milli
        columns.memory_total[row] = columns.memory_free[row] = record.memory_mib
        columns.shape[row] = self.shapes.index(
            NodeShape(record.profile, tuple(device.profile for device in record.devices))
        )
        columns.size[row] = self.sizes.index(record.size)
        columns.place[row] = self.places.index(record.place)
        columns.label_set[row] = self.label_sets.index(frozenset(record.labels.items()))
        columns.incarnation[row], columns.version[row] = record.incarnation, record.version
        columns.tie[row] = (record.id.int >> 64) - _SIGN
        columns.tie_rest[row] = (record.id.int & _HALF) - _SIGN
        columns.ready[row] = record.state is NodeState.READY
        columns.cordoned[row] = bool(record.cordons)
        columns.unisolated[row] = record.isolation is Isolation.NONE
        for slot, device in enumerate(record.devices):
            self._slot_of[device.id] = (row, slot)
            columns.device_flavor[row, slot] = self.flavors.index(device.profile.flavor)
            columns.device_milli_free[row, slot] = WHOLE_DEVICE_MILLI
            columns.device_memory_total[row, slot] = device.profile.memory_mib or 0
            columns.device_memory_free[row, slot] = device.profile.memory_mib or 0
            columns.device_usable[row, slot] = device.usable
        self._pool_flavors[record.pool].update(device.profile.flavor for device in record.devices)
        columns.usable_milli_free[row] = WHOLE_DEVICE_MILLI * sum(device.usable for device in record.devices)

    def _forget_devices(self, row: int) -> None:
        record = self.record_at(row)
        self._pool_flavors[record.pool].subtract(device.profile.flavor for device in record.devices)
        for slot, device in enumerate(record.devices):
            if self._slot_of.get(device.id) == (row, slot):
                del self._slot_of[device.id]
            self._device_tenants.pop((row, slot), None)
        self._node_tenants.pop(row, None)

    def _hold(self, holding: Holding) -> None:
        self.neighbours.note(holding, 1)
        self._tasks_of[holding.node].add(holding.task)
        row = self._row_of.get(holding.node)
        if row is not None:
            self._charge(row, holding, 1, self.sums.free_of(row))
            self.changes.note(row)

    def _charge(self, row: int, holding: Holding, sign: int, free: Amounts | None = None) -> None:
        """Charges a holding to a row, and to the sum of what is free where it is counted there."""
        columns = self.columns
        tenant = self.tenants.index(holding.tenant)
        columns.cpu_free[row] -= sign * holding.cpu_milli
        columns.memory_free[row] -= sign * holding.memory_mib
        columns.holder[row] = _count_tenant(self._node_tenants[row], tenant, sign)
        if free is not None:
            free.cpu_milli -= sign * holding.cpu_milli
            free.memory_mib -= sign * holding.memory_mib
        for pick in holding.devices:
            self._charge_device(row, pick, tenant, sign, free)

    def _charge_all(self, row: int, holdings: list[Holding]) -> None:
        """Charge what came to a row, and count it."""
        columns, tenants, free = self.columns, self._node_tenants[row], self.sums.free_of(row)
        cpu_milli = memory_mib = 0
        for holding in holdings:
            tenant = self.tenants.index(holding.tenant)
            tenants[tenant] = tenants.get(tenant, 0) + 1
            cpu_milli += holding.cpu_milli
            memory_mib += holding.memory_mib
            for pick in holding.devices:
                self._charge_device(row, pick, tenant, 1, free)
        columns.cpu_free[row] -= cpu_milli
        columns.memory_free[row] -= memory_mib
        columns.holder[row] = _holder_of(tenants)
        if free is not None:
            free.cpu_milli -= cpu_milli
            free.memory_mib -= memory_mib

    def _charge_device(self, row: int, pick: DevicePick, tenant: int, sign: int, free: Amounts | None) -> None:
        place = self._slot_of.get(pick.device)
        if place is None or place[0] != row:
            return  # the device left the node; the holding keeps naming it until its release
        columns = self.columns
        columns.device_milli_free[place] -= sign * pick.milli
        columns.device_memory_free[place] -= sign * pick.memory_mib
        if pick.slots:
            columns.device_slots[place] += sign * pick.slots  # masks of partitions never overlap: the guard sees to it
        if columns.device_usable[place]:
            columns.usable_milli_free[row] -= sign * pick.milli
            if free is not None:
                free.device_milli[int(columns.device_flavor[place])] -= sign * pick.milli
        columns.device_holder[place] = _count_tenant(self._device_tenants[place], tenant, sign)

    def _touch_pool(self, pool: PoolId) -> None:
        self.layout += 1
        self.changes.note_together(np.flatnonzero(self.columns.pool[: self.columns.rows] == self.pools.find(pool)))


def _count_tenant(counts: dict[int, int], tenant: int, sign: int) -> int:
    """Count one holding more or less of a tenant; the holder that results: none, one tenant, or several."""
    count = counts.get(tenant, 0) + sign
    if count:
        counts[tenant] = count
    else:
        counts.pop(tenant, None)
    return _holder_of(counts)


def _holder_of(counts: dict[int, int]) -> int:
    if not counts:
        return ABSENT
    return next(iter(counts)) if len(counts) == 1 else SEVERAL
