"""The one formula for a pool's capacity, used wherever capacity is told, so that two services never disagree.

Per pool and flavor, in milli: total = unschedulable + allocated + reserved + fragmented + available. Tallies of nodes
add up and can be taken away again, so that a changed node costs one subtraction and one addition.

Source: docs/decisions/0020-capacity-adds-up.md.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from millpond_contracts.bodies.pools import CapacityFigures, HostCapacity
from millpond_contracts.partitions import Geometry, count_fitting, usable_milli
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI

SLICE_SIZES = (250, 500, 1000)
"""Milli of one device for which `fits` counts the tasks that could start now."""

DEVICE_COUNTS = (2, 4, 8)
"""Whole devices on one node for which `fits` counts the tasks that could start now."""

FITS_MILLI = {
    **{str(size): size for size in SLICE_SIZES},
    **{f"{count}x{WHOLE_DEVICE_MILLI}": count * WHOLE_DEVICE_MILLI for count in DEVICE_COUNTS},
}
"""What a task of each size takes, by the key of `fits`."""

FITS_KEYS = tuple(FITS_MILLI)


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """One device: what is not held of it, and whether new work may go there (its node's word and its own health).

    `geometry`: it is given out in these partitions alone, and `taken` is the mask of the slices that are held.
    """

    flavor: str
    free_milli: int
    schedulable: bool
    geometry: Geometry | None = None
    taken: int = 0


@dataclass(frozen=True, slots=True)
class FlavorTally:
    """Sums over the devices of one flavor on some nodes, in milli; `usable` = what reference tasks can take of `free`.

    `unschedulable` is what is not held on devices that take no new work; `fits` stands in the order of `FITS_KEYS`.
    `partitions` counts by profile what could start on devices in partition mode, without zeros.
    """

    total: int = 0
    unschedulable: int = 0
    allocated: int = 0
    free: int = 0
    usable: int = 0
    fits: tuple[int, ...] = (0,) * len(FITS_KEYS)
    partitions: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Self) -> "FlavorTally":
        return self._combined(other, 1)

    def __sub__(self, other: Self) -> "FlavorTally":
        return self._combined(other, -1)

    def _combined(self, other: Self, sign: int) -> "FlavorTally":
        names = sorted({*self.partitions, *other.partitions})
        return FlavorTally(
            total=self.total + sign * other.total,
            unschedulable=self.unschedulable + sign * other.unschedulable,
            allocated=self.allocated + sign * other.allocated,
            free=self.free + sign * other.free,
            usable=self.usable + sign * other.usable,
            fits=tuple(mine + sign * theirs for mine, theirs in zip(self.fits, other.fits, strict=True)),
            partitions={name: count for name in names if (count := self._count(name) + sign * other._count(name))},
        )

    def _count(self, profile: str) -> int:
        return self.partitions.get(profile, 0)


def tally_node(devices: Iterable[DeviceRoom], reference_milli: int = WHOLE_DEVICE_MILLI) -> dict[str, FlavorTally]:
    """The tallies of one node by flavor.

    Args:
        devices: all devices of one node.
        reference_milli: what a task takes that must be able to use what is called available: below 1000 a share of
            one device, else so many whole devices on one node (rounded up).
    """
    by_flavor: dict[str, list[DeviceRoom]] = {}
    for device in devices:
        by_flavor.setdefault(device.flavor, []).append(device)
    return {flavor: _tally_devices(rooms, reference_milli) for flavor, rooms in by_flavor.items()}


def sum_tallies(nodes: Iterable[Mapping[str, FlavorTally]]) -> dict[str, FlavorTally]:
    """The tallies of several nodes together."""
    total: dict[str, FlavorTally] = {}
    for node in nodes:
        for flavor, tally in node.items():
            total[flavor] = total[flavor] + tally if flavor in total else tally
    return total


def tell_capacity(flavor: str, tally: FlavorTally, reserved_milli: int = 0) -> CapacityFigures:
    """The figures of a pool for one flavor.

    Unfilled reservations and earmarks are met from what reference tasks could use, and only then from fragments;
    what they exceed the free amount by is not capacity and does not appear. `fits` and `fragmented_by_size` count what
    is physically free.
    """
    reserved = min(max(reserved_milli, 0), tally.free)
    available = max(tally.usable - reserved, 0)
    return CapacityFigures(
        flavor=flavor,
        total=tally.total,
        unschedulable=tally.unschedulable,
        allocated=tally.allocated,
        reserved=reserved,
        fragmented=tally.free - reserved - available,
        available=available,
        fits=dict(zip(FITS_KEYS, tally.fits, strict=True)),
        fragmented_by_size={
            size: tally.free - count * FITS_MILLI[size] for size, count in zip(FITS_KEYS, tally.fits, strict=True)
        },
        partitions=dict(sorted(tally.partitions.items())),
    )


@dataclass(frozen=True, slots=True)
class HostRoom:
    """CPU (milli) or memory (MiB) of one node: what it has for jobs, what is not held, and whether it takes work."""

    total: int
    free: int
    schedulable: bool


def tell_host_capacity(resource: str, nodes: Iterable[HostRoom], reserved: int = 0) -> HostCapacity:
    """The figures of a pool for CPU or memory: total = unschedulable + allocated + reserved + available."""
    total = unschedulable = free = 0
    for node in nodes:
        total += node.total
        if node.schedulable:
            free += max(node.free, 0)
        else:
            unschedulable += max(node.free, 0)
    kept = min(max(reserved, 0), free)
    return HostCapacity(
        resource=resource,
        total=total,
        unschedulable=unschedulable,
        allocated=total - unschedulable - free,
        reserved=kept,
        available=free - kept,
    )


def _tally_devices(devices: list[DeviceRoom], reference_milli: int) -> FlavorTally:
    total = WHOLE_DEVICE_MILLI * len(devices)
    divided = [device for device in devices if device.schedulable and device.geometry is not None]
    whole = [max(device.free_milli, 0) for device in devices if device.schedulable and device.geometry is None]
    free = [*whole, *(max(device.free_milli, 0) for device in divided)]
    shut = sum(max(device.free_milli, 0) for device in devices if not device.schedulable)
    return FlavorTally(
        total=total,
        unschedulable=shut,
        allocated=total - shut - sum(free),
        free=sum(free),
        usable=_usable(whole, reference_milli) + sum(map(_usable_in_partitions, divided)),
        fits=(
            *(sum(milli // size for milli in whole) for size in SLICE_SIZES),
            *(whole.count(WHOLE_DEVICE_MILLI) // count for count in DEVICE_COUNTS),
        ),
        partitions=_count_partitions(divided),
    )


def _usable_in_partitions(device: DeviceRoom) -> int:
    """No reference task: what lies where some profile may still be."""
    usable = 0 if device.geometry is None else usable_milli(device.geometry, device.taken)
    return min(usable, max(device.free_milli, 0))


def _count_partitions(devices: list[DeviceRoom]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for device in devices:
        for profile in () if device.geometry is None else device.geometry.profiles:
            counts[profile.name] += count_fitting(profile, device.taken)
    return {name: count for name, count in sorted(counts.items()) if count}


def _usable(free: list[int], reference_milli: int) -> int:
    """Milli of the free devices of one node that reference tasks can take together."""
    if reference_milli < WHOLE_DEVICE_MILLI:
        return sum(milli // reference_milli * reference_milli for milli in free)
    count = -(-reference_milli // WHOLE_DEVICE_MILLI)
    return free.count(WHOLE_DEVICE_MILLI) // count * count * WHOLE_DEVICE_MILLI
