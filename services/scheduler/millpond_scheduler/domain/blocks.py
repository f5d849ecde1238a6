"""The row that goes first of all, found without looking at every row: each 64 rows remember their own first one.

Plain functions that numba can compile, like those of `kernels`.
"""

from millpond_scheduler.domain.columns import NODE_INT_NAMES, IntArray
from millpond_scheduler.domain.policy import BLOCKED

BLOCK_BITS = 6
BLOCK_ROWS = 1 << BLOCK_BITS

_AGE, _AGE_REST = NODE_INT_NAMES.index("tie"), NODE_INT_NAMES.index("tie_rest")


def note_rows(
    rows: IntArray, nodes: IntArray, scores: IntArray, minima: IntArray, firsts: IntArray, ages: IntArray
) -> None:
    """Takes new scores of some rows.

    Args:
        nodes: the integers of nodes, as `NodeColumns.blocks` has them.
        minima, firsts, ages: (blocks,) written: the score of each block's first row, the row, -1 = look at all of it,
            and its age.
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
        elif scores[row] == BLOCKED or not is_before(row, first, nodes, scores):
            continue
        else:
            first = row
        minima[block], firsts[block], ages[block] = scores[first], first, nodes[first, _AGE]


def find_first(nodes: IntArray, minima: IntArray, firsts: IntArray, ages: IntArray) -> int:
    """The row with the lowest score, of equal ones the oldest node; -1 when all are blocked."""
    best, lowest, oldest = -1, BLOCKED, 0
    for block in range(len(minima)):
        score, age, row = minima[block], ages[block], firsts[block]
        if score > lowest or score == BLOCKED or (score == lowest and age > oldest):
            continue
        if score < lowest or age < oldest or nodes[row, _AGE_REST] < nodes[best, _AGE_REST]:
            best, lowest, oldest = row, score, age
    return int(best)


def is_before(row: int, other: int, nodes: IntArray, scores: IntArray) -> bool:
    """Whether a row goes before another one."""
    if scores[row] != scores[other]:
        return bool(scores[row] < scores[other])
    if nodes[row, _AGE] != nodes[other, _AGE]:
        return bool(nodes[row, _AGE] < nodes[other, _AGE])
    return bool(nodes[row, _AGE_REST] < nodes[other, _AGE_REST])
