"""The row that goes first of all, found without looking at every row: each 64 rows remember their own first one.

Plain functions that numba can compile, like those of `kernels`.
"""

from millpond_scheduler.domain.columns import NODE_INT_NAMES, IntArray
from millpond_scheduler.domain.policy import BLOCKED

BLOCK_BITS = 6
BLOCK_ROWS = 1 << BLOCK_BITS

_AGE, _AGE_REST = NODE_INT_NAMES.index("tie"), NODE_INT_NAMES.index("tie_rest")


def note_rows(rows: IntArray, nodes: IntArray, scores: IntArray, minima: IntArray, firsts: IntArray) -> None:
    """Takes new scores of some rows.

    Args:
        nodes: the integers of nodes, as `NodeColumns.blocks` has them.
        minima, firsts: (blocks,) written: the score of each block's first row, and the row; -1 = look at all of it.
    """
    for row in rows:
        block = row >> BLOCK_BITS
        if firsts[block] == row:
            if scores[row] < minima[block]:
                minima[block] = scores[row]
            elif minima[block] != BLOCKED or scores[row] != BLOCKED:
                firsts[block] = -1  # it may have fallen back, or the row may hold another node now
    for row in rows:
        block = row >> BLOCK_BITS
        first = firsts[block]
        if first < 0:
            first = block << BLOCK_BITS
            for other in range(first + 1, min(first + BLOCK_ROWS, len(scores))):
                if is_before(other, first, nodes, scores):
                    first = other
            minima[block], firsts[block] = scores[first], first
        elif scores[row] < BLOCKED and is_before(row, first, nodes, scores):
            minima[block], firsts[block] = scores[row], row


def find_first(nodes: IntArray, scores: IntArray, minima: IntArray, firsts: IntArray) -> int:
    """The row with the lowest score, of equal ones the oldest node; -1 when all are blocked."""
    best, lowest = -1, BLOCKED
    for block in range(len(minima)):
        score = minima[block]
        if score > lowest or score == BLOCKED:
            continue
        if score < lowest or is_before(firsts[block], best, nodes, scores):
            best, lowest = firsts[block], score
    return int(best)


def is_before(row: int, other: int, nodes: IntArray, scores: IntArray) -> bool:
    """Whether a row goes before another one."""
    if scores[row] != scores[other]:
        return bool(scores[row] < scores[other])
    if nodes[row, _AGE] != nodes[other, _AGE]:
        return bool(nodes[row, _AGE] < nodes[other, _AGE])
    return bool(nodes[row, _AGE_REST] < nodes[other, _AGE_REST])
