"""The transition tables and the state of a job."""

import pytest

from millpond_contracts.bodies.allocations import AllocationState
from millpond_contracts.bodies.jobs import JobState, TaskState
from millpond_scheduler.domain.states import (
    TRANSITIONS,
    IllegalTransition,
    is_final,
    job_state_from_tasks,
    transition,
)

pytestmark = pytest.mark.unit


def test_transitions_when_listed_then_cover_every_state_of_every_noun() -> None:
    assert {noun: list(table) for noun, table in TRANSITIONS.items()} == {
        noun: list(noun) for noun in (JobState, TaskState, AllocationState)
    }
    for noun, table in TRANSITIONS.items():
        assert all(type(state) is noun for edges in table.values() for state in edges)


def test_transition_when_two_nouns_write_a_state_alike_then_each_keeps_its_own_edges() -> None:
    assert transition(TaskState.BOUND, TaskState.STARTING) is TaskState.STARTING
    assert transition(AllocationState.BOUND, AllocationState.ACTIVE) is AllocationState.ACTIVE
    with pytest.raises(IllegalTransition):
        transition(JobState.PENDING, JobState.PENDING)


@pytest.mark.parametrize("current", [*JobState, *TaskState, *AllocationState])
def test_transition_when_states_are_of_one_noun_then_only_the_table_decides(
    current: JobState | TaskState | AllocationState,
) -> None:
    for wanted in type(current):
        if wanted in TRANSITIONS[type(current)][current]:
            assert transition(current, wanted) is wanted  # type: ignore[type-var]
        else:
            with pytest.raises(IllegalTransition, match=f"'{current.value}' cannot become '{wanted.value}'"):
                transition(current, wanted)  # type: ignore[type-var]


def test_final_states_when_asked_then_are_the_ends() -> None:
    ends = {state.value for noun in (JobState, TaskState, AllocationState) for state in noun if is_final(state)}
    assert ends == {"succeeded", "failed", "cancelled", "preempted", "lost", "released"}


@pytest.mark.parametrize(
    ("tasks", "cancel", "expected"),
    [
        ([TaskState.PENDING], False, JobState.PENDING),
        ([TaskState.BOUND, TaskState.STARTING], False, JobState.PENDING),
        ([TaskState.RUNNING, TaskState.PENDING], False, JobState.RUNNING),
        ([TaskState.SUCCEEDED, TaskState.PENDING], False, JobState.RUNNING),
        ([TaskState.LOST, TaskState.RUNNING], False, JobState.RUNNING),
        ([TaskState.SUCCEEDED, TaskState.SUCCEEDED], False, JobState.SUCCEEDED),
        ([TaskState.SUCCEEDED, TaskState.LOST], False, JobState.FAILED),
        ([TaskState.SUCCEEDED, TaskState.PREEMPTED], False, JobState.FAILED),
        ([TaskState.SUCCEEDED, TaskState.FAILED], False, JobState.FAILED),
        ([TaskState.SUCCEEDED, TaskState.CANCELLED], True, JobState.CANCELLED),
        ([TaskState.LOST, TaskState.SUCCEEDED], True, JobState.CANCELLED),
        ([TaskState.SUCCEEDED], True, JobState.SUCCEEDED),
        ([TaskState.STOPPING], True, JobState.RUNNING),
    ],
)
def test_job_state_when_tasks_are_given_then_follows_the_latest_attempts(
    tasks: list[TaskState], cancel: bool, expected: JobState
) -> None:
    assert job_state_from_tasks(tasks, cancel_requested=cancel) is expected


def test_job_state_when_a_retry_waits_then_the_job_still_runs() -> None:
    assert job_state_from_tasks([TaskState.PENDING], has_run=True) is JobState.RUNNING
    assert job_state_from_tasks([TaskState.LOST], has_run=True) is JobState.FAILED


def test_job_state_when_there_is_no_task_then_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one task"):
        job_state_from_tasks([])
