"""The policy's ranks for one row: which devices a task would take, what it spoils, and the value of each comparison.

Functions that numba can compile. `single` and `several` with `shares` are arrays of a `PackingTable`.
"""

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.columns import ABSENT, IntArray
from millpond_scheduler.domain.fits import FURTHEST
from millpond_scheduler.domain.fragmentation import QUANTA_BELOW_ZERO
from millpond_scheduler.domain.kernel_filters import share_at
from millpond_scheduler.domain.kernel_layout import (
    COUNT,
    CPU,
    CPU_FREE,
    CPU_TOTAL,
    DEVICE_MILLI,
    FLAVOR,
    FREE_MILLI,
    HAS_STEPS,
    HAS_TABLE,
    IDLE,
    IMBALANCE,
    IS_ADMISSIBLE,
    IS_USABLE,
    MEMORY,
    MEMORY_FREE,
    MILLI,
    MOST,
    NEAREST,
    OPEN_MILLI,
    QUANTA,
    QUANTUM,
    ROOM_LEFT,
    SPARE_CPU,
    SPARE_MEMORY,
    STEPS,
    STEPS_AWAY,
    UNNEEDED,
    USABLE_MILLI,
    WEIGHT,
)
from millpond_scheduler.domain.policy import BLOCKED

_NOTHING = 1 << 62  # more than any slice spoils or leaves


