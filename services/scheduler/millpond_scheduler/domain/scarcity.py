"""What is scarce in a pool, as prices that packing adds to what a placement spoils.

Two things become scarce before a pool is full: CPU on nodes that have little of it beside their devices, when tasks of
much CPU come first; and devices of a flavor that many tasks insist on, when tasks that could run anywhere come first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from millpond_scheduler.domain.fragmentation import QUANTUM_MILLI, DemandMix, Packing, Price
from millpond_scheduler.domain.nodes import NodeSize

_FINE = 1_000_000
"""Pressures are compared in millionths."""


@dataclass(frozen=True, slots=True)
class Scarcity:
    """What scarce things cost, in millionths of a device.

    `core`: each core on the sizes that have no more CPU beside a device than the pool has on the average. `device`: a
    whole device of a flavor that is asked for twice as much as the pool's devices are on the average, or more; in
    proportion below that, nothing at the average.
    """

    core: int = 0
    device: int = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """How a pool that learns is packed: the quantum, and what scarce things cost there."""

    quantum_milli: int = QUANTUM_MILLI
    scarcity: Scarcity = field(default_factory=Scarcity)

    @property
    def name(self) -> str:
        """What it is called in reports; prices in millionths of a device."""
        return f"quantum {self.quantum_milli}, core {self.scarcity.core}, device {self.scarcity.device}"

    def pack(self, counts: Mapping[NodeSize, int], mix: DemandMix) -> Packing:
        """The packing of a pool with so many nodes of each size, to which this mix usually comes."""
        return Packing(mix, find_prices(counts, mix, self.scarcity), self.quantum_milli)


def find_prices(counts: Mapping[NodeSize, int], mix: DemandMix, scarcity: Scarcity) -> dict[NodeSize, Price]:
    """The prices of a pool's node sizes; sizes that cost nothing are left out.

    Args:
        counts: how many nodes of each size the pool has.
        mix: what usually comes.
    """
    cpu = sum(size.cpu_milli * count for size, count in counts.items() if size.devices)
    devices = sum(size.devices * count for size, count in counts.items())
    excess = _find_excess(counts, mix)
    prices = {
        size: Price(
            core=scarcity.core if size.cpu_milli * devices <= cpu * size.devices else 0,
            device=scarcity.device * excess.get(size.flavor, 0) // _FINE,
        )
        for size in counts
        if size.devices
    }
    return {size: price for size, price in prices.items() if price != Price()}


def _find_excess(counts: Mapping[NodeSize, int], mix: DemandMix) -> dict[str | None, int]:
    """By how much each flavor is asked for above the average, in millionths of the average, at most one of it.

    A class asks all flavors that it can use in proportion to how many devices there are of them.
    """
    devices: dict[str | None, int] = {}
    for size, count in counts.items():
        devices[size.flavor] = devices.get(size.flavor, 0) + size.devices * count
    asked = dict.fromkeys(devices, 0)
    total = 0
    for wanted, weight in mix.classes:
        usable = sum(devices.get(flavor, 0) for flavor in wanted.flavors)
        demand = weight * wanted.count * wanted.milli * _FINE
        total += demand if usable else 0
        for flavor in wanted.flavors:
            if devices.get(flavor):
                asked[flavor] += demand // usable
    average = total // max(sum(devices.values()), 1)
    if not average:
        return {}
    return {flavor: min(max(each * _FINE // average - _FINE, 0), _FINE) for flavor, each in asked.items()}
