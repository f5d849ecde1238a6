"""How the kernels are told of a request, a node and its devices: where each number lies in small arrays of integers.

`ask` holds the numbers of the request, `node` those of one row, and `here` (numbers, width) those of its devices.
Filters and measures are named by numbers; which of them are asked, in what order and how wide, is told by the policy.
"""

from typing import TypeAlias

from millpond_scheduler.domain.columns import BoolArray, CodeArray, IntArray

Columns: TypeAlias = tuple[IntArray, BoolArray, IntArray, BoolArray]
"""The blocks of `NodeColumns`."""

Hardware: TypeAlias = tuple[CodeArray, IntArray, BoolArray, IntArray, BoolArray, IntArray]
"""Of `ShapeFits` codes, steps, slots, steps of slots, label matches, mixed flavors."""

Table: TypeAlias = tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray]

MAX_WIDTH = 62
"""Devices of a node at most: which of them are taken is told in the bits of an integer."""

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
    DEVICE_COLUMNS,  # so many of them it looks at, the first ones
    ASK_WIDTH,
) = range(18)

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

# Its devices; the first six are columns, of which most requests need two
DEVICE_COLUMNS_OF_ALL, DEVICE_COLUMNS_OF_SLICES = 2, 6
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
