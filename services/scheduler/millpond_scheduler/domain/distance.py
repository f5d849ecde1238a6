"""How far a device is from what a task needs: a weighted mean over attributes, in integers.

Only devices that pass every filter are compared: compatible first, then nearest. For each attribute that counts,

* too little is the part of the need that the device lacks, all of it where the device does not tell the attribute;
* too much is the part of the device that the task does not need, at a quarter: an over-strong device costs something;

both in thousandths. Their weighted mean is the distance, 0 to 1000. It decides in steps, so that within a step best fit
decides and packing is kept. A general task that states no minimum is equally far from every device.

Needs are the minima that a request states, and for the rest what is typical of its kind (`DEFAULT_PROFILES`, which an
operator may replace by a setting). Nothing here depends on which other nodes there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from millpond_contracts.bodies.groups import TaskKind
from millpond_scheduler.domain.nodes import DeviceProfile
from millpond_scheduler.domain.requests import RequestClass

PERMILLE = 1000
MEMORY = "memory_gib"
MAX_WEIGHT = 1000

# Too much counts a quarter of too little: at nothing every over-strong device would be as good as the right one, at as
# much a device that lacks a little would be preferred to one that has a little to spare.
_EXCESS_DIVISOR = 4
_STATED_WEIGHT = 1
_MIB_PER_GIB = 1024
# Attributes are compared in thousandths of their unit.
_FINE = 1000


@dataclass(frozen=True, slots=True)
class Wish:
    """One attribute that counts for a kind of task: its weight, and what is typically wanted of it, in its unit."""

    weight: int
    wanted: float


Profiles = Mapping[TaskKind, Mapping[str, Wish]]

# The whole list. Attributes are those of devices as the registry tells them; the figures are those of the smallest
# device that such work is usually bought for (an A100 for training, an A10 for inference).
DEFAULT_PROFILES: Profiles = {
    TaskKind.GENERAL: {},  # what is not stated does not count: best fit decides
    TaskKind.TRAINING: {
        "bf16_tflops": Wish(4, 300),
        "interconnect_gbs": Wish(3, 600),
        MEMORY: Wish(3, 80),
        "memory_bandwidth_gbs": Wish(2, 2000),
    },
    TaskKind.INFERENCE: {
        "memory_bandwidth_gbs": Wish(3, 600),
        MEMORY: Wish(3, 24),
        "int8_tops": Wish(2, 250),
    },
    TaskKind.IO: {
        "interconnect_gbs": Wish(4, 600),
        "memory_bandwidth_gbs": Wish(2, 1500),
        MEMORY: Wish(1, 40),
    },
}


@dataclass(frozen=True, slots=True)
class DistanceRules:
    """What an operator may turn. `step_permille`: distances of one step are equal and best fit decides; 1001 = all."""

    profiles: Profiles = field(default_factory=lambda: DEFAULT_PROFILES)
    step_permille: int = 50


@dataclass(frozen=True, slots=True)
class DistancePart:
    """One attribute's share: what is wanted and offered in its unit (None = not told), and how far, in thousandths."""

    attribute: str
    weight: int
    wanted: float
    offered: float | None
    permille: int


@dataclass(frozen=True, slots=True)
class Distance:
    """From 0, exactly what is needed, to 1000, nothing of it. Smaller steps go first."""

    permille: int
    step: int
    parts: tuple[DistancePart, ...] = ()


def wishes_of(rules: DistanceRules, request: RequestClass) -> dict[str, Wish]:
    """What counts for a request, by attribute: its minima, else what is typical of its kind.

    The memory of a device is no wish of a slice: what a slice leaves is there for others.
    """
    demand = request.devices
    if demand is None:
        return {}
    wishes = dict(rules.profiles.get(request.task_kind, {}))
    stated = dict(demand.minima)
    if demand.is_whole and demand.memory_mib is not None:
        stated[MEMORY] = max(stated.get(MEMORY, 0.0), demand.memory_mib / _MIB_PER_GIB)
    for attribute, minimum in stated.items():
        known = wishes.get(attribute)
        wishes[attribute] = Wish(max(_STATED_WEIGHT, 0 if known is None else known.weight), minimum)
    if not demand.is_whole:
        wishes.pop(MEMORY, None)
    return {attribute: wish for attribute, wish in sorted(wishes.items()) if wish.weight and wish.wanted}


def measure_distance(rules: DistanceRules, wishes: Mapping[str, Wish], device: DeviceProfile) -> Distance:
    """How far a device is from what is wished for, with every attribute's share."""
    offered = dict(device.attributes)
    if device.memory_mib is not None:
        offered[MEMORY] = device.memory_mib / _MIB_PER_GIB
    parts = tuple(
        DistancePart(attribute, wish.weight, wish.wanted, offered.get(attribute), _apart(wish, offered.get(attribute)))
        for attribute, wish in wishes.items()
    )
    weights = sum(part.weight for part in parts)
    permille = sum(part.weight * part.permille for part in parts) // weights if weights else 0
    return Distance(permille, permille // rules.step_permille, parts)


def _apart(wish: Wish, offered: float | None) -> int:
    """One attribute's distance in thousandths."""
    wanted = round(wish.wanted * _FINE)
    have = 0 if offered is None else round(offered * _FINE)
    if have < wanted:
        return (wanted - have) * PERMILLE // wanted
    return (have - wanted) * PERMILLE // (have * _EXCESS_DIVISOR) if have else 0
