"""The questions and measures of the policy that look at what is free: pure functions over rows, one line each."""

import numpy as np

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.columns import ABSENT, BoolArray, IntArray
from millpond_scheduler.domain.fragmentation import QUANTA_BELOW_ZERO
from millpond_scheduler.domain.views import RowView

# Filters on nodes


def is_in_pool(view: RowView) -> BoolArray:
    """The node is in the pool of the request."""
    inside: BoolArray = view.columns.pool[view.rows] == view.pool
    return inside


def is_open_to_tenant(view: RowView) -> BoolArray | bool:
    """The pool is shared, or dedicated to this tenant."""
    if view.rules.dedicated_to in (None, view.request.tenant):
        return True
    return np.zeros(len(view.shape), dtype=np.bool_)


def is_ready(view: RowView) -> BoolArray:
    """The registry says that the node is ready."""
    return view.columns.ready[view.rows]


def is_open(view: RowView) -> BoolArray:
    """No cordon reason is set."""
    return ~view.columns.cordoned[view.rows]


def has_labels(view: RowView) -> BoolArray | bool:
    """The node carries every label asked for."""
    return True if not view.request.labels else view.fits.label_matches[view.columns.label_set[view.rows]]


def has_affinity(view: RowView) -> BoolArray | bool:
    """The node's labels are as the affinity asks."""
    return True if not view.request.affinity else view.fits.affinity_matches[view.columns.label_set[view.rows]]


def is_known_to_stand(view: RowView) -> BoolArray | bool:
    """The node says where it stands on every level of which the request speaks."""
    return True if not view.fits.levels else view.fits.places_known[view.columns.place[view.rows]]


def is_chosen(view: RowView) -> BoolArray:
    """The node is one of those that the job chose: labels, affinity, and known where it stands."""
    chosen: BoolArray = np.ones(len(view.shape), dtype=np.bool_)
    return chosen & has_labels(view) & has_affinity(view) & is_known_to_stand(view)


def has_cpu(view: RowView) -> BoolArray:
    """Enough CPU is free."""
    return view.cpu_free >= view.request.cpu_milli


def has_memory(view: RowView) -> BoolArray:
    """Enough memory is free."""
    return view.memory_free >= view.request.memory_mib


def has_device_sum(view: RowView) -> BoolArray | bool:
    """The eligible devices together have the share asked for free, wherever it lies."""
    demand = view.demand
    if demand is None:
        return True
    if demand.profile is not None:
        least = np.where(view.eligible, view.slice_milli(), WHOLE_DEVICE_MILLI).min(axis=1, initial=WHOLE_DEVICE_MILLI)
        return np.asarray((view.device_milli_free * view.eligible).sum(axis=1) >= least, dtype=np.bool_)
    if demand.milli is None:
        memory: BoolArray = (view.device_memory_free() * view.eligible).sum(axis=1) >= (demand.memory_mib or 0)
        return memory
    milli: BoolArray = (view.device_milli_free * view.eligible).sum(axis=1) >= demand.count * demand.milli
    return milli


def has_legal_start(view: RowView) -> BoolArray | bool:
    """A partition may begin somewhere on one of the devices."""
    return True if view.demand is None or view.demand.profile is None else view.has_devices(view.roomy)


def has_device_block(view: RowView) -> BoolArray | bool:
    """So many devices have room, each by itself."""
    return True if view.demand is None else view.has_devices(view.roomy)


def has_own_device(view: RowView) -> BoolArray | bool:
    """So many devices have room and hold nobody else's slices, where the pool's rule says so."""
    return True if view.demand is None or view.admissible is view.roomy else view.has_devices(view.admissible)


def is_isolated(view: RowView) -> BoolArray | bool:
    """The node keeps tenants apart, or runs only this tenant's tasks, or its pool does not mind."""
    unisolated = view.columns.unisolated[view.rows]
    if view.empty or view.rules.allow_shared_users or not unisolated.any():
        return True
    holder = view.columns.holder[view.rows]
    alone: BoolArray = (holder == ABSENT) | (holder == view.tenant)
    return alone | ~unisolated


# Ranks


def has_unneeded_devices(view: RowView) -> IntArray | None:
    """1 where the task would sit beside devices that it does not use."""
    if view.demand is not None:
        return None
    return np.asarray(view.usable.any(axis=1), dtype=np.int64)


def steps_away(view: RowView) -> IntArray | None:
    """How far the nearest devices are from what the task needs, in steps of the distance."""
    return view.nearest_steps() if view.fits.has_steps else None


def room_on_device(view: RowView) -> IntArray | None:
    """Milli left on the device that a slice would take."""
    if view.demand is None or view.demand.is_whole:
        return None
    return np.asarray(view.room_left().min(axis=1), dtype=np.int64)


def partitions_lost(view: RowView) -> IntArray:
    """What the partition costs of those that could still be made of its device, in memory slices."""
    lost: IntArray = view.partitions_lost().min(axis=1)
    return lost


def free_device_milli(view: RowView) -> IntArray:
    """Milli free on all usable devices of the node."""
    return np.maximum(view.columns.usable_milli_free[view.rows], 0)


def spare_cpu(view: RowView) -> IntArray:
    """CPU that the task would leave, in steps of 64 milli."""
    spare: IntArray = np.maximum(view.cpu_free - view.request.cpu_milli, 0) >> 6
    return spare


def spare_memory(view: RowView) -> IntArray:
    """Memory that the task would leave, in steps of 4 GiB."""
    spare: IntArray = np.maximum(view.memory_free - view.request.memory_mib, 0) >> 12
    return spare


def quanta_added(view: RowView) -> IntArray | None:
    """The fragmentation that the placement adds, with the price of what it uses up, in quanta of the pool's packing."""
    table = view.table
    if table is None:
        return None
    spoil, size = view.spoil(), view.columns.size[view.rows]
    # Millionths of a device: what the CPU costs there, and the devices.
    price = table.core[size] * view.request.cpu_milli // 1000 + table.device[size] * spoil.milli // 1000
    added = spoil.weighted - spoil.milli * table.weight + price * table.weight // 1000
    quanta: IntArray = -(-added // table.quantum) + QUANTA_BELOW_ZERO
    return np.maximum(quanta, 0)


def fragmentation_added(view: RowView) -> IntArray | None:
    """Milli by which what is free but of no use to the tasks that usually come rises on the node."""
    if view.table is None:
        return None
    added: IntArray = view.spoil().weighted // view.table.weight - view.spoil().milli
    return added


def imbalance_left(view: RowView) -> IntArray | None:
    """By how many tenths the share of CPU left differs from the share of devices left."""
    if view.table is None:
        return None
    columns, rows = view.columns, view.rows
    cpu = (view.cpu_free - view.request.cpu_milli) * 1000 // np.maximum(columns.cpu_total[rows], 1)
    devices = np.maximum(np.count_nonzero(columns.device_flavor[rows] != ABSENT, axis=1), 1)
    milli = (columns.usable_milli_free[rows] - view.spoil().milli) // devices
    imbalance: IntArray = np.abs(cpu - milli) // 100
    return imbalance
