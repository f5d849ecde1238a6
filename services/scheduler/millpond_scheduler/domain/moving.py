"""What becomes of moves that are carried out: which plan is the same as another, and when a move is over."""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from millpond_contracts.bodies.jobs import TaskState
from millpond_contracts.bodies.moves import MoveResult
from millpond_contracts.ids import AllocationId, JobId, NodeId, TaskId
from millpond_scheduler.domain.defragmentation import MovePlan
from millpond_scheduler.domain.states import is_final

# So long a node is kept for a moved task that could start there and does not.
KEPT = timedelta(minutes=5)


def name_plan(job: JobId, found: MovePlan, allocation_of: Mapping[TaskId, AllocationId]) -> str:
    """16 hexadecimal digits that are the same for the same moves to the same nodes, whatever they cost by now."""
    moves = sorted(f"{allocation_of[move.before.task]}>{move.after.node}" for move in found.moves)
    return hashlib.sha256("\n".join([str(job), *moves, *sorted(map(str, found.nodes))]).encode()).hexdigest()[:16]


def find_result(
    attempt: int,
    target: NodeId,
    task_attempt: int | None,
    state: TaskState | None,
    since: datetime | None,
    node: NodeId | None,
    now: datetime,
) -> MoveResult | None:
    """The result of a move, None while its place has to be kept.

    Args:
        attempt: the attempt that was ordered to stop.
        task_attempt: the task's newest attempt, with its state and since when; None = the task is forgotten.
        node: where that attempt stands, or stood last.
    """
    if task_attempt is None or state is None or since is None:
        return MoveResult.ENDED
    if task_attempt == attempt:
        return MoveResult.ENDED if is_final(state) else None  # it is being stopped
    if state is TaskState.PENDING:
        return MoveResult.GIVEN_UP if now - since > KEPT else None
    if node is None:
        return MoveResult.ENDED
    return MoveResult.MOVED if node == target else MoveResult.ELSEWHERE


def choose_served(
    blocked: Iterable[tuple[JobId, int, int]], now_us: int, wait_seconds: int, tried: Mapping[JobId, int]
) -> JobId | None:
    """The job that moves should serve: of those blocked long enough the highest priority, then the oldest.

    Args:
        blocked: job, priority and instant of queueing of each task that capacity alone holds back.
        tried: until when jobs are passed over, because nothing came of them.
    """
    found = [
        (-priority, queued_us, job.int, job)
        for job, priority, queued_us in blocked
        if now_us - queued_us >= wait_seconds * 1_000_000 and tried.get(job, 0) <= now_us
    ]
    return min(found)[-1] if found else None
