"""What a placement spoils for the tasks that usually come to a pool.

A node's *usable* milli for a class of tasks is what such a task could use there: nothing where its CPU or its devices
do not fit, else all that is free on the devices with room for its share. Fragmentation is what is free less what is
usable, summed over the usual classes by how often they come. A placement lowers it by what it takes and raises it by
what it spoils beyond that: a sliver that nothing fits, devices that are left without CPU, the last idle one of eight.

The sum over classes is not computed class by class. What a device adds depends on its flavor, on the CPU beside it and
on what is free of it alone; and what idle devices add for tasks of several on their flavor, that CPU and their number.
So a table answers for all classes at once, and a node costs one look-up per device.

Source: the fragmentation gradient of Weng et al., "Beware of Fragmentation", USENIX ATC 2023.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.columns import BoolArray, IntArray
from millpond_scheduler.domain.nodes import NodeSize

MAX_CLASSES = 128
"""More classes than this are those that come least, and decide nothing."""

MAX_WEIGHT = 1 << 16
"""What the weights of a mix sum to at most, so that no product leaves int64."""

QUANTUM_MILLI = 40
"""Measured (decision 164): finer steps follow noise and spread tasks, coarser ones see too little."""

QUANTA_BELOW_ZERO = 1 << 23
"""Added to the quanta of fragmentation, which also falls: ranks are compared from 0 on."""

PERMILLE = 1000


@dataclass(frozen=True, slots=True, order=True)
class DemandClass:
    """What of a request matters to those that are placed before it; memory does not.

    `milli` is per device, less than a whole one only with `count` 1. `flavors` are those that it can use.
    """

    cpu_milli: int
    count: int
    milli: int
    flavors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DemandMix:
    """The usual classes of tasks with devices, each with its weight; empty = nothing is known of what will come.

    `cpu_alone_milli`: the CPU that tasks without devices ask for beside so many as the weights sum to.
    """

    classes: tuple[tuple[DemandClass, int], ...] = ()
    cpu_alone_milli: int = 0

    @classmethod
    def of(cls, counts: Mapping[DemandClass, int], cpu_alone_milli: int = 0) -> "DemandMix":
        """The most frequent classes, weighted by how often they came; the same counts always give the same mix."""
        ranked = sorted(((count, wanted) for wanted, count in counts.items() if count > 0), key=lambda each: each[1])
        ranked = sorted(ranked, key=lambda each: each[0], reverse=True)[:MAX_CLASSES]
        total = sum(count for count, _ in ranked)
        if total > MAX_WEIGHT:
            ranked = [(max(count * MAX_WEIGHT // total, 1), wanted) for count, wanted in ranked]
            cpu_alone_milli = cpu_alone_milli * MAX_WEIGHT // total
        return cls(tuple((wanted, count) for count, wanted in ranked), cpu_alone_milli)

    @property
    def weight(self) -> int:
        """The sum of the weights."""
        return sum(weight for _, weight in self.classes)

    @property
    def cpu_milli(self) -> int:
        """The CPU that the classes ask for, as often as they weigh."""
        return sum(wanted.cpu_milli * weight for wanted, weight in self.classes)

    @property
    def device_milli(self) -> int:
        """The same of devices."""
        return sum(wanted.count * wanted.milli * weight for wanted, weight in self.classes)

    def measure_change(self, other: "DemandMix") -> int:
        """How much of what comes is other, in thousandths, by classes or by CPU; 1000 when one of them is empty."""
        if not self.classes or not other.classes:
            return 0 if self == other else PERMILLE
        mine, theirs = dict(self.classes), dict(other.classes)
        parts = [
            abs(mine.get(one, 0) * other.weight - theirs.get(one, 0) * self.weight)
            for one in mine.keys() | theirs.keys()
        ]
        cpu, former = (
            (one.cpu_milli + one.cpu_alone_milli) * two.weight for one, two in ((self, other), (other, self))
        )
        return max(
            PERMILLE * sum(parts) // (2 * self.weight * other.weight),
            PERMILLE * abs(cpu - former) // max(cpu, former, 1),
        )


@dataclass(frozen=True, slots=True)
class Price:
    """What using up a scarce thing costs beside what is spoiled, in millionths of a device.

    `core` is for each core taken there, `device` for each whole device.
    """

    core: int = 0
    device: int = 0


@dataclass(frozen=True, slots=True)
class Packing:
    """How tasks are packed in one pool: what usually comes, what is scarce, and what counts as equally good.

    `quantum_milli`: placements that add the same number of these, rounded up, are equal, and balance decides.
    """

    mix: DemandMix = field(default_factory=DemandMix)
    prices: Mapping[NodeSize, Price] = field(default_factory=lambda: MappingProxyType({}))
    quantum_milli: int = QUANTUM_MILLI


class PackingTable:
    """A packing as arrays, for the flavors and node sizes that were known when it was made.

    Attributes:
        cpu_levels: (levels,) the CPU that some class needs, rising; a node reaches as many as it has CPU for.
        share_of: (1001,) for each number of free milli of a device how many of the shares it has room for.
        single: (flavors + 1, levels + 1, shares + 1) the weight of the classes of one device or less that can use a
            device of this flavor with so much CPU beside it and so much of it free; the last flavor is none.
        several: (flavors + 1, levels + 1, most + 1) the same of the classes of several devices, by how many are idle.
        core, device: (sizes,) what a node's size costs, in millionths of a device.
    """

    def __init__(self, packing: Packing, flavors: Sequence[str], sizes: Sequence[NodeSize]) -> None:
        classes = packing.mix.classes
        self.packing = packing
        self.weight = packing.mix.weight
        self.quantum = packing.quantum_milli * self.weight
        self.known = (len(flavors), len(sizes))
        self.cpu_levels: IntArray = np.array(sorted({wanted.cpu_milli for wanted, _ in classes}), dtype=np.int64)
        shares = np.array(sorted({wanted.milli for wanted, _ in classes if wanted.count == 1}), dtype=np.int64)
        self.share_of: IntArray = np.searchsorted(shares, np.arange(WHOLE_DEVICE_MILLI + 1), side="right")
        self.most = max((wanted.count for wanted, _ in classes), default=0)
        levels = len(self.cpu_levels) + 1
        self.single: IntArray = np.zeros((len(flavors) + 1, levels, len(shares) + 1), dtype=np.int64)
        self.several: IntArray = np.zeros((len(flavors) + 1, levels, self.most + 1), dtype=np.int64)
        indexes = {name: index for index, name in enumerate(flavors)}
        for wanted, weight in classes:
            level = np.searchsorted(self.cpu_levels, wanted.cpu_milli, side="right")
            for flavor in (indexes[name] for name in wanted.flavors if name in indexes):
                if wanted.count == 1:
                    self.single[flavor, level:, self.share_of[wanted.milli] :] += weight
                else:
                    self.several[flavor, level:, wanted.count :] += weight
        prices = [packing.prices.get(size, Price()) for size in sizes]
        self.core: IntArray = np.array([price.core for price in prices], dtype=np.int64)
        self.device: IntArray = np.array([price.device for price in prices], dtype=np.int64)

    def levels_of(self, cpu_milli: IntArray) -> IntArray:
        """For each amount of CPU how many of the levels it reaches."""
        levels: IntArray = np.searchsorted(self.cpu_levels, cpu_milli, side="right")
        return levels

    def usable_by_device(self, level: IntArray, flavor: IntArray, milli: IntArray, together: IntArray) -> IntArray:
        """The weighted milli that the classes could use of each device.

        Args:
            level: (rows,) the level of each row's CPU.
            flavor: (rows, width) indexes of flavors.
            milli: (rows, width) what is free.
            together: how many devices of this one's flavor are idle on its row, as `count_together` gives it.
        """
        usable: IntArray = self.single[flavor, level[:, np.newaxis], self.share_of[milli]]
        if self.most:
            several = self.several[flavor, level[:, np.newaxis], np.minimum(together, self.most)]
            usable += several * (milli == WHOLE_DEVICE_MILLI)
        usable *= milli
        return usable


def count_together(flavor: IntArray, idle: BoolArray) -> IntArray:
    """For each device how many of its flavor are idle on its row.

    Args:
        flavor, idle: (rows, width).

    Returns:
        (rows, width), or (rows, 1) where the idle devices of each row are of one flavor.
    """
    if ((flavor == flavor[:, :1]) | ~idle).all():
        counted: IntArray = idle.sum(axis=1, keepdims=True, dtype=np.int64)
        return counted
    alike: BoolArray = (flavor[:, :, np.newaxis] == flavor[:, np.newaxis, :]) & idle[:, np.newaxis, :]
    together: IntArray = alike.sum(axis=2, dtype=np.int64)
    return together


def spoil_by_whole(
    table: PackingTable, before: IntArray, after: IntArray, flavor: IntArray, milli: IntArray, taken: BoolArray
) -> IntArray:
    """The weighted milli that the classes can use no more when idle devices are taken, per row; none taken = CPU alone.

    Args:
        before, after: (rows,) the levels of the CPU free now and then.
        flavor, milli, taken: (rows, width).
    """
    spoiled = _sum_usable(table, before, flavor, milli)
    spoiled -= _sum_usable(table, after, flavor, np.where(taken, 0, milli))
    return spoiled


def spoil_by_slice(
    table: PackingTable, before: IntArray, after: IntArray, flavor: IntArray, milli: IntArray, share: IntArray | int
) -> IntArray:
    """The same when a share is taken of one device, per device (rows, width); of one without room it says nothing."""
    idle = milli == WHOLE_DEVICE_MILLI
    together = count_together(flavor, idle)
    then = table.usable_by_device(after, flavor, milli, together)
    others = then.sum(axis=1, keepdims=True) - then
    left = np.maximum(milli - share, 0)
    # The other idle devices of its flavor are then one fewer together.
    fewer = table.several[flavor, after[:, np.newaxis], np.minimum(np.maximum(together - 1, 0), table.most)]
    same = table.several[flavor, after[:, np.newaxis], np.minimum(together, table.most)]
    apart = np.where(idle, (together - 1) * (same - fewer) * WHOLE_DEVICE_MILLI, 0)
    sliced = left * table.single[flavor, after[:, np.newaxis], table.share_of[left]]
    spoiled: IntArray = _sum_usable(table, before, flavor, milli)[:, np.newaxis] - (others - apart + sliced)
    return spoiled


def _sum_usable(table: PackingTable, level: IntArray, flavor: IntArray, milli: IntArray) -> IntArray:
    together = count_together(flavor, milli == WHOLE_DEVICE_MILLI)
    summed: IntArray = table.usable_by_device(level, flavor, milli, together).sum(axis=1)
    return summed
