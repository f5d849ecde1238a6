"""Moves that are carried out: what names a plan, when a move is over, and whom a pool's policy serves."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from millpond_contracts.bodies.jobs import TaskState
from millpond_contracts.bodies.moves import MoveResult
from millpond_contracts.ids import AllocationId, JobId, NodeId, TaskId, TenantId
from millpond_scheduler.domain.defragmentation import Move, MoveOutcome, MovePlan
from millpond_scheduler.domain.moving import KEPT, choose_served, find_result, name_plan
from millpond_scheduler.domain.plans import Holding
from tests.unit.scheduler.world import World, node, request

pytestmark = pytest.mark.unit

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TARGET, OTHER = NodeId(int=1), NodeId(int=2)
JOB = JobId(int=7)


def plan(*pairs: tuple[int, int], cost: int = 1) -> MovePlan:
    """A plan that moves tasks to nodes."""
    moves = []
    for task, target in pairs:
        before = Holding(TaskId(int=task), NodeId(int=99), TenantId(int=1), 1000, 1024)
        moves.append(Move(before, Holding(before.task, NodeId(int=target), before.tenant, 1000, 1024), cost, cost))
    return MovePlan(MoveOutcome.MOVES, 500, tuple(moves), (NodeId(int=99),), 10, cost)


def name(found: MovePlan) -> str:
    return name_plan(JOB, found, {move.before.task: AllocationId(int=move.before.task.int) for move in found.moves})


def test_plan_when_named_then_the_same_moves_have_one_name_whatever_they_cost_and_others_another() -> None:
    assert name(plan((1, 5), (2, 6))) == name(plan((2, 6), (1, 5), cost=9))
    assert len({name(plan((1, 5), (2, 6))), name(plan((1, 6), (2, 5))), name(plan((1, 5)))}) == 3


@pytest.mark.parametrize(
    ("task_attempt", "state", "waited", "stands_on", "expected"),
    [
        (1, TaskState.STOPPING, timedelta(hours=1), OTHER, None),
        (1, TaskState.SUCCEEDED, timedelta(), OTHER, MoveResult.ENDED),
        (1, TaskState.LOST, timedelta(), OTHER, MoveResult.ENDED),
        (2, TaskState.PENDING, timedelta(), None, None),
        (2, TaskState.PENDING, KEPT + timedelta(seconds=1), None, MoveResult.GIVEN_UP),
        (2, TaskState.BOUND, timedelta(), TARGET, MoveResult.MOVED),
        (2, TaskState.RUNNING, timedelta(), OTHER, MoveResult.ELSEWHERE),
        (2, TaskState.CANCELLED, timedelta(), None, MoveResult.ENDED),
        (None, None, timedelta(), None, MoveResult.ENDED),
    ],
)
def test_move_when_looked_at_then_its_place_is_kept_until_the_task_stands_or_never_will(
    task_attempt: int | None,
    state: TaskState | None,
    waited: timedelta,
    stands_on: NodeId | None,
    expected: MoveResult | None,
) -> None:
    since = None if state is None else NOW - waited
    assert find_result(1, TARGET, task_attempt, state, since, stands_on, NOW) is expected


def test_served_job_when_chosen_then_it_has_waited_long_enough_and_was_not_tried_a_moment_ago() -> None:
    second = 1_000_000
    blocked = [(JobId(int=1), 50, 100 * second), (JobId(int=2), 90, 900 * second), (JobId(int=3), 50, 50 * second)]
    assert choose_served(blocked, 1000 * second, 600, {}) == JobId(int=3)
    assert choose_served(blocked, 1000 * second, 600, {JobId(int=3): 1001 * second}) == JobId(int=1)
    assert choose_served(blocked, 1000 * second, 60, {}) == JobId(int=2)
    assert choose_served(blocked, 1000 * second, 6000, {}) is None


@pytest.mark.parametrize(("wanted", "lands_on"), [(None, "n1"), ("n2", "n2"), ("n3", "n1")])
def test_moved_task_when_it_starts_anew_then_on_the_node_kept_for_it_and_elsewhere_where_it_does_not_fit_there(
    wanted: str | None, lands_on: str
) -> None:
    records = [node(1, gpus=2), node(2, gpus=8), node(3, gpus=1)]
    world = World.of(*records)
    world.submit(request(count=2))
    kept = next((record.id for record in records if record.name == wanted), None)
    world.queue[0] = replace(world.queue[0], moves_to=kept)
    (placement,) = world.plan().placements
    assert world.snapshot.get_node(placement.holding.node).name == lands_on
