"""Whose turn it is: policies of a virtual pool, and virtual pools among each other."""

import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond_contracts.bodies.tenants import Limit, QueuePolicy
from millpond_contracts.ids import TaskId, TenantId
from millpond_scheduler.domain.admission import VirtualPoolState
from millpond_scheduler.domain.fair_share import Share, Standing
from millpond_scheduler.domain.requests import measure_work
from millpond_scheduler.domain.verdicts import Reason
from tests.unit.scheduler.world import (
    RIVAL,
    SECOND_US,
    TENANT,
    World,
    check_invariants,
    node,
    placed_tasks,
    request,
    virtual_pool,
)

pytestmark = pytest.mark.unit

THIRD = TenantId(int=3)
FREE = Limit(borrow=64_000)


def one_by_one(world: World) -> list[TaskId]:
    """The tasks in the order of decision."""
    random.Random(3).shuffle(world.queue)
    return placed_tasks(world.plan())


def test_shortest_job_first_when_limits_differ_then_least_work_first_and_unbounded_last() -> None:
    world = World.of(node(1, gpus=8), pools=[virtual_pool(policy=QueuePolicy.SHORTEST_JOB_FIRST)])
    (unbounded,) = world.submit(request(), priority=99)
    (long,) = world.submit(request(count=1), work=measure_work(3600, 1000, 1))
    (wide,) = world.submit(request(count=2), work=measure_work(1200, 2000, 1))
    (short,) = world.submit(request(count=1), priority=1, work=measure_work(600, 1000, 1))
    (without_devices,) = world.submit(request(), work=measure_work(86_400, 0, 1))
    assert one_by_one(world) == [without_devices, short, wide, long, unbounded]


@given(
    time_limit=st.integers(1, 31_536_000), milli=st.integers(0, 64_000), tasks=st.integers(1, 1000), more=st.integers(1)
)
def test_work_when_anything_grows_then_never_falls(time_limit: int, milli: int, tasks: int, more: int) -> None:
    work = measure_work(time_limit, milli, tasks)
    assert work is not None
    for grown in ((time_limit + more, milli, tasks), (time_limit, milli + more, tasks), (time_limit, milli, tasks + 1)):
        larger = measure_work(*grown)
        assert larger is not None
        assert larger >= work
    assert measure_work(None, milli, tasks) is None


def test_fair_share_when_a_project_floods_then_the_others_have_their_turn() -> None:
    world = World.of(node(1, gpus=4), pools=[virtual_pool(policy=QueuePolicy.FAIR_SHARE)])
    flood = world.submit(request(count=1), 6, project=1, priority=900)
    world.now_us = SECOND_US
    small = world.submit(request(count=1), 2, project=2)
    assert one_by_one(world) == [flood[0], small[0], flood[1], small[1]]


def test_fair_share_when_a_project_holds_much_already_then_it_waits() -> None:
    world = World.of(node(1, gpus=6), pools=[virtual_pool(policy=QueuePolicy.FAIR_SHARE)])
    world.submit(request(count=1), 3, project=1)
    world.run()
    world.submit(request(count=1), 3, project=1)
    others = world.submit(request(count=1), 3)  # without a project: by themselves
    assert one_by_one(world) == others


def test_turns_when_one_asks_for_its_own_share_then_it_goes_before_whoever_borrows() -> None:
    pools = [
        virtual_pool(1, TENANT, devices={"a100": FREE}),
        virtual_pool(2, RIVAL, devices={"a100": Limit(guaranteed=2000, lend=2000)}),
    ]
    world = World.of(node(1, gpus=4), pools=pools)
    borrowed = world.submit(request(count=1), 4, priority=900)
    world.now_us = SECOND_US
    own = world.submit(request(count=1, tenant=RIVAL), 2, priority=1)
    assert one_by_one(world) == [*own, *borrowed[:2]]


def test_turns_when_two_borrow_then_what_is_left_follows_their_guarantees() -> None:
    pools = [
        virtual_pool(1, TENANT, devices={"a100": Limit(guaranteed=1000, borrow=64_000)}),
        virtual_pool(2, RIVAL, devices={"a100": Limit(guaranteed=3000, borrow=64_000)}),
    ]
    world = World.of(node(1, gpus=12), pools=pools)
    world.submit(request(count=1), 12, priority=900)
    world.submit(request(count=1, tenant=RIVAL), 12)
    world.run()
    started = [task.request.tenant for task in world.submitted.values() if world.snapshot.find_holding(task.id)]
    assert (started.count(TENANT), started.count(RIVAL)) == (3, 9)


def test_turns_when_one_needs_cpu_and_the_other_devices_then_dominant_shares_are_equal() -> None:
    # The example of the paper: 9 CPU and 18 of the other; (1, 4) and (3, 1) by task give 3 and 2 tasks.
    pools = [virtual_pool(1, TENANT), virtual_pool(2, RIVAL)]
    world = World.of(node(1, cpu=9_000, memory=18 * 1024), pools=pools)
    world.submit(request(cpu=1_000, memory=4 * 1024), 9)
    world.submit(request(cpu=3_000, memory=1 * 1024, tenant=RIVAL), 9)
    world.run()
    started = [task.request.tenant for task in world.submitted.values() if world.snapshot.find_holding(task.id)]
    assert (started.count(TENANT), started.count(RIVAL)) == (3, 2)


