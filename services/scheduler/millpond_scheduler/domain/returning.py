"""Where an attempt goes that is not its task's first: what is kept for it, and where it had better not go again."""

from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.requests import QueuedTask
from millpond_scheduler.domain.snapshot import Snapshot


def choose_row(
    snapshot: Snapshot,
    candidates: Candidates,
    task: QueuedTask,
    kept_rows: frozenset[int],
    barred: frozenset[int] = frozenset(),
) -> int | None:
    """The row for a task, None = none fits: the one kept for a moved task, else the best one.

    A retry goes back to where it failed only if there is no other.

    Args:
        kept_rows: rows that are kept for others.
        barred: rows where it may not stand because of other tasks.
    """
    kept = None if task.moves_to is None else snapshot.find_row(task.moves_to)
    if kept is not None and candidates.codes[kept] == 0 and kept not in barred:
        return kept
    failed_on = None if task.failed_on is None else snapshot.find_row(task.failed_on)
    closed = kept_rows | barred if barred else kept_rows
    row = None if failed_on is None else candidates.find_best([*closed, failed_on])
    return candidates.find_best(closed) if row is None else row
