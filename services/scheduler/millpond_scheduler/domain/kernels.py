"""One request beside one row, in plain integers: what the policy's lists say, as functions that numba can compile.

The functions are those of `checks` and `views` for one row instead of arrays of rows; `scoring` calls `refresh` where
it is compiled (`compiled`), and the tests hold both to the same answers. A row is first copied into two small arrays,
so that the functions need few arguments (`kernel_layout`), then judged (`kernel_filters`) and scored (`kernel_ranks`);
of all rows the one that goes first is kept up by `blocks`.
"""

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.blocks import find_first, note_rows
from millpond_scheduler.domain.columns import NODE_INT_NAMES, CodeArray, IntArray
from millpond_scheduler.domain.kernel_filters import DEVICE_ORDER, find_failure, share_at
from millpond_scheduler.domain.kernel_layout import (
    COUNT,
    CPU,
    CPU_FREE,
    DEVICE_COLUMNS,
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

_STAMP = NODE_INT_NAMES.index("stamp")


def refresh(
    rows: IntArray,
    tick: int,
    wanted: int,
    others: CodeArray,
    order: IntArray,
    columns: Columns,
    hardware: Hardware,
    table: Table,
    ask: IntArray,
    filters: IntArray,
    ranks: IntArray,
    node: IntArray,
    here: IntArray,
    codes: CodeArray,
    scores: IntArray,
    minima: IntArray,
    firsts: IntArray,
    ages: IntArray,
) -> tuple[int, int]:
    """Judges and scores the rows that changed; the row that then goes first of all, and the devices taken there.

    The row is -1 when all are blocked; the devices are told as bits.

    Args:
        rows: one per change, in order; each is looked at where it stands last.
        tick: of the first of the changes, each is one later than the one before; -1 = no row stands there twice.
        wanted: the devices are asked of this row, which passes; -1 = of the first.
        others: (rows,) the codes of the filters of which NumPy was asked, 0 = none fails; empty = none was asked.
        order: (codes,) the places of the filters in order.
        filters: (filters, 2) numbers with the codes of their reasons, in order.
        ranks: (ranks, 2) numbers with their widths in bits, in order.
        node, here: (NODE_WIDTH,) and (HERE_WIDTH, width) room for one row at a time.
        codes, scores: (capacity,) written: the first filter that each row fails, and its rank.
        minima, firsts, ages: (blocks,) written: see `note_rows`.
    """
    here[IDLE, 0] = fetch_rows(rows, columns, ask, codes, scores)
    for place, row in enumerate(rows):
        if tick >= 0 and columns[0][row, _STAMP] != tick + place:
            continue
        code = find_failure(row, columns, hardware, ask, filters, node, here)
        if len(others) and order[others[place]] < order[code]:
            code = others[place]
        codes[row], scores[row] = code, BLOCKED
        if code == 0:
            scores[row] = score_row(hardware[5], table, ask, ranks, node, here)[0]
    note_rows(rows, columns[0], scores, minima, firsts, ages)
    first, bits = find_first(columns[0], minima, firsts, ages), 0
    chosen = first if wanted < 0 else wanted
    if chosen >= 0:
        find_failure(chosen, columns, hardware, ask, filters, node, here)
        bits = score_row(hardware[5], table, ask, ranks, node, here)[1]
    return first, bits


def score_row(
    mixed: IntArray, table: Table, ask: IntArray, ranks: IntArray, node: IntArray, here: IntArray
) -> tuple[int, int]:
    """The rank of a row that may take the task, and the devices that it would take, as bits."""
    levels, shares, single, several, core, device = table
    before, after = level_of(node[CPU_FREE], levels), level_of(node[CPU_FREE] - ask[CPU], levels)
    if ask[COUNT] == 0 or ask[MILLI] == WHOLE_DEVICE_MILLI:
        bits = take_whole(here, mixed, ask)
        share = ask[COUNT] * WHOLE_DEVICE_MILLI
        spoiled = spoil_by_whole(here, bits, before, after, shares, single, several, ask)
    else:
        slot, spoiled = take_slice(here, mixed, before, after, shares, single, several, ask)
        bits, share = 1 << slot, share_at(here, slot, ask)
    price = 0
    if ask[HAS_TABLE]:
        price = core[node[SIZE]] * ask[CPU] // 1000 + device[node[SIZE]] * share // 1000
    total = 0
    for place in range(len(ranks)):
        value = measure(ranks[place, 0], node, here, mixed, ask, share, spoiled, price)
        total = (total << ranks[place, 1]) | min(value, (1 << ranks[place, 1]) - 1)
    return total, bits


def fetch_rows(rows: IntArray, columns: Columns, ask: IntArray, codes: CodeArray, scores: IntArray) -> int:
    """Reads a little of all that will be read, which is far away in memory: the reads wait together, not in turn."""
    read, devices = 0, columns[2]
    for row in rows:
        read |= columns[0][row, 0] | columns[1][row, 0] | columns[3][row, 0, 0] | codes[row] | scores[row]
        for place in range(ask[DEVICE_COLUMNS]):
            read |= devices[row, DEVICE_ORDER[place], 0]
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