def test_turns_when_a_virtual_pool_is_guaranteed_nothing_then_it_is_served_last_and_not_never() -> None:
    pools = [
        virtual_pool(1, TENANT, devices={"a100": FREE}),
        virtual_pool(2, RIVAL, devices={"a100": Limit(guaranteed=1000, borrow=64_000)}),
    ]
    world = World.of(node(1, gpus=4), pools=pools)
    poor = world.submit(request(count=1), 4)
    rich = world.submit(request(count=1, tenant=RIVAL), 2)
    assert one_by_one(world) == [rich[0], poor[0], rich[1], poor[1]]


def test_head_when_its_hardware_is_full_then_others_of_its_queue_and_elsewhere_go_on_s2() -> None:
    world = World.of(node(1, gpus=2, flavor="h100"), node(2, gpus=2, flavor="t4"))
    flavors = {"h100": Limit(guaranteed=4000), "t4": Limit(guaranteed=1000)}
    world.pools = {
        each.id: each
        for each in (virtual_pool(1, TENANT, devices=flavors), virtual_pool(2, RIVAL, devices={"t4": FREE}))
    }
    world.submit(request(count=1, flavors=["h100"]))
    world.run()
    (head,) = world.submit(request(count=2, flavors=["h100"]), priority=99)
    (behind,) = world.submit(request(count=1, flavors=["t4"]))
    (elsewhere,) = world.submit(request(count=1, flavors=["t4"], tenant=RIVAL))
    world.now_us = 700 * SECOND_US  # the head is due to have its node kept free, which keeps nothing of the other
    plan = world.run()
    assert sorted(placed_tasks(plan)) == [behind, elsewhere]
    assert plan.rejections[head].reason is Reason.NOT_ENOUGH_DEVICES


def test_turns_when_the_next_in_a_queue_has_no_room_then_whoever_stands_first_is_still_served_in_between() -> None:
    world = World.of(node(1, gpus=3), pools=[virtual_pool(1, TENANT), virtual_pool(2, RIVAL)])
    world.submit(request(count=9), 3)  # never fits: equals behind it are asked at once
    mine = world.submit(request(count=1), 2)
    others = world.submit(request(count=1, tenant=RIVAL), 2)
    plan = world.plan()
    assert placed_tasks(plan) == [mine[0], others[0], mine[1]]
    assert plan.examined == 7


amounts = st.integers(0, 1 << 62)
shares = st.tuples(amounts, st.integers(1, 1 << 62))


@given(one=shares, other=shares)
def test_shares_when_compared_then_as_exact_fractions(one: tuple[int, int], other: tuple[int, int]) -> None:
    assert (Share(*one) < Share(*other)) == (Fraction(*one) < Fraction(*other))
    assert (Share(*one) == Share(*other)) == (Fraction(*one) == Fraction(*other))


@given(one=shares, other=shares, more=st.integers(0, 2))
def test_standings_when_compared_then_as_exact_shares(one: tuple[int, int], other: tuple[int, int], more: int) -> None:
    for held, of in (other, (one[0] + more, one[1]), (one[0], one[1] + more)):  # near ones are alike as floats
        first, second = Standing.of(Share(*one), borrows=False), Standing.of(Share(held, of), borrows=False)
        assert (first < second) == (Fraction(*one) < Fraction(held, of))
        assert (first == second) == (Fraction(*one) == Fraction(held, of))


def build(seed: int, pools: list[VirtualPoolState]) -> World:
    chance = random.Random(seed)
    world = World.of(node(1, gpus=4), node(2, gpus=4), pools=pools)
    for number in range(40):
        wanted = request(
            cpu=chance.choice([1_000, 4_000]),
            count=chance.choice([0, 1, 2]),
            tenant=chance.choice([TENANT, RIVAL, THIRD]),
        )
        world.now_us = number
        work = chance.choice([None, 600, 7200])
        world.submit(wanted, priority=chance.choice([10, 50]), project=chance.choice([None, 1, 2]), work=work)
    return world


limits = st.builds(
    lambda guaranteed, borrow, lend: Limit(guaranteed=guaranteed, borrow=borrow, lend=min(lend, guaranteed)),
    *(st.integers(0, 4).map(lambda devices: devices * 1000) for _ in range(3)),
)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    given_limits=st.lists(limits, min_size=3, max_size=3),
    policies=st.lists(st.sampled_from(QueuePolicy), min_size=3, max_size=3),
)
def test_plan_when_what_waits_is_read_in_any_order_then_is_the_same_and_within_the_limits(
    seed: int, given_limits: list[Limit], policies: list[QueuePolicy]
) -> None:
    pools = [
        virtual_pool(1 + place, (TENANT, RIVAL, THIRD)[place], devices={"a100": limit}, policy=policy)
        for place, (limit, policy) in enumerate(zip(given_limits, policies, strict=True))
    ]
    world, twin = build(seed, pools), build(seed, list(reversed(pools)))
    random.Random(seed).shuffle(twin.queue)
    first, second = world.run(), twin.run()
    assert first.placements == second.placements
    assert dict(first.rejections) == dict(second.rejections)
    check_invariants(world)
