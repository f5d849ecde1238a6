"""Whoever needs several devices together, once nodes are kept for it: whom it passes, whom it does not, and where."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond_contracts.bodies.tenants import QueuePolicy
from millpond_contracts.ids import TaskId
from millpond_scheduler.domain.apart import Apart
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.horizon import Awaited, Horizon
from millpond_scheduler.domain.order import MOST_WEIGHT
from millpond_scheduler.domain.plans import Plan
from millpond_scheduler.domain.requests import measure_work
from millpond_scheduler.domain.verdicts import Reason
from tests.unit.scheduler.world import SECOND_US, World, node, placed_tasks, request, virtual_pool

pytestmark = pytest.mark.unit

ONE, TWO = request(count=1), request(count=2)


def wait_for_two(older_by: int) -> tuple[World, TaskId, TaskId, Plan]:
    """A full pool; one device is asked for, so much later two, for which a node is kept; then another is given back."""
    world = World.of(*(node(number, gpus=2) for number in range(1, 17)))
    running = world.submit(ONE, 32, limit=50_000)
    world.run()
    (small,) = world.submit(ONE)
    world.now_us = older_by * SECOND_US
    (large,) = world.submit(TWO)
    world.now_us += 600 * SECOND_US
    assert world.run().earmarks == {small: node(1).id, large: node(2).id}
    world.release(*running[-2:])
    return world, small, large, world.run()


def test_turn_when_a_node_is_kept_for_a_large_task_then_it_goes_before_a_small_one_that_is_little_older() -> None:
    _, small, large, plan = wait_for_two(600)
    assert placed_tasks(plan) == [large]
    assert plan.rejections[small].reason is Reason.NOT_ENOUGH_DEVICES


def test_turn_when_a_small_task_has_waited_more_often_than_the_large_one_needs_devices_then_it_goes_first() -> None:
    world, small, large, plan = wait_for_two(601)
    assert large in plan.rejections
    assert placed_tasks(plan) == [small]
    assert set(world.horizon.awaited) == {large}


def test_turn_when_nothing_is_kept_for_a_large_task_then_age_alone_decides() -> None:
    world = World.of(node(1, gpus=2))
    running = world.submit(ONE, 2, limit=50_000)
    world.run()
    (small,) = world.submit(ONE)
    world.now_us = SECOND_US
    world.submit(TWO)
    world.now_us = 600 * SECOND_US  # it has waited for 599
    assert world.run().earmarks == {small: node(1).id}
    world.release(*running)
    assert placed_tasks(world.run()) == [small]


def test_turn_when_a_small_task_has_a_higher_priority_then_it_goes_first() -> None:
    world = World.of(node(1, gpus=2))
    running = world.submit(ONE, 2, limit=50_000)
    world.run()
    (large,) = world.submit(TWO)
    world.now_us = 600 * SECOND_US
    assert world.run().earmarks == {large: node(1).id}
    (urgent,) = world.submit(ONE, priority=51)
    world.release(*running)
    assert placed_tasks(world.run()) == [urgent]


def test_awaited_when_a_task_starts_or_leaves_the_queue_then_it_is_forgotten() -> None:
    world, _, large, plan = wait_for_two(600)
    assert placed_tasks(plan) == [large]
    assert world.horizon.awaited == {}
    left, _, _, _ = wait_for_two(601)
    left.queue = []
    left.run()
    assert left.horizon.awaited == {}


WAITING = st.lists(
    st.tuples(st.integers(1, 2), st.integers(0, 900), st.integers(1, 9), st.sampled_from((0, 0, 2, 4, 64))),
    min_size=1,
    max_size=9,
)
BY_PRIORITY = (QueuePolicy.PRIORITY, QueuePolicy.FAIR_SHARE)


@given(waiting=WAITING, policy=st.sampled_from(QueuePolicy))
@settings(max_examples=60)
def test_turn_when_some_have_nodes_kept_then_each_has_one_and_passes_only_whom_it_may(
    waiting: Sequence[tuple[int, int, int, int]], policy: QueuePolicy
) -> None:
    world = World.of(node(1, gpus=64), pools=[virtual_pool(policy=policy)])
    weights = {}
    for priority, second, work, weight in waiting:
        world.now_us = second * SECOND_US
        (task,) = world.submit(ONE, priority=priority, work=measure_work(work, 1000, 1))
        weights[task] = min(weight, MOST_WEIGHT)
    world.now_us = 1000 * SECOND_US
    usual = placed_tasks(world.plan())
    world.snapshot.undo_to(0)
    world.horizon.awaited = {task: Awaited(weight, weight) for task, weight in weights.items() if weight}
    order = placed_tasks(world.plan())
    assert sorted(order) == sorted(weights)
    unmoved = [task for task in order if not weights[task]]
    assert unmoved == [task for task in usual if not weights[task]]
    for place, task in enumerate(order):
        behind = [each for each in order[place + 1 :] if not weights[each] and usual.index(each) < usual.index(task)]
        # In a queue by work it goes right before the first: the others stand behind that one however long they wait.
        for passed in behind[:1] if policy is QueuePolicy.SHORTEST_JOB_FIRST else behind:
            one, other = world.submitted[task], world.submitted[passed]
            assert policy not in BY_PRIORITY or one.priority >= other.priority
            waited = world.now_us - one.queued_at_us
            is_higher = policy in BY_PRIORITY and one.priority > other.priority
            assert is_higher or weights[task] * waited >= world.now_us - other.queued_at_us


RUNNING = st.lists(st.tuples(st.integers(1, 4), st.sampled_from((None, 50, 90, 200))), max_size=14)


@given(running=RUNNING, taken=st.sets(st.integers(0, 4)), later=st.lists(st.integers(0, 4), max_size=3))
@settings(max_examples=60)
def test_room_when_one_task_waits_then_it_is_what_the_search_for_several_finds(
    running: Sequence[tuple[int, int | None]], taken: set[int], later: Sequence[int]
) -> None:
    world = World.of(*(node(number, gpus=4) for number in range(1, 6)))
    for count, limit in running:
        world.submit(request(count=count), limit=limit)
        world.run()
    candidates = CandidateCache(world.snapshot).get(request(count=4))
    quick = Horizon(world.snapshot, world.find_end)
    for turn, second in enumerate((1, 2, *later)):
        now_us = second * SECOND_US
        key = (TaskId(int=1), str(turn))
        slow = Horizon(world.snapshot, world.find_end).find_room(key, candidates, 1, now_us, taken, Apart())
        assert quick.find_room(key, candidates, 1, now_us, taken) == slow
        if world.snapshot.list_holdings():
            world.release(min(one.task for one in world.snapshot.list_holdings()))


@given(
    limits=st.lists(st.sampled_from((None, 50, 150, 250, 700)), min_size=2, max_size=6),
    free=st.integers(0, 2),
)
def test_rejection_when_equal_tasks_wait_behind_kept_nodes_then_each_is_told_what_it_is_told_alone(
    limits: Sequence[int | None], free: int
) -> None:
    def tell_last(alone: bool) -> tuple[Reason, dict[Reason, int]]:
        world = World.of(node(1, gpus=2), node(2, gpus=2), node(3, gpus=1))
        world.submit(request(count=1), 5 - free, limit=1000)
        world.run()
        world.submit(TWO, 2)
        world.now_us = 600 * SECOND_US
        asked = [world.submit(request(count=1, cpu=60_000), limit=limit)[0] for limit in limits]
        if alone:
            world.queue = [task for task in world.queue if task.id not in asked[:-1]]
        plan = world.run()
        found = plan.rejections.get(asked[-1])
        if found is None or any(task in placed_tasks(plan) for task in asked):
            return Reason.PLACEABLE, {}
        return found.reason, dict(found.counts)

    together, alone = tell_last(alone=False), tell_last(alone=True)
    assert Reason.PLACEABLE in (together[0], alone[0]) or together == alone
