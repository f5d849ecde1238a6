"""Gangs: which waiting tasks start together, and which nodes are kept free for a gang that has waited too long."""

from collections.abc import Collection, Iterable, Iterator

import numpy as np

from millpond_contracts.quantities import MAX_COUNT
from millpond_scheduler.domain import policy
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.columns import IntArray
from millpond_scheduler.domain.requests import Gang, QueuedTask
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.views import RowView


def list_units(ordered: Iterable[QueuedTask]) -> Iterator[tuple[QueuedTask, ...]]:
    """What is decided together, in order: a task by itself, or all waiting tasks of a gang."""
    tasks = list(ordered)
    members: dict[Gang, list[QueuedTask]] = {}
    for task in tasks:
        if task.gang is not None:
            members.setdefault(task.gang, []).append(task)
    for task in tasks:
        if task.gang is None:
            yield (task,)
        elif task.gang in members:
            yield tuple(members.pop(task.gang))


def count_fitting(view: RowView) -> IntArray:
    """How many such tasks each row could take at once; 0 where a filter refuses them."""
    request, demand = view.request, view.demand
    counts: IntArray = np.full(len(view.shape), MAX_COUNT, dtype=np.int64)
    if request.cpu_milli:
        counts = np.minimum(counts, view.cpu_free // request.cpu_milli)
    if request.memory_mib:
        counts = np.minimum(counts, view.memory_free // request.memory_mib)
    if demand is not None and demand.is_whole:
        counts = np.minimum(counts, view.count_devices(view.admissible) // demand.count)
    elif demand is not None:
        by_share = view.device_milli_free // view.slice_milli()
        memory = np.asarray(view.slice_memory())
        by_memory = np.where(memory > 0, view.device_memory_free() // np.maximum(memory, 1), MAX_COUNT)
        slices = np.where(view.admissible, np.minimum(by_share, by_memory), 0)
        counts = np.minimum(counts, slices.sum(axis=1))
    fitting: IntArray = np.where(policy.judge(view) == 0, np.maximum(counts, 0), 0)
    return fitting


def find_gang_rows(
    snapshot: Snapshot, candidates: Candidates, size: int, taken: Collection[int] = ()
) -> list[tuple[int, int]]:
    """Nodes that could hold the whole gang once they are empty, each with the number of its tasks.

    Those with most room now come first, so that little has to end; then those that hold most, then the oldest. Empty
    when the pool could not hold the gang even with nothing running.

    Args:
        taken: rows that are kept free for somebody else.
    """
    view, rows = candidates.view_empty()
    rows = np.array([row for row in rows.tolist() if row not in taken], dtype=np.int64)
    if not len(rows):
        return []
    empty = count_fitting(view)[rows].tolist()
    now = count_fitting(RowView(snapshot, candidates.fits, rows)).tolist()
    ranked = sorted(
        zip(rows.tolist(), empty, now, strict=True),
        key=lambda each: (-each[2], -each[1], snapshot.record_at(each[0]).id.int),
    )
    chosen: list[tuple[int, int]] = []
    missing = size
    for row, most, _ in ranked:
        if missing <= 0:
            break
        chosen.append((row, min(most, missing)))
        missing -= most
    return chosen if missing <= 0 else []
