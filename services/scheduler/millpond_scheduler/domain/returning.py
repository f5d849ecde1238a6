"""Where an attempt goes that is not its task's first: what is kept for it, and where it had better not go again."""

from collections.abc import Collection

from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.requests import QueuedTask
from millpond_scheduler.domain.snapshot import Snapshot


def choose_row(snapshot: Snapshot, candidates: Candidates, task: QueuedTask, kept_rows: Collection[int]) -> int | None:
    """The row for a task, None = none fits: the one kept for a moved task, else the best one.

    A retry goes back to where it failed only if there is no other.
    """
    kept = None if task.moves_to is None else snapshot.find_row(task.moves_to)
    if kept is not None and candidates.codes[kept] == 0:
        return kept
    failed_on = None if task.failed_on is None else snapshot.find_row(task.failed_on)
    row = None if failed_on is None else candidates.find_best([*kept_rows, failed_on])
    return candidates.find_best(kept_rows) if row is None else row
