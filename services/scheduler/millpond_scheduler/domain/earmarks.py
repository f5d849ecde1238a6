"""A node kept free for a task that has waited too long, so that a stream of small tasks cannot pass it for ever.

Nothing is stored: each cycle chooses again, and because younger tasks keep off the chosen node it only becomes emptier
and stays the nearest one.
"""

import numpy as np

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain import policy
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.columns import IntArray
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.views import RowView


def find_nearest(snapshot: Snapshot, candidates: Candidates) -> int | None:
    """The node that could take the task when empty and lacks least now; None when even an empty node could not.

    Least first by missing devices (whole ones, or milli of a slice), then CPU, then memory; then the oldest node.
    """
    view, rows = candidates.view_empty()
    if not len(rows):
        return None
    devices = missing_devices(RowView(snapshot, candidates.fits, rows))
    cpu = np.maximum(view.request.cpu_milli - snapshot.columns.cpu_free[rows], 0)
    memory = np.maximum(view.request.memory_mib - snapshot.columns.memory_free[rows], 0)
    lacks = np.stack((devices, cpu, memory))
    first = np.lexsort((memory, cpu, devices))[0]
    return policy.lowest(snapshot, rows[(lacks == lacks[:, [first]]).all(axis=0)])


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
