"""One request beside one row, in plain integers: what the policy's lists say, as functions that numba can compile.

The functions are those of `checks` and `views` for one row instead of arrays of rows; `scoring` calls them where they
are compiled (`compiled`), and the tests hold both to the same answers. A row is first copied into two small arrays, so
that the functions need few arguments (`kernel_layout`), then judged (`kernel_filters`) and scored (`kernel_ranks`).
"""

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.columns import CodeArray, IntArray
from millpond_scheduler.domain.kernel_filters import find_failure, share_at
from millpond_scheduler.domain.kernel_layout import (
    COUNT,
    CPU,
    CPU_FREE,
    HAS_TABLE,
    IDLE,
    MILLI,
    SIZE,
    Columns,
    Hardware,
    Table,
)
from millpond_scheduler.domain.kernel_ranks import measure, spoil_by_whole, take_slice, take_whole
from millpond_scheduler.domain.policy import BLOCKED


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
