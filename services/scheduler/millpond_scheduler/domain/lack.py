"""What nodes lack now for a task that they could take when empty, and which of them lack least."""

import numpy as np

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain import policy
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.columns import IntArray
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.views import RowView


def find_nearest(snapshot: Snapshot, candidates: Candidates) -> int | None:
    """The node that could take the task when empty and lacks least now; None when even an empty node could not.

    Of nodes that lack the same the oldest.
    """
    _, rows = candidates.view_empty()
    if not len(rows):
        return None
    lacks = _measure(snapshot, candidates, rows)
    least = lacks[:, np.lexsort(lacks[::-1])[0]]
    return policy.lowest(snapshot, rows[(lacks == least[:, None]).all(axis=0)])


def rank_by_lack(snapshot: Snapshot, candidates: Candidates, rows: IntArray) -> IntArray:
    """The rows' places in the order of what one task lacks there; of equals the oldest node first."""
    lacks = _measure(snapshot, candidates, rows)
    order: IntArray = np.lexsort((snapshot.columns.tie[rows], *lacks[::-1]))
    return order


def _measure(snapshot: Snapshot, candidates: Candidates, rows: IntArray) -> IntArray:
    """What each row lacks, what weighs most first: devices (whole ones, or milli of a slice), CPU, memory."""
    columns, request = snapshot.columns, candidates.request
    devices = missing_devices(RowView(snapshot, candidates.fits, rows))
    cpu = np.maximum(request.cpu_milli - columns.cpu_free[rows], 0)
    memory = np.maximum(request.memory_mib - columns.memory_free[rows], 0)
    return np.stack((devices, cpu, memory))


def missing_devices(view: RowView) -> IntArray:
    """What each row lacks: whole devices, or milli of the device with most room for a slice."""
    demand = view.demand
    if demand is None:
        return np.zeros(len(view.shape), dtype=np.int64)
    if demand.is_whole:
        return np.maximum(demand.count - view.count_devices(view.admissible), 0)
    short = np.where(view.eligible, view.slice_milli() - view.device_milli_free, WHOLE_DEVICE_MILLI)
    short = np.where(view.admissible, 0, np.maximum(short, 1))
    least: IntArray = short.min(axis=1)
    return least
