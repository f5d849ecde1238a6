"""The policy's filters for one row: what `checks` says for arrays of rows, as functions that numba can compile."""

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.columns import ABSENT, DEVICE_INT_NAMES, NODE_BOOL_NAMES, NODE_INT_NAMES, IntArray
from millpond_scheduler.domain.kernel_layout import (
    BLOCK,
    CODE,
    COUNT,
    CPU,
    CPU_FREE,
    D_HOLDER,
    DEVICE_COLUMNS,
    DEVICE_MEMORY,
    FITTING,
    FLAVOR,
    FREE_MEMORY,
    FREE_MILLI,
    HAS_CPU,
    HAS_LABELS,
    HAS_MEMORY,
    HOLDER,
    IDLE,
    IN_POOL,
    IS_ADMISSIBLE,
    IS_CORDONED,
    IS_FITTING,
    IS_OPEN,
    IS_READY,
    IS_ROOMY,
    IS_UNISOLATED,
    IS_USABLE,
    ISOLATED,
    LABEL_SET,
    MEMORY,
    MEMORY_FREE,
    MEMORY_TOTAL,
    MILLI,
    N_LABELS,
    N_POOL,
    NEAREST,
    OPEN_MILLI,
    POOL,
    READY,
    SHAPE,
    SHARES_DEVICES,
    SHARES_USERS,
    SLOTS,
    STEPS_AWAY,
    SUM,
    TENANT,
    TENANT_OPEN,
    UNCORDONED,
    Columns,
    Hardware,
)

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
DEVICE_ORDER = tuple(
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
            copy_devices(row, columns, hardware, node[SHAPE], ask, here)
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


def copy_node(row: int, columns: Columns, hardware: Hardware, node: IntArray) -> None:
    """Copies the numbers of a row, and what its shape is to the request."""
    for place, column in enumerate(_NODE_COLUMNS):
        node[place] = columns[0][row, column]
    for place, flag in enumerate(_FLAGS):
        node[IS_READY + place] = columns[1][row, flag]
    node[CODE], node[NEAREST] = hardware[0][node[SHAPE]], hardware[1][node[SHAPE]]
    labels = hardware[4]
    node[N_LABELS] = len(labels) == 0 or labels[node[LABEL_SET]]


def copy_devices(row: int, columns: Columns, hardware: Hardware, shape: int, ask: IntArray, here: IntArray) -> None:
    """Copies the numbers of a row's devices that the request needs, and how many of its flavor are idle beside each."""
    devices, width = columns[2], here.shape[1]
    for place in range(ask[DEVICE_COLUMNS]):
        for slot in range(width):
            here[place, slot] = devices[row, DEVICE_ORDER[place], slot]
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
        here[IS_ROOMY, slot] = is_roomy
        is_shared = is_whole or ask[SHARES_DEVICES] != 0  # also those of others
        holder = ABSENT if is_shared else here[D_HOLDER, slot]
        here[IS_ADMISSIBLE, slot] = is_roomy and (holder == ABSENT or holder == ask[TENANT])


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
