"""Equal tasks placed together: by count per node, so that a large gang costs about as much as its nodes, not its tasks.

The nodes are filled in the order of their scores. Best fit would do the same task by task, since the node that was
taken last is the fullest one.
"""

from collections.abc import Collection

import numpy as np

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain import policy
from millpond_scheduler.domain.apart import Apart
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.columns import IntArray
from millpond_scheduler.domain.gangs import count_fitting
from millpond_scheduler.domain.plans import DevicePick
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.views import RowView

# So many nodes are counted at a time; a gang seldom needs more.
CHUNK = 1024


def can_place_together(candidates: Candidates) -> bool:
    """Whether equal tasks of this request take devices that are known beforehand: none, or whole ones of one flavor."""
    demand = candidates.request.devices
    return demand is None or (demand.is_whole and len(candidates.fits.mixed_flavors) < 2)


def spread_over_rows(
    snapshot: Snapshot, candidates: Candidates, tasks: int, kept_rows: Collection[int], apart: Apart | None = None
) -> list[tuple[int, int]]:
    """The rows that take so many equal tasks, in the order of their scores, each with how many; or what there is.

    Args:
        kept_rows: rows that they may not use.
        apart: what the rules on other tasks' places leave.
    """
    scores = candidates.scores
    rows = np.flatnonzero(scores != policy.BLOCKED)
    if kept_rows:
        rows = rows[~np.isin(rows, list(kept_rows))]
    rows = rows[np.lexsort((snapshot.columns.tie[rows], scores[rows]))]
    found: list[tuple[int, int]] = []
    for start in range(0, len(rows), CHUNK):
        chunk: IntArray = rows[start : start + CHUNK]
        for row, count in zip(
            chunk.tolist(), count_fitting(RowView(snapshot, candidates.fits, chunk)).tolist(), strict=True
        ):
            taken = min(count, tasks) if apart is None else min(count, tasks, max(apart.room(row), 0))
            if taken:
                if apart is not None:
                    apart.take(row, taken)
                found.append((row, taken))
                tasks -= taken
            if not tasks:
                return found
    return found


def pick_together(snapshot: Snapshot, candidates: Candidates, row: int, tasks: int) -> list[tuple[DevicePick, ...]]:
    """What each of so many equal tasks would hold of the devices of one row, the lowest slots first."""
    demand = candidates.request.devices
    if demand is None:
        return [()] * tasks
    view = RowView(snapshot, candidates.fits, np.array([row]))
    devices, total = snapshot.record_at(row).devices, snapshot.columns.device_memory_total[row]
    slots = np.flatnonzero(view.admissible[0])[: demand.count * tasks].tolist()
    picks = [DevicePick(devices[slot].id, WHOLE_DEVICE_MILLI, int(total[slot])) for slot in slots]
    return [tuple(picks[first : first + demand.count]) for first in range(0, len(picks), demand.count)]
