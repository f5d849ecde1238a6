"""One request beside one row, in plain integers: what the policy's lists say, as functions that numba can compile.

The functions are those of `checks` and `views` for one row instead of arrays of rows; `scoring` calls them where they
are compiled (`compiled`), and the tests hold both to the same answers. They know each filter and measure by a number;
which of them are asked, in what order and how wide, is told by the policy's own lists.

A row is first copied into two small arrays, so that the functions need few arguments: `node` holds its numbers, and
`here` (numbers, width) those of its devices, as the names below index them; `ask` holds the numbers of the request.
`table` are the arrays of a `PackingTable`: levels, shares, single, several, prices of a core and of a device.
"""

from typing import TypeAlias

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.columns import (
    ABSENT,
    DEVICE_INT_NAMES,
    NODE_BOOL_NAMES,
    NODE_INT_NAMES,
    BoolArray,
    CodeArray,
    IntArray,
)
from millpond_scheduler.domain.fits import FURTHEST
from millpond_scheduler.domain.fragmentation import QUANTA_BELOW_ZERO
from millpond_scheduler.domain.policy import BLOCKED

Columns: TypeAlias = tuple[IntArray, BoolArray, IntArray, BoolArray]
"""The blocks of `NodeColumns`."""

Hardware: TypeAlias = tuple[CodeArray, IntArray, BoolArray, IntArray, BoolArray, IntArray]
"""Of `ShapeFits` codes, steps, slots, steps of slots, label matches, mixed flavors."""

Table: TypeAlias = tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]

MAX_WIDTH = 62
"""Devices of a node at most: which of them are taken is told in the bits of an integer."""

_NOTHING = 1 << 62  # more than any slice spoils or leaves

# The request
(
    CPU,
    MEMORY,
    COUNT,  # devices, 0 = none
    MILLI,  # of each, -1 = as the memory says
    DEVICE_MEMORY,  # MiB of each, -1 = in proportion
    POOL,
    TENANT,
    IS_OPEN,  # the pool is open to the tenant
    HAS_LABELS,
    HAS_STEPS,  # some hardware is nearer than other
    SHARES_DEVICES,  # with any tenant
    SHARES_USERS,
    HAS_TABLE,  # something usually comes
    MOST,  # the table's largest count, weight and quantum
    WEIGHT,
    QUANTUM,
    ASK_WIDTH,
) = range(17)

# A node; the first nine are columns
(
    N_POOL,
    CPU_TOTAL,
    CPU_FREE,
    MEMORY_FREE,
    USABLE_MILLI,
    SHAPE,
    SIZE,
    LABEL_SET,
    HOLDER,
    IS_READY,
    IS_CORDONED,
    IS_UNISOLATED,
    CODE,  # of the first hardware filter that its shape fails
    NEAREST,  # steps of its shape
    N_LABELS,  # it has those that are asked for
    NODE_WIDTH,
) = range(16)

# Its devices; the first six are columns
(
    FLAVOR,
    FREE_MILLI,
    MEMORY_TOTAL,
    FREE_MEMORY,
    D_HOLDER,
    SLOTS,  # the mask of what partitions hold
    IS_USABLE,
    IS_FITTING,
    STEPS_AWAY,
    IS_ROOMY,  # there is room for the share
    IS_ADMISSIBLE,  # and it is open to the tenant
    OPEN_MILLI,  # free for anybody
    IDLE,  # how many of its flavor are idle here
    HERE_WIDTH,
) = range(14)

# The filters
IN_POOL, TENANT_OPEN, READY, UNCORDONED, LABELS, FITTING, HAS_CPU, HAS_MEMORY, SUM, BLOCK, OWN, ISOLATED = range(12)
"""From SUM on they look at devices."""

# The measures of ranks
UNNEEDED, STEPS, QUANTA, IMBALANCE, ROOM_LEFT, DEVICE_MILLI, SPARE_CPU, SPARE_MEMORY = range(8)

_NODE_COLUMNS = tuple(
    NODE_INT_NAMES.index(name)
    for name in (
        "pool",
        "cpu_total",
        "cpu_free",
        "memory_free",
        "usable_milli_free",
        "shape",
        "size",
        "label_set",
        "holder",
    )
)
_FLAGS = tuple(NODE_BOOL_NAMES.index(name) for name in ("ready", "cordoned", "unisolated"))
_DEVICE_COLUMNS = tuple(
    DEVICE_INT_NAMES.index(name)
    for name in (
        "device_flavor",
        "device_milli_free",
        "device_memory_total",
        "device_memory_free",
        "device_holder",
        "device_slots",
    )
)


