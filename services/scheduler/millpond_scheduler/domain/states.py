"""What a job, a task attempt and an allocation may become next.

`transition` is the only judge, and every caller writes the new state, its history row and its event in one
transaction. The states themselves, and the closed list of end reasons, are words of the contracts.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from millpond_contracts.bodies.allocations import AllocationState
from millpond_contracts.bodies.jobs import JobState, TaskState


class IllegalTransition(Exception):
    """A state that may not follow the present one."""

    def __init__(self, current: StrEnum, wanted: StrEnum) -> None:
        super().__init__(f"{type(current).__name__} {current.value!r} cannot become {wanted.value!r}")
        self.current = current
        self.wanted = wanted


_JOB: Mapping[StrEnum, frozenset[StrEnum]] = {
    JobState.PENDING: frozenset(
        {
            JobState.RUNNING,  # the first of its tasks runs
            JobState.FAILED,  # a start failed for good, or its dependency did
            JobState.CANCELLED,  # by its owner, before anything ran
            JobState.SUCCEEDED,  # its tasks ran and ended between two looks at them
        }
    ),
    JobState.RUNNING: frozenset(
        {
            JobState.SUCCEEDED,  # every task succeeded, retries included
            JobState.FAILED,  # a task failed, was lost or preempted, and no retry is left
            JobState.CANCELLED,  # by its owner; its tasks are empty by now
        }
    ),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}

_TASK: Mapping[StrEnum, frozenset[StrEnum]] = {
    TaskState.BLOCKED: frozenset(
        {
            TaskState.PENDING,  # every group that its group waits for has succeeded
            TaskState.CANCELLED,  # the job was cancelled before its turn
            TaskState.FAILED,  # a group that its group waits for did not succeed
        }
    ),
    TaskState.PENDING: frozenset(
        {
            TaskState.BOUND,  # a plan with its allocation was committed
            TaskState.CANCELLED,  # the job was cancelled while this attempt waited
            TaskState.FAILED,  # its deadline passed
        }
    ),
    TaskState.BOUND: frozenset(
        {
            TaskState.STARTING,  # the agent took the assignment
            TaskState.RUNNING,  # the agent's report of the start was overtaken by the next one
            TaskState.STOPPING,  # cancelled, drained or preempted before the agent took it
            TaskState.SUCCEEDED,  # a short process: the agent's first report is its end
            TaskState.FAILED,  # the agent refused it
            TaskState.LOST,  # the node's lease ran out
        }
    ),
    TaskState.STARTING: frozenset(
        {
            TaskState.RUNNING,  # the process runs with its devices
            TaskState.STOPPING,  # stop asked while it starts
            TaskState.SUCCEEDED,  # it ended with 0 before the report of its start was sent
            TaskState.FAILED,  # the start failed
            TaskState.LOST,  # the node's lease ran out
        }
    ),
    TaskState.RUNNING: frozenset(
        {
            TaskState.STOPPING,  # cancel, time limit, drain or preemption
            TaskState.SUCCEEDED,  # exit code 0
            TaskState.FAILED,  # other exit code, signal, out of memory
            TaskState.LOST,  # the node's lease ran out
        }
    ),
    TaskState.STOPPING: frozenset(
        {
            TaskState.SUCCEEDED,  # it ended with 0 before the stop reached it
            TaskState.FAILED,  # stopped at its time limit, or it failed by itself meanwhile
            TaskState.CANCELLED,  # stopped for its owner
            TaskState.PREEMPTED,  # stopped for the provider: preemption, drain, reclaim
            TaskState.LOST,  # the node's lease ran out before the group was seen empty
        }
    ),
    TaskState.SUCCEEDED: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.CANCELLED: frozenset(),
    TaskState.PREEMPTED: frozenset(),
    TaskState.LOST: frozenset(),
}

_ALLOCATION: Mapping[StrEnum, frozenset[StrEnum]] = {
    AllocationState.BOUND: frozenset(
        {
            AllocationState.ACTIVE,  # the agent confirmed the process with its devices: billing starts
            AllocationState.RELEASING,  # stop asked, or the end was reported, before it ran
            AllocationState.RELEASED,  # refused, or the node's lease ran out: never billed
        }
    ),
    AllocationState.ACTIVE: frozenset(
        {
            AllocationState.RELEASING,  # stop asked, or the process ended and its group is not yet seen empty
            AllocationState.RELEASED,  # the end report said at once that the group is empty; or the node was lost
        }
    ),
    AllocationState.RELEASING: frozenset(
        {
            AllocationState.RELEASED,  # group empty and device memory back, or lease and stop grace are over
        }
    ),
    AllocationState.RELEASED: frozenset(),
}

# By noun: states of two nouns that are written alike are equal as strings, and one key in a common table.
TRANSITIONS: Mapping[type[StrEnum], Mapping[StrEnum, frozenset[StrEnum]]] = {
    JobState: _JOB,
    TaskState: _TASK,
    AllocationState: _ALLOCATION,
}

State = TypeVar("State", JobState, TaskState, AllocationState)


def transition(current: State, wanted: State) -> State:
    """The wanted state, once the table allows it.

    Raises:
        IllegalTransition: `wanted` may not follow `current`; a state may never follow itself.
    """
    if wanted not in TRANSITIONS[type(current)][current]:
        raise IllegalTransition(current, wanted)
    return wanted


def is_final(state: JobState | TaskState | AllocationState) -> bool:
    """Whether nothing can follow this state."""
    return not TRANSITIONS[type(state)][state]


def job_state_from_tasks(
    latest_attempts: Iterable[TaskState], *, has_run: bool = False, cancel_requested: bool = False
) -> JobState:
    """The state of a job, from the newest attempt of each of its tasks.

    A retry is a new attempt, hence the newest one; an ended attempt here means that no retry will follow. So a lost or
    preempted task without a successful retry never lets the job succeed.

    Args:
        latest_attempts: one state per task; a job has at least one task.
        has_run: the job was running before; while a retry waits for its place it still is.
        cancel_requested: the owner asked for the end; a job whose tasks all succeeded before still succeeded.
    """
    states = frozenset(latest_attempts)
    if not states:
        raise ValueError("a job has at least one task")
    if any(not is_final(state) for state in states):
        started = states - {TaskState.BLOCKED, TaskState.PENDING, TaskState.BOUND, TaskState.STARTING}
        return JobState.RUNNING if started or has_run else JobState.PENDING
    if states == {TaskState.SUCCEEDED}:
        return JobState.SUCCEEDED
    if cancel_requested or TaskState.CANCELLED in states:
        return JobState.CANCELLED
    return JobState.FAILED
