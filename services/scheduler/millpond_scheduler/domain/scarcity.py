"""What is scarce in a pool, as prices that packing adds to what a placement spoils.

Two things become scarce before a pool is full: CPU on nodes that have little of it beside their devices, when tasks of
much CPU come first; and devices of a flavor that many tasks insist on, when tasks that could run anywhere come first.
And what is left on nodes with much CPU is of use to tasks of much CPU alone as long as those of little stay away.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.fragmentation import QUANTUM_MILLI, DemandMix, Packing, Price
from millpond_scheduler.domain.nodes import NodeSize
from millpond_scheduler.domain.shadow import find_shadow_prices

_FINE = 1_000_000
"""Demand is divided in millionths."""

_PARTS = 20
"""Pressures are compared in twentieths, so that one node or task more leaves the prices as they are."""


@dataclass(frozen=True, slots=True)
class Scarcity:
    """What scarce things cost, in millionths of a device.

    `core`: each core on the sizes that have no more CPU beside a device than the pool has on the average; on the others
    each device, as much as the cores beside it on the average. So a task goes to the ones where it needs more CPU than
    that, to the others where it needs less. That is where CPU is left over: the devices cost in full where a tenth of
    all is, nothing where none is. `device`: a whole device of a flavor that is asked for twice as much as the
    pool's devices are on the average, or more; in proportion below that, nothing at the average. `shadow_permille`: so
    much of the shadow prices (`shadow.py`) is added, in thousandths.
    """

    core: int = 0
    device: int = 0
    shadow_permille: int = 0


DEFAULT = Scarcity(core=3_000, device=200_000)
"""Measured on the openb workloads and mixtures of them, on other seeds than those that are judged: decision 164."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a pool that learns is packed: the quantum, and what scarce things cost there."""

    quantum_milli: int = QUANTUM_MILLI
    scarcity: Scarcity = DEFAULT

    @property
    def name(self) -> str:
        """What it is called in reports; prices in millionths of a device, the part of shadow prices in thousandths."""
        scarcity = self.scarcity
        shadow = f", shadow {scarcity.shadow_permille}" if scarcity.shadow_permille else ""
        return f"quantum {self.quantum_milli}, core {scarcity.core}, device {scarcity.device}{shadow}"

    def pack(self, counts: Mapping[NodeSize, int], mix: DemandMix) -> Packing:
        """The packing of a pool with so many nodes of each size, to which this mix usually comes."""
        return Packing(mix, find_prices(counts, mix, self.scarcity), self.quantum_milli)


def find_prices(counts: Mapping[NodeSize, int], mix: DemandMix, scarcity: Scarcity) -> dict[NodeSize, Price]:
    """The prices of a pool's node sizes; sizes that cost nothing are left out, and so are all where nothing comes.

    Args:
        counts: how many nodes of each size the pool has.
        mix: what usually comes.
    """
    if not mix.classes:
        return {}
    cpu = sum(size.cpu_milli * count for size, count in counts.items() if size.devices)
    devices = sum(size.devices * count for size, count in counts.items())
    lean = {size for size in counts if size.devices and size.cpu_milli * devices <= cpu * size.devices}
    # Where all are alike in this, no choice is left that a price could change.
    core = scarcity.core if any(size.devices and size not in lean for size in counts) else 0
    beside = cpu // (1000 * devices) if devices else 0
    of_plenty = core * beside * _find_spare(counts, mix) // _PARTS
    excess = _find_excess(counts, mix)
    part = scarcity.shadow_permille
    shadow = find_shadow_prices(counts, mix) if part else {}
    prices = {}
    for size in (size for size in counts if size.devices):
        found = shadow.get(size, Price())
        of_flavor = scarcity.device * excess.get(size.flavor, 0) // _PARTS
        prices[size] = Price(
            core=(core if size in lean else 0) + found.core * part // 1000,
            device=(0 if size in lean else of_plenty) + of_flavor + found.device * part // 1000,
        )
    return {size: price for size, price in prices.items() if price != Price()}


def _find_spare(counts: Mapping[NodeSize, int], mix: DemandMix) -> int:
    """How much CPU is left over when all devices are taken, in twentieths of a tenth of it, at most a tenth.

    Tasks without devices take that of nodes without devices first.
    """
    cpu = sum(size.cpu_milli * count for size, count in counts.items() if size.devices)
    bare = sum(size.cpu_milli * count for size, count in counts.items() if not size.devices)
    milli = WHOLE_DEVICE_MILLI * sum(size.devices * count for size, count in counts.items())
    # All of it as often as the classes ask for all devices.
    have, alone = cpu * mix.device_milli, max(mix.cpu_alone_milli * milli - bare * mix.device_milli, 0)
    left = have - mix.cpu_milli * milli - alone
    return min(max(10 * _PARTS * left // max(have, 1), 0), _PARTS)


def _find_excess(counts: Mapping[NodeSize, int], mix: DemandMix) -> dict[str | None, int]:
    """By how much each flavor is asked for above the average, in twentieths of the average, at most one of it.

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
    return {flavor: min(max((each - average) * _PARTS // average, 0), _PARTS) for flavor, each in asked.items()}