def refresh_rows(
    rows: IntArray,
    columns: Columns,
    hardware: Hardware,
    table: Table,
    ask: IntArray,
    filters: IntArray,
    ranks: IntArray,
    codes: CodeArray,
    scores: IntArray,
    taken: IntArray,
    node: IntArray,
    here: IntArray,
) -> None:
    """Judges and scores some rows.

    Args:
        filters: (filters, 2) numbers with the codes of their reasons, in order.
        ranks: (ranks, 2) numbers with their widths in bits, in order.
        codes, scores: (capacity,) written: the first filter that each row fails, and its rank.
        taken: (capacity,) written: the devices that the task would take, as bits.
        node, here: (NODE_WIDTH,) and (HERE_WIDTH, width) room for one row at a time.
    """
    mixed, levels, shares, single, several, core, device = hardware[5], *table
    here[IDLE, 0] = fetch_rows(rows, columns, codes, scores, taken)
    for row in rows:
        code = find_failure(row, columns, hardware, ask, filters, node, here)
        codes[row] = code
        if code:
            scores[row], taken[row] = BLOCKED, 0
            continue
        before, after = level_of(node[CPU_FREE], levels), level_of(node[CPU_FREE] - ask[CPU], levels)
        if ask[COUNT] == 0 or ask[MILLI] == WHOLE_DEVICE_MILLI:
            bits = take_whole(here, mixed, ask)
            share = ask[COUNT] * WHOLE_DEVICE_MILLI
            spoiled = spoil_by_whole(here, bits, before, after, shares, single, several, ask)
        else:
            slot, spoiled = take_slice(here, mixed, before, after, shares, single, several, ask)
            bits, share = 1 << slot, share_at(here, slot, ask)
        taken[row] = bits
        price = 0
        if ask[HAS_TABLE]:
            price = core[node[SIZE]] * ask[CPU] // 1000 + device[node[SIZE]] * share // 1000
        total = 0
        for place in range(len(ranks)):
            value = measure(ranks[place, 0], node, here, mixed, ask, share, spoiled, price)
            total = (total << ranks[place, 1]) | min(value, (1 << ranks[place, 1]) - 1)
        scores[row] = total


def fetch_rows(rows: IntArray, columns: Columns, codes: CodeArray, scores: IntArray, taken: IntArray) -> int:
    """Reads a little of all that will be read, which is far away in memory: the reads wait together, not in turn."""
    read, devices = 0, columns[2]
    for row in rows:
        read |= columns[0][row, 0] | columns[1][row, 0] | columns[3][row, 0, 0]
        read |= codes[row] | scores[row] | taken[row]
        for column in range(devices.shape[1]):
            read |= devices[row, column, 0]
    return int(read)


def level_of(cpu: int, levels: IntArray) -> int:
    """How many of the levels so much CPU reaches."""
    low, high = 0, len(levels)
    while low < high:
        middle = (low + high) >> 1
        if levels[middle] <= cpu:
            low = middle + 1
        else:
            high = middle
    return low


def copy_node(row: int, columns: Columns, hardware: Hardware, node: IntArray) -> None:
    """Copies the numbers of a row, and what its shape is to the request."""
    for place, column in enumerate(_NODE_COLUMNS):
        node[place] = columns[0][row, column]
    for place, flag in enumerate(_FLAGS):
        node[IS_READY + place] = columns[1][row, flag]
    node[CODE], node[NEAREST] = hardware[0][node[SHAPE]], hardware[1][node[SHAPE]]
    labels = hardware[4]
    node[N_LABELS] = len(labels) == 0 or labels[node[LABEL_SET]]


def copy_devices(row: int, columns: Columns, hardware: Hardware, shape: int, here: IntArray) -> None:
    """Copies the numbers of a row's devices, and how many of its flavor are idle beside each."""
    devices, width = columns[2], here.shape[1]
    for place, column in enumerate(_DEVICE_COLUMNS):
        for slot in range(width):
            here[place, slot] = devices[row, column, slot]
    for slot in range(width):
        here[IS_USABLE, slot] = columns[3][row, 0, slot]
        here[IS_FITTING, slot] = hardware[2][shape, slot]
        here[STEPS_AWAY, slot] = hardware[3][shape, slot]
        free = min(max(here[FREE_MILLI, slot], 0), WHOLE_DEVICE_MILLI)
        here[OPEN_MILLI, slot] = free if here[IS_USABLE, slot] else 0
    for slot in range(width):
        if slot and here[FLAVOR, slot] == here[FLAVOR, slot - 1]:
            here[IDLE, slot] = here[IDLE, slot - 1]
            continue
        idle = 0
        for other in range(width):
            idle += here[OPEN_MILLI, other] == WHOLE_DEVICE_MILLI and here[FLAVOR, other] == here[FLAVOR, slot]
        here[IDLE, slot] = idle


