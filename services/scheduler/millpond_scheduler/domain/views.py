"""Some rows of the snapshot as one request sees them: the columns that filters and ranks read, computed on demand."""

from functools import cached_property
from typing import TypeAlias

import numpy as np

from millpond_contracts.bodies.nodes import DeviceSharing
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.columns import ABSENT, BoolArray, CodeArray, IntArray
from millpond_scheduler.domain.fits import ShapeFits
from millpond_scheduler.domain.snapshot import Snapshot

Rows: TypeAlias = slice | IntArray

NO_DEVICE = np.iinfo(np.int64).max
"""The room left on a device that cannot take the slice."""


class RowView:
    """One request beside some rows. Arrays are (rows,) per node and (rows, width) per device; nothing is written.

    With `empty` the nodes are seen as if nothing ran on them: whether a request could ever fit.
    """

    def __init__(self, snapshot: Snapshot, fits: ShapeFits, rows: Rows, *, empty: bool = False) -> None:
        self.columns = snapshot.columns
        self.rows = rows
        self.fits = fits
        self.request = fits.request
        self.demand = fits.request.devices
        self.rules = snapshot.rules_of(fits.request.pool)
        self.pool = snapshot.pools.find(fits.request.pool)
        self.tenant = snapshot.tenants.index(fits.request.tenant)
        self.empty = empty

    @cached_property
    def shape(self) -> IntArray:
        return self.columns.shape[self.rows]

    @cached_property
    def shape_codes(self) -> CodeArray:
        return self.fits.codes[self.shape]

    @cached_property
    def cpu_free(self) -> IntArray:
        return (self.columns.cpu_total if self.empty else self.columns.cpu_free)[self.rows]

    @cached_property
    def memory_free(self) -> IntArray:
        return (self.columns.memory_total if self.empty else self.columns.memory_free)[self.rows]

    @cached_property
    def usable(self) -> BoolArray:
        return self.columns.device_usable[self.rows]

    @cached_property
    def eligible(self) -> BoolArray:
        """Devices that the request may use whatever is free of them."""
        eligible: BoolArray = self.fits.slots[self.shape] & self.usable
        return eligible

    @cached_property
    def device_milli_free(self) -> IntArray:
        if self.empty:
            return np.where(self.columns.device_flavor[self.rows] == ABSENT, 0, WHOLE_DEVICE_MILLI)
        return self.columns.device_milli_free[self.rows]

    @cached_property
    def device_memory_free(self) -> IntArray:
        columns = self.columns
        return (columns.device_memory_total if self.empty else columns.device_memory_free)[self.rows]

    @cached_property
    def slice_milli(self) -> IntArray | int:
        """Thousandths of a device that each task device takes; of a slice bounded by memory alone, per device."""
        demand = self.demand
        if demand is None:
            return 0
        if demand.milli is not None:
            return demand.milli
        return share_of_memory(demand.memory_mib or 0, self.columns.device_memory_total[self.rows])

    @cached_property
    def slice_memory(self) -> IntArray | int:
        """MiB that a slice takes: what it asks for, else in proportion to its share."""
        demand = self.demand
        if demand is None:
            return 0
        if demand.memory_mib is not None:
            return demand.memory_mib
        return self.columns.device_memory_total[self.rows] * (demand.milli or 0) // WHOLE_DEVICE_MILLI

    @cached_property
    def roomy(self) -> BoolArray:
        """Eligible devices with room for the request's share, whoever else holds slices of them."""
        demand = self.demand
        if demand is None or demand.is_whole:
            idle: BoolArray = self.eligible & (self.device_milli_free == WHOLE_DEVICE_MILLI)
            return idle
        enough_milli: BoolArray = self.device_milli_free >= self.slice_milli
        enough_memory: BoolArray = self.device_memory_free >= self.slice_memory
        roomy: BoolArray = self.eligible & enough_milli & enough_memory
        return roomy

    @cached_property
    def admissible(self) -> BoolArray:
        """Roomy devices that the pool's sharing rule opens to this tenant."""
        demand = self.demand
        if self.empty or demand is None or demand.is_whole or self.rules.device_sharing is DeviceSharing.ANY:
            return self.roomy
        holder = self.columns.device_holder[self.rows]
        admissible: BoolArray = self.roomy & ((holder == ABSENT) | (holder == self.tenant))
        return admissible

    @cached_property
    def room_left(self) -> IntArray:
        """Milli that a slice would leave on each admissible device, NO_DEVICE on the others."""
        return np.where(self.admissible, self.device_milli_free - self.slice_milli, NO_DEVICE)

    def count_devices(self, devices: BoolArray) -> IntArray:
        """Devices per row that one task can use together: they must be of one flavor."""
        if len(self.fits.mixed_flavors) < 2:
            counted: IntArray = np.count_nonzero(devices, axis=1)
            return counted
        flavor = self.columns.device_flavor[self.rows]
        counts = [np.count_nonzero(devices & (flavor == index), axis=1) for index in self.fits.mixed_flavors]
        most: IntArray = np.max(counts, axis=0)
        return most


def share_of_memory(memory_mib: int, device_memory: IntArray) -> IntArray:
    """Thousandths that so much memory is of each device, rounded down so that memory is what binds, and at least 1."""
    share: IntArray = np.maximum(memory_mib * WHOLE_DEVICE_MILLI // np.maximum(device_memory, 1), 1)
    return share
