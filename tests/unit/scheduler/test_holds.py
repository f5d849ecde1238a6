"""What is kept free for a head is used meanwhile by those that end before its start, and by nobody else."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond_contracts.ids import NodeId, TaskId
from millpond_scheduler.domain.explain import explain
from millpond_scheduler.domain.plans import Plan
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.verdicts import Reason
from tests.unit.scheduler.world import SECOND_US, World, check_invariants, node, placed_tasks, request

pytestmark = pytest.mark.unit

ONE = request(count=1)


def start_and_wait(world: World, head: RequestClass, gang_of: int = 0) -> TaskId:
    """Start what is queued, queue the head, and wait until nodes are kept for it: second 600."""
    world.run()
    first = world.members(world.submit_gang(head, gang_of))[0] if gang_of else world.submit(head)[0]
    world.now_us = 600 * SECOND_US
    return first


def test_backfill_when_a_task_ends_before_the_head_can_start_then_it_uses_the_kept_node_s1() -> None:
    world = World.of(node(1, gpus=4))
    world.submit(ONE, 2, limit=1000)
    head = start_and_wait(world, request(count=4))
    (unlimited,) = world.submit(ONE)
    (too_long,) = world.submit(ONE, limit=401)
    (short,) = world.submit(ONE, limit=400)
    plan = world.run()
    assert plan.earmarks == {head: node(1).id}
    assert plan.rejections[head].starts_us == 1000 * SECOND_US
    assert placed_tasks(plan) == [short]
    assert {plan.rejections[task].reason for task in (unlimited, too_long)} == {Reason.EARMARKED}


def test_backfill_when_a_running_task_has_no_limit_then_nothing_may_use_the_kept_node() -> None:
    world = World.of(node(1, gpus=4))
    world.submit(ONE)
    world.submit(ONE, limit=1000)
    head = start_and_wait(world, request(count=4))
    world.submit(ONE, limit=1)
    plan = world.run()
    assert plan.earmarks == {head: node(1).id}
    assert plan.rejections[head].starts_us is None
    assert placed_tasks(plan) == []


def test_hold_when_limits_tell_then_the_node_that_is_free_first_is_kept_though_it_lacks_more() -> None:
    world = World.of(node(1, gpus=4), node(2, gpus=4))
    world.submit(ONE, limit=9000)  # one on n1
    world.run()
    world.submit(request(count=2), limit=900)  # fills n1 to three
    world.submit(request(count=3), limit=800)  # on n2
    head = start_and_wait(world, request(count=4))
    plan = world.run()
    assert plan.earmarks == {head: node(2).id}
    assert plan.rejections[head].starts_us == 800 * SECOND_US


def test_hold_when_a_gang_waits_then_its_nodes_are_those_with_least_remaining_work_s6() -> None:
    world = World.of(node(1, gpus=2), node(2, gpus=2), node(3, gpus=2))
    for limit in (5000, 700, 900):
        world.submit(request(count=2), limit=limit)
        world.run()
    first = start_and_wait(world, ONE, gang_of=3)
    gang = world.submitted[first].gang
    assert gang is not None
    members = world.members(gang)
    plan = world.run()
    assert plan.rejections[first].starts_us == 900 * SECOND_US
    assert sorted(plan.earmarks[task] for task in members) == [node(2).id, node(2).id, node(3).id]


def test_hold_when_limits_tell_the_start_then_it_stands_until_then() -> None:
    world = World.of(node(1, gpus=4))
    (running,) = world.submit(ONE, limit=20_000)
    head = start_and_wait(world, request(count=4))
    for second in (700, 4_300, 10_000):  # in turns it would be everybody's from 4200 to 4800
        world.now_us = second * SECOND_US
        (small,) = world.submit(ONE)
        plan = world.run()
        assert plan.earmarks == {head: node(1).id}
        assert plan.rejections[small].reason is Reason.EARMARKED
    world.release(running)
    assert head in placed_tasks(world.run())


def test_hold_when_several_wait_long_then_nodes_are_kept_for_as_many_as_an_eighth_of_them_is_enough_for() -> None:
    world = World.of(*(node(number, gpus=2) for number in range(1, 17)))
    for number in range(16):
        world.submit(request(cpu=40_000, count=1), limit=2_000 + 100 * number)
        world.run()
    for number in range(9):
        world.submit(request(cpu=1_000 + number, count=3))  # no node could ever take it
    waiting = world.submit(request(count=2), 4)
    world.now_us = 600 * SECOND_US
    plan = world.run()
    assert plan.earmarks == {waiting[0]: node(1).id, waiting[1]: node(2).id}
    assert [plan.rejections[task].starts_us for task in waiting] == [2_000 * SECOND_US, 2_100 * SECOND_US, None, None]
    # By when a task has ended says which of the kept nodes it may use.
    for _ in range(14):
        world.submit(request(count=1, cpu=20_000))
        world.run()
    too_long, second, both = (world.submit(ONE, limit=limit)[0] for limit in (1_501, 1_500, 1_400))
    plan = world.run()
    assert plan.rejections[too_long].counts[Reason.EARMARKED] == 2
    assert {one.holding.task: one.holding.node for one in plan.placements} == {second: node(2).id, both: node(1).id}


def test_hold_when_a_head_could_only_ever_use_other_nodes_then_it_holds_up_no_hold_there() -> None:
    large = node(2, gpus=2, cpu=128_000, flavor="t4")
    world = World.of(node(1, gpus=2), large)
    for wanted in (ONE, request(count=1, flavors=("t4",))):
        world.submit(wanted)  # without a limit: nobody can tell when it ends
        world.run()
    huge = start_and_wait(world, request(cpu=100_000, count=2))
    (other,) = world.submit(request(count=2))
    world.now_us = 1_300 * SECOND_US
    assert world.run().earmarks == {huge: large.id, other: node(1).id}


def test_estimate_when_only_the_head_is_next_then_it_alone_is_told_and_at_once() -> None:
    world = World.of(node(1, gpus=2))
    world.submit(ONE, 2, limit=300)
    world.run()
    head, behind = world.submit(request(count=2), 2)
    plan = world.run()
    assert plan.earmarks == {}
    assert [plan.rejections[task].starts_us for task in (head, behind)] == [300 * SECOND_US, None]
    told = explain(world.snapshot, world.submitted[head], world.states(), rejection=plan.rejections[head])
    assert told.starts_us == 300 * SECOND_US


def test_estimate_when_tasks_of_the_same_batch_took_the_room_then_their_limits_count_too() -> None:
    world = World.of(node(1, gpus=2))
    world.submit(ONE, 2, limit=300)
    (head,) = world.submit(request(count=2))
    assert world.run().rejections[head].starts_us == 300 * SECOND_US


def test_estimate_when_a_task_has_outlived_its_limit_then_it_is_expected_to_end_at_any_moment() -> None:
    world = World.of(node(1, gpus=2))
    world.submit(ONE, limit=10)
    head = start_and_wait(world, request(count=2))
    world.submit(ONE, limit=1)
    plan = world.run()
    assert plan.rejections[head].starts_us == world.now_us
    assert placed_tasks(plan) == []


@dataclass
class Run:
    """A pool under a head and a stream, second by second."""

    world: World
    durations: dict[TaskId, int] = field(default_factory=dict)

    def submit(self, wanted: RequestClass, limit: int | None, duration: int) -> None:
        (task,) = self.world.submit(wanted, limit=limit)
        self.durations[task] = duration

    def step(self, second: int) -> Plan:
        world = self.world
        world.now_us = second * SECOND_US
        for task, duration in list(self.durations.items()):
            started = world.started_us.get(task)
            if started is not None and started + duration * SECOND_US <= world.now_us:
                world.release(task)
                del self.durations[task]
        plan = world.run()
        check_invariants(world)
        return plan


ARRIVALS = st.lists(
    st.tuples(
        st.integers(3, 40),
        st.integers(1, 2),
        st.integers(1, 50),
        st.integers(1, 50),
        st.sampled_from((True, True, False)),
    ),
    min_size=8,
    max_size=12,
)
Arrivals = list[tuple[int, int, int, int, bool]]


def run_stream(arrivals: Arrivals, gang_of: int, *, is_early: bool, is_cut: bool) -> tuple[int, int | None, int]:
    """When a gang starts, what was promised when nodes were first kept for it, and how many used them meanwhile.

    Arrivals are (second, devices, limit, duration, whether there is a limit). They last as long as they may, or with
    `is_early` as they say. `is_cut` ends the stream once nodes are kept.
    """
    run = Run(World.of(node(1, gpus=4), node(2, gpus=4), node(3, gpus=2)))
    run.world.policy = Policy(hold_after_seconds=5, hold_seconds=100_000)
    for number in range(10):
        run.submit(ONE, 10 + 7 * number, (5 if is_early else 10) + 7 * number)
    run.step(0)
    members = run.world.members(run.world.submit_gang(request(count=2), gang_of))
    promised, kept, passed = None, frozenset[NodeId](), 0
    for second in range(1, 200):
        for at, count, limit, duration, is_limited in arrivals:
            if at == second and not (is_cut and kept):
                lasts = limit if is_limited else None
                run.submit(request(count=count), lasts, min(duration, limit) if is_early else limit)
        plan = run.step(second)
        if members[0] in placed_tasks(plan):
            return second, promised, passed
        passed += sum(placement.holding.node in kept for placement in plan.placements)
        if plan.earmarks and promised is None:
            starts = plan.rejections[members[0]].starts_us
            promised = None if starts is None else starts // SECOND_US
        kept = frozenset(plan.earmarks.values())
    raise AssertionError("it never started")


@given(arrivals=ARRIVALS, gang_of=st.integers(1, 5))
@settings(max_examples=12)
def test_backfill_when_everything_lasts_to_its_limit_then_the_head_starts_when_it_would_without(
    arrivals: Arrivals, gang_of: int
) -> None:
    alone, _, _ = run_stream(arrivals, gang_of, is_early=False, is_cut=True)
    beside, promised, _ = run_stream(arrivals, gang_of, is_early=False, is_cut=False)
    assert beside == alone
    assert promised in (None, beside)


@given(arrivals=ARRIVALS, gang_of=st.integers(1, 5))
@settings(max_examples=12)
def test_backfill_when_work_ends_before_its_limit_then_the_head_is_never_later_than_promised(
    arrivals: Arrivals, gang_of: int
) -> None:
    started, promised, _ = run_stream(arrivals, gang_of, is_early=True, is_cut=False)
    assert promised is None or started <= promised


def test_backfill_when_short_tasks_stream_past_then_they_use_what_is_kept_and_the_head_starts_in_time_case_32() -> None:
    arrivals = [(second, 1, 6, 6, True) for second in range(1, 60)]
    started, promised, passed = run_stream(arrivals, 5, is_early=False, is_cut=False)
    assert (started, passed > 20) == (promised, True)