def measure(
    number: int, node: IntArray, here: IntArray, mixed: IntArray, ask: IntArray, share: int, spoiled: int, price: int
) -> int:
    """The value of a rank on a row that may take the task."""
    value = 0
    if number == QUANTA and ask[HAS_TABLE]:
        added = spoiled - share * ask[WEIGHT] + price * ask[WEIGHT] // 1000
        value = max(-(-added // ask[QUANTUM]) + QUANTA_BELOW_ZERO, 0)
    elif number == STEPS and ask[HAS_STEPS]:
        value = count_steps(node, here, mixed, ask)
    elif number == IMBALANCE and ask[HAS_TABLE]:
        value = measure_imbalance(node, here, ask, share)
    elif number == UNNEEDED and ask[COUNT] == 0:
        for slot in range(here.shape[1]):
            value |= here[IS_USABLE, slot]
    elif number == ROOM_LEFT and ask[COUNT] > 0 and ask[MILLI] != WHOLE_DEVICE_MILLI:
        value = spoiled
    elif number == DEVICE_MILLI:
        value = max(node[USABLE_MILLI], 0)
    elif number == SPARE_CPU:
        value = max(node[CPU_FREE] - ask[CPU], 0) >> 6
    elif number == SPARE_MEMORY:
        value = max(node[MEMORY_FREE] - ask[MEMORY], 0) >> 12
    return int(value)


def take_whole(here: IntArray, mixed: IntArray, ask: IntArray) -> int:
    """The devices that a task of whole ones takes: the lowest of one flavor, the nearest, then that with most."""
    flavor, width = -1, here.shape[1]
    if len(mixed) > 1 and ask[COUNT]:
        best = BLOCKED
        for each in mixed:
            found, steps = find_nearest(here, each)
            key = steps * (width + 1) + width - found
            if found >= ask[COUNT] and key < best:
                best, flavor = key, each
    bits, left = 0, ask[COUNT]
    for slot in range(width):
        if left and here[IS_ADMISSIBLE, slot] and (flavor < 0 or here[FLAVOR, slot] == flavor):
            bits |= 1 << slot
            left -= 1
    return bits


def take_slice(
    here: IntArray,
    mixed: IntArray,
    before: int,
    after: int,
    shares: IntArray,
    single: IntArray,
    several: IntArray,
    ask: IntArray,
) -> tuple[int, int]:
    """The device that a slice takes, and what it spoils there; where nothing usually comes, what it leaves."""
    gone = spoil_by_whole(here, 0, before, after, shares, single, several, ask)
    is_mixed = ask[HAS_STEPS] != 0 and len(mixed) > 1
    nearest = find_nearest(here, -1)[1] if is_mixed else 0
    chosen, best = 0, _NOTHING
    for slot in range(here.shape[1]):
        if not here[IS_ADMISSIBLE, slot] or (is_mixed and here[STEPS_AWAY, slot] != nearest):
            continue
        share = share_at(here, slot, ask)
        value = here[FREE_MILLI, slot] - share
        if ask[HAS_TABLE]:
            flavor, free, idle = here[FLAVOR, slot], here[OPEN_MILLI, slot], here[IDLE, slot]
            left = max(free - share, 0)
            now = usable_of(flavor, free, idle, after, shares, single, several, ask[MOST])
            value = gone + now - left * single[flavor, after, shares[left]]
            if free == WHOLE_DEVICE_MILLI:
                # The others that are idle are then one fewer together.
                fewer = usable_of(flavor, free, idle - 1, after, shares, single, several, ask[MOST])
                value += (idle - 1) * (now - fewer)
        if value < best:
            chosen, best = slot, value
    return chosen, best


def find_nearest(here: IntArray, flavor: int) -> tuple[int, int]:
    """Of the admissible devices of a flavor, -1 = of any, how many there are, and the steps of the nearest."""
    found, steps = 0, FURTHEST
    for slot in range(here.shape[1]):
        if here[IS_ADMISSIBLE, slot] and (flavor < 0 or here[FLAVOR, slot] == flavor):
            found += 1
            steps = min(steps, here[STEPS_AWAY, slot])
    return found, steps


def spoil_by_whole(
    here: IntArray,
    bits: int,
    before: int,
    after: int,
    shares: IntArray,
    single: IntArray,
    several: IntArray,
    ask: IntArray,
) -> int:
    """The weighted milli that the classes can use no more when idle devices, and CPU, are taken."""
    if not ask[HAS_TABLE]:
        return 0
    taken, flavor = 0, ABSENT
    for slot in range(here.shape[1]):
        if (bits >> slot) & 1:
            taken, flavor = taken + 1, here[FLAVOR, slot]
    spoiled = 0
    for slot in range(here.shape[1]):
        each, free, idle = here[FLAVOR, slot], here[OPEN_MILLI, slot], here[IDLE, slot]
        spoiled += usable_of(each, free, idle, before, shares, single, several, ask[MOST])
        if not (bits >> slot) & 1:
            left = idle - taken if each == flavor else idle
            spoiled -= usable_of(each, free, left, after, shares, single, several, ask[MOST])
    return int(spoiled)


def usable_of(
    flavor: int, milli: int, idle: int, level: int, shares: IntArray, single: IntArray, several: IntArray, most: int
) -> int:
    """The weighted milli that the classes could use of a device with so many of its flavor idle beside it."""
    if not milli:
        return 0
    weight = single[flavor, level, shares[milli]]
    if milli == WHOLE_DEVICE_MILLI and most:
        weight += several[flavor, level, min(idle, most)]
    return int(weight * milli)


def count_steps(node: IntArray, here: IntArray, mixed: IntArray, ask: IntArray) -> int:
    """How far the nearest devices are that the task could take."""
    if ask[COUNT] == 0 or len(mixed) < 2:
        return int(node[NEAREST])
    nearest = FURTHEST
    for flavor in mixed:
        found, steps = find_nearest(here, flavor)
        if found >= ask[COUNT]:
            nearest = min(nearest, steps)
    return nearest


def measure_imbalance(node: IntArray, here: IntArray, ask: IntArray, share: int) -> int:
    """By how many tenths the share of CPU left differs from the share of devices left."""
    devices = 0
    for slot in range(here.shape[1]):
        devices += here[FLAVOR, slot] != ABSENT
    cpu = (node[CPU_FREE] - ask[CPU]) * 1000 // max(node[CPU_TOTAL], 1)
    milli = (node[USABLE_MILLI] - share) // max(devices, 1)
    return int(abs(cpu - milli) // 100)
