"""Some rows of the snapshot as one request sees them: the columns that filters and ranks read, computed on demand."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from millpond_contracts.bodies.pools import DeviceSharing
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.columns import ABSENT, BoolArray, IntArray, NodeColumns
from millpond_scheduler.domain.fits import FURTHEST, ShapeFits
from millpond_scheduler.domain.fragmentation import PackingTable, spoil_by_slice, spoil_by_whole
from millpond_scheduler.domain.requests import DeviceDemand
from millpond_scheduler.domain.snapshot import Snapshot

Rows: TypeAlias = slice | IntArray

NO_DEVICE = np.iinfo(np.int64).max
"""The room left on a device that cannot take the slice."""

NOTHING_FITS = 1 << 50
"""What is spoiled where no device can take the slice."""

NO_FLAVOR = -2
"""The flavor chosen where none has enough devices."""


@dataclass(frozen=True, slots=True)
class Spoil:
    """What a placement takes and spoils per row; arrays are (rows,).

    Attributes:
        milli: device milli that the task takes.
        weighted: milli that the usual classes can use no more, times their weights.
        slot: the device that a slice takes, -1 for anything else.
    """

    milli: IntArray
    weighted: IntArray
    slot: IntArray


@dataclass(frozen=True, slots=True)
class Free:
    """What is free on some rows: cpu and memory (rows,), milli and MiB of each device (rows, width).

    `device_slots` is the mask of what partitions hold of each device.
    """

    cpu: IntArray
    memory: IntArray
    device_milli: IntArray
    device_memory: IntArray
    device_slots: IntArray

    @classmethod
    def of(cls, columns: NodeColumns, rows: IntArray) -> "Free":
        """A copy of what is free now."""
        host = (columns.cpu_free, columns.memory_free)
        devices = (columns.device_milli_free, columns.device_memory_free, columns.device_slots)
        return cls(*(amount[rows] for amount in host + devices))

    def of_places(self, places: list[int]) -> "Free":
        """A copy of some of these rows."""
        host, devices = (self.cpu, self.memory), (self.device_milli, self.device_memory, self.device_slots)
        return Free(*(amount[places] for amount in host + devices))


class RowView:
    """One request beside some rows. Arrays are (rows,) per node and (rows, width) per device; nothing is written.

    With `empty` the nodes are seen as if nothing ran on them: whether a request could ever fit. With `free` they are
    seen as if so much were free.

    Attributes:
        usable: devices whose health allows new work.
        device_milli_free: milli not held, of every device.
        eligible: devices that the request may use whatever is free of them.
        roomy: eligible devices with room for the request's share, whoever else holds slices of them.
        admissible: roomy devices that the pool's sharing rule opens to this tenant.
        table: what usually comes to the pool; None when nothing is known of it.
    The three before the last are only there for a request with devices.
    """

    __slots__ = (
        "_spoil",
        "admissible",
        "columns",
        "cpu_free",
        "demand",
        "device_milli_free",
        "eligible",
        "empty",
        "fits",
        "free",
        "memory_free",
        "pool",
        "request",
        "roomy",
        "rows",
        "rules",
        "shape",
        "table",
        "tenant",
        "usable",
    )

    def __init__(
        self, snapshot: Snapshot, fits: ShapeFits, rows: Rows, *, empty: bool = False, free: Free | None = None
    ) -> None:
        columns = self.columns = snapshot.columns
        self.rows = rows
        self.fits = fits
        self.request = fits.request
        self.demand = fits.request.devices
        self.rules = snapshot.rules_of(fits.request.pool)
        self.pool = fits.pool
        self.tenant = fits.tenant
        self.empty = empty
        self.table: PackingTable | None = snapshot.table_of(fits.request.pool)
        self._spoil: Spoil | None = None
        self.free = free
        self.shape: IntArray = columns.shape[rows]
        self.cpu_free: IntArray = (columns.cpu_total if empty else columns.cpu_free)[rows]
        self.memory_free: IntArray = (columns.memory_total if empty else columns.memory_free)[rows]
        self.usable: BoolArray = columns.device_usable[rows]
        self.device_milli_free: IntArray = columns.device_milli_free[rows]
        if empty:
            self.device_milli_free = np.where(columns.device_flavor[rows] == ABSENT, 0, WHOLE_DEVICE_MILLI)
        if free is not None:
            self.cpu_free, self.memory_free, self.device_milli_free = free.cpu, free.memory, free.device_milli
        if self.demand is not None:
            self.eligible: BoolArray = fits.slots[self.shape] & self.usable
            self.roomy: BoolArray = self._find_roomy(self.demand)
            self.admissible: BoolArray = self._find_admissible(self.demand)

    def slice_milli(self) -> IntArray | int:
        """Thousandths of a device that the task takes; of a slice by memory alone and of a partition, per device."""
        demand = self.demand
        if demand is None:
            return 0
        if demand.profile is not None:
            return self.fits.partitions.milli[self.fits.slot_partition[self.shape]]
        if demand.milli is not None:
            return demand.milli
        return share_of_memory(demand.memory_mib or 0, self.columns.device_memory_total[self.rows])

    def slice_memory(self) -> IntArray | int:
        """MiB that a slice takes: what it asks for, else in proportion to its share."""
        demand = self.demand
        if demand is None:
            return 0
        if demand.profile is not None:
            tables, row = self.fits.partitions, self.fits.slot_partition[self.shape]
            return self.columns.device_memory_total[self.rows] * tables.slices[row] // tables.device_slices[row]
        if demand.memory_mib is not None:
            return demand.memory_mib
        return self.columns.device_memory_total[self.rows] * (demand.milli or 0) // WHOLE_DEVICE_MILLI

    def device_slots(self) -> IntArray:
        """The mask of the memory slices that partitions hold, of every device."""
        if self.free is not None:
            return self.free.device_slots
        slots = self.columns.device_slots[self.rows]
        return np.zeros_like(slots) if self.empty else slots

    def more_partitions(self) -> IntArray:
        """How many more of the partition each device that it may use has room for."""
        counts = self.fits.partitions.counts[self.fits.slot_partition[self.shape], self.device_slots()]
        return np.where(self.admissible, counts, 0)

    def partitions_lost(self) -> IntArray:
        """What the partition would cost on each device that it may use, in memory slices; NO_DEVICE on the others."""
        lost = self.fits.partitions.lost[self.fits.slot_partition[self.shape], self.device_slots()]
        return np.where(self.open_to_slice(), lost, NO_DEVICE)

    def device_memory_free(self) -> IntArray:
        """MiB not held, of every device."""
        if self.free is not None:
            return self.free.device_memory
        return (self.columns.device_memory_total if self.empty else self.columns.device_memory_free)[self.rows]

    def room_left(self) -> IntArray:
        """Milli that a slice would leave on each device that it may take, NO_DEVICE on the others."""
        return np.where(self.open_to_slice(), self.device_milli_free - self.slice_milli(), NO_DEVICE)

    def open_to_slice(self) -> BoolArray:
        """The devices of which a slice takes one: admissible, and where flavors differ the nearest of them."""
        if not self.has_mixed_steps:
            return self.admissible
        steps = np.where(self.admissible, self.fits.slot_steps[self.shape], NO_DEVICE)
        nearest: BoolArray = self.admissible & (steps == steps.min(axis=1, keepdims=True))
        return nearest

    def taken_whole(self, count: int) -> BoolArray:
        """The devices that a task of so many whole ones takes: the lowest slots of one flavor."""
        open_ = self.admissible
        if len(self.fits.mixed_flavors) > 1:
            open_ = open_ & (self.columns.device_flavor[self.rows] == self._choose_flavor(count)[:, np.newaxis])
        taken: BoolArray = open_ & (np.cumsum(open_, axis=1) <= count)
        return taken

    def spoil(self) -> Spoil:
        """What the placement takes and spoils on each row; asked only where something usually comes."""
        if self._spoil is None:
            assert self.table is not None, "nothing usually comes"
            self._spoil = self._measure_spoil(self.table)
        return self._spoil

    @property
    def has_mixed_steps(self) -> bool:
        """Whether devices of one node may be nearer to the request than others."""
        return self.fits.has_steps and len(self.fits.mixed_flavors) > 1

    def nearest_steps(self) -> IntArray:
        """Per row how far the nearest devices are that the task could take now; FURTHEST where there are none."""
        if self.demand is None or not self.has_mixed_steps:
            return self.fits.steps[self.shape]
        flavor = self.columns.device_flavor[self.rows]
        slot_steps = self.fits.slot_steps[self.shape]
        nearest: IntArray = np.full(len(self.shape), FURTHEST, dtype=np.int64)
        for index in self.fits.mixed_flavors:
            open_ = self.admissible & (flavor == index)
            enough = np.count_nonzero(open_, axis=1) >= self.demand.count
            steps = np.where(open_, slot_steps, FURTHEST).min(axis=1)
            nearest = np.where(enough, np.minimum(nearest, steps), nearest)
        return nearest

    def _choose_flavor(self, count: int) -> IntArray:
        """Per row, of the flavors with enough open devices the nearest, then that with most, then the first by name."""
        flavor, slot_steps = self.columns.device_flavor[self.rows], self.fits.slot_steps[self.shape]
        width = flavor.shape[1]
        chosen: IntArray = np.full(len(self.shape), NO_FLAVOR, dtype=np.int64)
        best = np.full(len(self.shape), NO_DEVICE, dtype=np.int64)
        for index in self.fits.mixed_flavors:
            open_ = self.admissible & (flavor == index)
            found = np.count_nonzero(open_, axis=1)
            steps = np.where(open_, slot_steps, FURTHEST).min(axis=1)
            key = np.where(found >= count, steps * (width + 1) + width - found, NO_DEVICE)
            chosen[key < best] = index
            best = np.minimum(best, key)
        return chosen

    def _measure_spoil(self, table: PackingTable) -> Spoil:
        flavor = self.columns.device_flavor[self.rows]
        milli = np.clip(self.device_milli_free, 0, WHOLE_DEVICE_MILLI) * self.usable
        before = table.levels_of(self.cpu_free)
        after = table.levels_of(self.cpu_free - self.request.cpu_milli)
        none: IntArray = np.full(len(self.shape), -1, dtype=np.int64)
        if self.demand is None or self.demand.is_whole:
            count = 0 if self.demand is None else self.demand.count
            taken = self.taken_whole(count) if count else np.zeros_like(self.usable)
            weighted = spoil_by_whole(table, before, after, flavor, milli, taken)
            return Spoil(np.full_like(none, count * WHOLE_DEVICE_MILLI), weighted, none)
        share = np.broadcast_to(self.slice_milli(), milli.shape)
        each = spoil_by_slice(table, before, after, flavor, milli, share)
        each = np.where(self.open_to_slice(), each, NOTHING_FITS)
        slot: IntArray = each.argmin(axis=1)
        rows = np.arange(len(slot))
        return Spoil(share[rows, slot], each[rows, slot], slot)

    def _find_roomy(self, demand: DeviceDemand) -> BoolArray:
        if demand.is_whole:
            idle: BoolArray = self.device_milli_free == WHOLE_DEVICE_MILLI
            return self.eligible & idle
        if demand.profile is not None:
            return self._find_legal_starts()
        enough: BoolArray = self.device_milli_free >= self.slice_milli()
        enough &= self.device_memory_free() >= self.slice_memory()
        enough &= self.device_slots() == 0  # a partition that outlived its device's mode
        return self.eligible & enough

    def _find_legal_starts(self) -> BoolArray:
        tables, row, slots = self.fits.partitions, self.fits.slot_partition[self.shape], self.device_slots()
        has_start: BoolArray = tables.starts[row, slots] >= 0
        # Whatever else is held of the device was there before its mode: it is given out in partitions once that ended.
        has_start &= self.device_milli_free == tables.milli_left[row, slots]
        return self.eligible & has_start

    def _find_admissible(self, demand: DeviceDemand) -> BoolArray:
        if self.empty or demand.is_whole or self.rules.device_sharing is DeviceSharing.ANY:
            return self.roomy
        holder = self.columns.device_holder[self.rows]
        mine: BoolArray = (holder == ABSENT) | (holder == self.tenant)
        if self.free is not None:
            mine |= self.device_milli_free == WHOLE_DEVICE_MILLI
        return self.roomy & mine

    def has_devices(self, devices: BoolArray) -> BoolArray:
        """Whether one task finds enough of these devices on each row."""
        if self.demand is None or self.demand.count > 1:
            return self.count_devices(devices) >= (self.demand.count if self.demand else 0)
        return np.asarray(devices.any(axis=1), dtype=np.bool_)

    def count_devices(self, devices: BoolArray) -> IntArray:
        """Devices per row that one task can use together: they must be of one flavor."""
        if len(self.fits.mixed_flavors) < 2:
            counted: IntArray = devices.sum(axis=1)
            return counted
        flavor = self.columns.device_flavor[self.rows]
        counts = [np.count_nonzero(devices & (flavor == index), axis=1) for index in self.fits.mixed_flavors]
        most: IntArray = np.max(counts, axis=0)
        return most


def share_of_memory(memory_mib: int, device_memory: IntArray) -> IntArray:
    """Thousandths that so much memory is of each device, rounded down so that memory is what binds, and at least 1."""
    share: IntArray = np.maximum(memory_mib * WHOLE_DEVICE_MILLI // np.maximum(device_memory, 1), 1)
    return share
