"""Queues that are kept are what sorting all that waits would give, whatever came, left and came back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_contracts.bodies.tenants import QueuePolicy
from millpond_contracts.ids import JobId, ProjectId, TaskId, VirtualPoolId
from millpond_scheduler.domain.queues import Queues, Unit, key_of
from millpond_scheduler.domain.requests import Gang, QueuedTask
from tests.unit.scheduler.world import request

pytestmark = pytest.mark.unit

GANG = Gang(JobId(int=1), (("main", 3),))


def queued(number: int, pool: int, priority: int, work: int | None, project: int, gang: bool) -> QueuedTask:
    return QueuedTask(
        TaskId(int=number),
        GANG.job if gang else JobId(int=1000 + number),
        VirtualPoolId(int=1 if gang else pool),
        request(),
        50 if gang else priority,
        7 if gang else number % 3,
        GANG if gang else None,
        project=ProjectId(int=1 if gang else project),
        work=work,
        group="main",
    )


TASKS = st.builds(
    queued,
    st.integers(1, 12),
    st.integers(1, 2),
    st.sampled_from([10, 50]),
    st.sampled_from([None, 1, 5]),
    st.integers(1, 2),
    st.booleans(),
)
STEPS = st.lists(st.one_of(TASKS, st.integers(1, 12), st.sampled_from(list(QueuePolicy))), max_size=60)


Line = tuple[VirtualPoolId, ProjectId | None]


def sort_all(waiting: dict[TaskId, QueuedTask], policy: QueuePolicy) -> dict[Line, list[Unit]]:
    """Every line, made at once from all that waits."""
    lines: dict[Line, list[Unit]] = {}
    ordered = sorted(waiting.values(), key=key_of(policy))
    for task in ordered:
        line = lines.setdefault((task.virtual_pool, task.project if policy is QueuePolicy.FAIR_SHARE else None), [])
        unit = (task,) if task.gang is None else tuple(one for one in ordered if one.gang == task.gang)
        if unit not in line:
            line.append(unit)
    return lines


@given(STEPS)
def test_queues_when_tasks_come_leave_and_come_back_then_they_are_what_sorting_would_give(
    steps: list[QueuedTask | int | QueuePolicy],
) -> None:
    queues, waiting = Queues(), dict[TaskId, QueuedTask]()
    for step in steps:
        if isinstance(step, QueuePolicy):
            found = queues.list_units({VirtualPoolId(int=number): step for number in (1, 2)}.__getitem__)
            read = {(key, one): list(line) for key, lines in found.items() for one, line in lines.items()}
            assert {key: line for key, line in read.items() if line} == sort_all(waiting, step)
        elif isinstance(step, int):
            queues.remove(TaskId(int=step))
            waiting.pop(TaskId(int=step), None)
        else:
            queues.add(step)
            waiting[step.id] = step
    assert {*queues} == {*waiting.values()}


def test_queue_when_most_of_it_left_then_the_dead_are_swept_and_the_rest_stays_in_order() -> None:
    tasks = [queued(number, 1, 50, None, 1, gang=False) for number in range(1, 1001)]
    queues = Queues(tasks)
    ordered = [task for (task,) in queues.read_units(lambda _: QueuePolicy.FIFO)]
    for task in ordered[:900]:
        queues.remove(task.id)
    queues.add(ordered[0])
    assert [task for (task,) in queues.read_units(lambda _: QueuePolicy.FIFO)] == [ordered[0], *ordered[900:]]
    (queue,) = queues._queues.values()
    assert sum(map(len, queue._lines.values())) == 101