def find_failure(
    row: int,
    columns: Columns,
    hardware: Hardware,
    ask: IntArray,
    filters: IntArray,
    node: IntArray,
    here: IntArray,
) -> int:
    """The code of the first filter that a row fails, 0 = none; copies the row as far as it is looked at."""
    copy_node(row, columns, hardware, node)
    has_devices = False
    for place in range(len(filters)):
        number = filters[place, 0]
        if number >= SUM and not has_devices:
            copy_devices(row, columns, hardware, node[SHAPE], here)
            mark_devices(here, ask)
            has_devices = True
        if number == FITTING:
            if node[CODE]:
                return int(node[CODE])
        elif number < SUM:
            if not passes_node(number, node, ask):
                return int(filters[place, 1])
        elif not passes_devices(number, node, here, hardware[5], ask):
            return int(filters[place, 1])
    return 0


def mark_devices(here: IntArray, ask: IntArray) -> None:
    """Marks the devices with room for the request's share, and of these the ones that the sharing rule opens to it."""
    is_whole = ask[MILLI] == WHOLE_DEVICE_MILLI
    for slot in range(here.shape[1]):
        is_roomy = ask[COUNT] > 0 and here[IS_USABLE, slot] != 0 and here[IS_FITTING, slot] != 0
        if is_roomy and is_whole:
            is_roomy = here[FREE_MILLI, slot] == WHOLE_DEVICE_MILLI
        elif is_roomy:
            memory = ask[DEVICE_MEMORY]
            if memory < 0:
                memory = here[MEMORY_TOTAL, slot] * ask[MILLI] // WHOLE_DEVICE_MILLI
            is_roomy = here[FREE_MILLI, slot] >= share_at(here, slot, ask) and here[FREE_MEMORY, slot] >= memory
            is_roomy = is_roomy and here[SLOTS, slot] == 0
        is_mine = here[D_HOLDER, slot] == ABSENT or here[D_HOLDER, slot] == ask[TENANT]
        here[IS_ROOMY, slot] = is_roomy
        here[IS_ADMISSIBLE, slot] = is_roomy and (is_whole or ask[SHARES_DEVICES] != 0 or is_mine)


def share_at(here: IntArray, slot: int, ask: IntArray) -> int:
    """Thousandths of a device that the task takes."""
    if ask[MILLI] >= 0:
        return int(ask[MILLI])
    return int(max(ask[DEVICE_MEMORY] * WHOLE_DEVICE_MILLI // max(here[MEMORY_TOTAL, slot], 1), 1))


def passes_node(number: int, node: IntArray, ask: IntArray) -> bool:
    """Whether a row passes a filter that looks at the node alone."""
    if number == IN_POOL:
        return bool(node[N_POOL] == ask[POOL])
    if number == TENANT_OPEN:
        return bool(ask[IS_OPEN] != 0)
    if number == READY:
        return bool(node[IS_READY] != 0)
    if number == UNCORDONED:
        return bool(node[IS_CORDONED] == 0)
    if number == HAS_CPU:
        return bool(node[CPU_FREE] >= ask[CPU])
    if number == HAS_MEMORY:
        return bool(node[MEMORY_FREE] >= ask[MEMORY])
    return bool(ask[HAS_LABELS] == 0 or node[N_LABELS] != 0)


def passes_devices(number: int, node: IntArray, here: IntArray, mixed: IntArray, ask: IntArray) -> bool:
    """Whether a row passes a filter that looks at its devices, or at who holds them."""
    if number == ISOLATED:
        is_alone = node[HOLDER] == ABSENT or node[HOLDER] == ask[TENANT]
        return bool(ask[SHARES_USERS] != 0 or is_alone or node[IS_UNISOLATED] == 0)
    if ask[COUNT] == 0:
        return True
    if number != SUM:
        return bool(count_alike(here, IS_ROOMY if number == BLOCK else IS_ADMISSIBLE, mixed) >= ask[COUNT])
    # The eligible devices together have enough free, wherever it lies.
    what, wanted, total = FREE_MILLI, ask[COUNT] * ask[MILLI], 0
    if ask[MILLI] < 0:
        what, wanted = FREE_MEMORY, ask[DEVICE_MEMORY]
    for slot in range(here.shape[1]):
        if here[IS_USABLE, slot] and here[IS_FITTING, slot]:
            total += here[what, slot]
    return bool(total >= wanted)


def count_alike(here: IntArray, mark: int, mixed: IntArray) -> int:
    """Marked devices that one task can use together: they must be of one flavor."""
    most = 0
    if len(mixed) < 2:
        for slot in range(here.shape[1]):
            most += here[mark, slot]
        return most
    for flavor in mixed:
        count = 0
        for slot in range(here.shape[1]):
            count += here[mark, slot] != 0 and here[FLAVOR, slot] == flavor
        most = max(most, count)
    return most


def find_nearest(here: IntArray, flavor: int) -> tuple[int, int]:
    """Of the admissible devices of a flavor, -1 = of any, how many there are, and the steps of the nearest."""
    found, steps = 0, FURTHEST
    for slot in range(here.shape[1]):
        if here[IS_ADMISSIBLE, slot] and (flavor < 0 or here[FLAVOR, slot] == flavor):
            found += 1
            steps = min(steps, here[STEPS_AWAY, slot])
    return found, steps


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
