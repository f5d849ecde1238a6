"""Who may stop whose work, as little as possible, and never again and again."""

from dataclasses import replace
from graphlib import TopologicalSorter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millpond_contracts.bodies.tenants import Limit, Preemption, QueuePolicy
from millpond_contracts.ids import TaskId, TenantId
from millpond_scheduler.domain.admission import VirtualPoolState
from millpond_scheduler.domain.explain import explain
from millpond_scheduler.domain.plans import Spared
from millpond_scheduler.domain.preemption import Eviction, Evictions
from millpond_scheduler.domain.verdicts import Reason
from tests.unit.scheduler.world import (
    PLENTY,
    RIVAL,
    SECOND_US,
    TENANT,
    World,
    check_invariants,
    contents,
    node,
    placed_tasks,
    request,
    virtual_pool,
)

pytestmark = pytest.mark.unit

THIRD = TenantId(int=3)


def own(
    number: int = 1, tenant: TenantId = TENANT, devices: Limit = PLENTY, cpu: Limit = PLENTY, **changes: Any
) -> VirtualPoolState:
    """A virtual pool in which a higher priority stops a lower one."""
    state = virtual_pool(number, tenant, devices={"a100": devices}, cpu=cpu)
    return replace(state, preemption=Preemption.LOWER_PRIORITY, **changes)


def full(devices: int, pools: list[VirtualPoolState], *, priority: int = 10) -> tuple[World, list[TaskId]]:
    """One node whose devices are all held by tasks of the first virtual pool, the oldest first."""
    world = World.of(node(1, gpus=devices), pools=pools)
    tasks = []
    for _ in range(devices):
        world.now_us += 60 * SECOND_US
        tasks += world.submit(request(count=1), priority=priority)
        world.run()
    assert not world.queue
    return world, tasks


def settle(world: World, rounds: int = 20, noted: list[Eviction] | None = None) -> list[tuple[TaskId, TaskId]]:
    """Runs until nothing changes, each victim waiting again at its old place; returns who was stopped for whom.

    With `noted` every stop is, and the next ones are judged by them.
    """
    stopped = []
    for _ in range(rounds):
        plan = world.run()
        check_invariants(world)
        new = [(reclaim.claimant, victim) for reclaim in plan.reclaims for victim in reclaim.victims]
        stopped += new
        if noted is not None:
            noted += [Eviction(victim, claimant, world.now_us) for claimant, victim in new]
            world.evictions = Evictions.of(noted, 0, world.now_us)
        victims = sorted(task for task in world.stopping if world.snapshot.find_holding(task) is not None)
        world.release(*victims)
        world.queue += [world.submitted[task] for task in victims]
        world.now_us += 10 * SECOND_US
        if not plan.placements and not plan.reclaims and not victims:
            return stopped
    raise AssertionError(f"still going after {rounds} rounds: {stopped}")


def test_preemption_when_one_of_eleven_suffices_then_exactly_the_cheapest_stops_case_7() -> None:
    world, tasks = full(11, [own()])
    before = contents(world.snapshot)
    (urgent,) = world.submit(request(count=1), priority=90)
    plan = world.run()
    assert [(one.claimant, one.victims) for one in plan.reclaims] == [(urgent, (tasks[-1],))], "the youngest lost least"
    assert plan.rejections[urgent].reason is Reason.PREEMPTING
    assert contents(world.snapshot) == before, "it stays charged until it is gone"
    world.release_stopping()
    assert placed_tasks(world.run()) == [urgent]


def test_preemption_when_the_limit_is_reached_then_the_cheapest_of_it_stops_though_nodes_have_room() -> None:
    world, tasks = full(2, [own(devices=Limit(guaranteed=2000))])
    world.snapshot.upsert_node(node(2, gpus=8))
    (urgent,) = world.submit(request(count=1), priority=90)
    plan = world.run()
    assert [one.victims for one in plan.reclaims] == [(tasks[-1],)]
    assert world.run().reclaims == ()
    world.release_stopping()
    assert placed_tasks(world.run()) == [urgent]
    check_invariants(world)


def test_preemption_when_two_are_urgent_then_each_has_victims_of_its_own() -> None:
    world, tasks = full(4, [own(devices=Limit(guaranteed=4000))])
    urgent = world.submit(request(count=1), 3, priority=90)
    plan = world.run()
    assert [one.claimant for one in plan.reclaims] == urgent
    assert len({victim for one in plan.reclaims for victim in one.victims}) == 3
    world.release_stopping()
    assert placed_tasks(world.run()) == urgent
    assert world.snapshot.find_holding(tasks[0]) is not None


def test_preemption_when_not_asked_for_or_not_lower_or_of_others_then_nothing_stops() -> None:
    for pools, priority in (
        ([virtual_pool(1, TENANT)], 90),
        ([own()], 10),
        ([replace(own(), policy=QueuePolicy.FIFO)], 90),
    ):
        world, _ = full(2, pools)
        world.submit(request(count=1), priority=priority)
        assert world.run().reclaims == ()
    world, _ = full(2, [own(1), own(2, RIVAL)])
    world.submit(request(count=1, tenant=RIVAL), priority=90)
    assert world.run().reclaims == ()


def test_preemption_when_the_claimant_would_fail_its_limit_all_the_same_then_nobody_stops_case_5() -> None:
    world, _ = full(2, [own(devices=Limit(guaranteed=2000))], priority=50)
    world.submit(request(count=3), priority=90)  # more than it may ever hold
    world.snapshot.upsert_node(node(2, gpus=3))
    plan = world.run()
    assert plan.reclaims == ()
    assert not world.stopping


def test_preemption_when_something_is_lent_then_that_comes_back_before_own_work_stops() -> None:
    rival = virtual_pool(2, RIVAL, cpu=Limit(guaranteed=64_000))  # with much of its own: of its weight it holds less
    share = own(1, devices=Limit(guaranteed=3000, lend=3000), cpu=Limit(guaranteed=3_000))
    world = World.of(node(1, gpus=3), pools=[share, rival])
    mine = world.submit(request(count=1), 2, priority=1)
    lent = world.submit(request(count=1, tenant=RIVAL), priority=900)
    world.run()
    world.submit(request(count=1), priority=90)
    plan = world.run()
    assert [one.victims for one in plan.reclaims] == [tuple(lent)]
    assert plan.rejections[plan.reclaims[0].claimant].reason is Reason.RECLAIMING
    assert not world.stopping & set(mine)


def test_preemption_when_a_gang_is_urgent_then_all_its_room_is_made_at_once_and_no_more() -> None:
    world, tasks = full(6, [own()])
    gang = world.submit_gang(request(count=2), 2, priority=90)
    members = world.members(gang)
    plan = world.run()
    assert len(plan.reclaims) == 1
    assert sorted(plan.reclaims[0].victims) == sorted(tasks[-4:])
    world.release_stopping()
    assert placed_tasks(world.run()) == members


def test_preemption_when_a_high_priority_borrower_stopped_an_older_one_then_it_stays_so_case_10() -> None:
    pools = [own(1, devices=Limit(guaranteed=1000, borrow=1000)), virtual_pool(2, RIVAL, devices={"a100": PLENTY})]
    world, tasks = full(2, pools)
    (urgent,) = world.submit(request(count=1), priority=90)
    assert settle(world) == [(urgent, tasks[-1])]
    assert world.snapshot.find_holding(urgent) is not None
    assert [task.id for task in world.queue] == [tasks[-1]], "older, and it waits behind what it was stopped for"


def test_reclaim_when_the_claimant_holds_the_larger_share_then_the_victim_is_not_let_in_again_case_11() -> None:
    pools = [
        virtual_pool(1, TENANT, devices={"a100": Limit(guaranteed=6000, lend=6000)}),
        virtual_pool(2, RIVAL, devices={"a100": Limit(borrow=8000)}),
    ]
    world = World.of(node(1, gpus=6), pools=pools)
    world.submit(request(count=5))
    world.run()
    lent = world.submit(request(count=1, tenant=RIVAL), priority=900)
    world.run()
    (mine,) = world.submit(request(count=1))
    assert settle(world) == [(mine, lent[0])]
    assert world.snapshot.find_holding(mine) is not None


@pytest.mark.parametrize("preemption", Preemption)
def test_reclaim_when_each_is_guaranteed_what_the_other_borrows_then_nothing_goes_to_and_fro_s4(
    preemption: Preemption,
) -> None:
    cpu, devices = Limit(guaranteed=31_000, lend=31_000), Limit(guaranteed=1000, lend=1000)
    pools = [
        virtual_pool(1, TENANT, cpu=Limit(borrow=30_000), devices={"a100": devices}),
        virtual_pool(2, RIVAL, cpu=cpu, devices={"a100": Limit(borrow=1000)}),
    ]
    pools = [replace(each, preemption=preemption) for each in pools]
    world = World.of(node(1, gpus=1, cpu=30_000), pools=pools)
    world.submit(request(cpu=30_000, count=1))
    world.run()
    world.snapshot.upsert_node(node(2, cpu=1_000))
    world.submit(request(tenant=RIVAL), priority=1)
    world.run()
    world.submit(request(cpu=30_000, count=1, tenant=RIVAL))
    assert settle(world) == [], "it asks for what is its own and for what is not"


def test_minimum_runtime_when_it_is_not_over_then_the_task_is_spared_and_the_other_says_so() -> None:
    world, tasks = full(1, [own(minimum_runtime_seconds=600)])
    (urgent,) = world.submit(request(count=1), priority=90)
    plan = world.run()
    assert plan.reclaims == ()
    rejection = plan.rejections[urgent]
    assert rejection.spared == {Spared.MINIMUM_RUNTIME: 1}
    assert not plan.halted
    told = explain(world.snapshot, world.submitted[urgent], world.states(), rejection=rejection)
    assert any("minimum time" in item.action for item in told.would_unblock)
    world.now_us += 600 * SECOND_US
    assert [one.victims for one in world.run().reclaims] == [tuple(tasks)]


def test_evictions_when_a_pair_meets_again_or_a_task_was_stopped_too_often_then_it_is_halted_case_10() -> None:
    world, tasks = full(1, [own()])
    (urgent,) = world.submit(request(count=1), priority=90)
    between = TaskId(int=76)
    for before, why in (
        ([Eviction(tasks[0], urgent, world.now_us)], Spared.LOOP),
        ([Eviction(urgent, tasks[0], world.now_us)], Spared.LOOP),
        ([Eviction(between, tasks[0], world.now_us), Eviction(urgent, between, world.now_us)], Spared.LOOP),
        ([Eviction(tasks[0], TaskId(int=77 + n), world.now_us) for n in range(3)], Spared.STOPPED_TOO_OFTEN),
    ):
        world.evictions = Evictions.of(before, 3, world.now_us)
        plan = world.plan()
        assert plan.reclaims == ()
        assert [(one.claimant, one.victim, one.why) for one in plan.halted] == [(urgent, tasks[0], why)]
        assert plan.rejections[urgent].spared == {why: 1}
    world.now_us += 3600 * SECOND_US
    world.evictions = Evictions.of([Eviction(tasks[0], urgent, 60 * SECOND_US)], 3, world.now_us)
    assert [one.victims for one in world.run().reclaims] == [(tasks[0],)]


def test_reclaim_when_two_ask_for_their_own_and_one_victim_leaves_then_only_one_gets_it_case_8() -> None:
    owner = Limit(guaranteed=3000, lend=3000)  # of three devices: more is promised than there is
    pools = [
        virtual_pool(1, TENANT, devices={"a100": Limit(borrow=3000)}),
        virtual_pool(2, RIVAL, devices={"a100": owner}),
        virtual_pool(3, THIRD, devices={"a100": owner}),
    ]
    world = World.of(node(1, gpus=3), pools=pools)
    world.submit(request(count=3))
    world.run()
    asked = [*world.submit(request(count=3, tenant=RIVAL)), *world.submit(request(count=3, tenant=THIRD))]
    assert [one.claimant for one in world.run().reclaims] == asked[:1], "the second sees the room that is promised"
    world.release_stopping()
    assert placed_tasks(world.run()) == asked[:1]
    assert world.run().reclaims == ()
    check_invariants(world)


def test_limits_when_they_are_lowered_below_use_then_every_difference_saturates_case_34() -> None:
    world, _ = full(4, [virtual_pool(1, TENANT, devices={"a100": Limit(guaranteed=4000)})])
    lowered = virtual_pool(1, TENANT, devices={"a100": Limit(guaranteed=1000, lend=1000)})
    world.pools = {lowered.id: lowered, **{each.id: each for each in [virtual_pool(2, RIVAL)]}}
    (mine,) = world.submit(request(count=1))
    world.snapshot.upsert_node(node(2, gpus=1))
    (other,) = world.submit(request(count=1, tenant=RIVAL))
    plan = world.run()
    assert placed_tasks(plan) == [other]
    (line,) = [line for line in plan.rejections[mine].admission if line.missing]
    assert (line.limit, line.used, line.borrowed, line.missing) == (1000, 4000, 3000, 4000)
    for refused in ({"guaranteed": 2, "hard": 1}, {"guaranteed": 1, "lend": 2}, {"borrow": -1}):
        with pytest.raises(ValueError, match=r"hard|lend|borrow"):
            Limit(**refused)


shares = st.builds(
    lambda guaranteed, borrow, lend: Limit(guaranteed=guaranteed, borrow=borrow, lend=min(lend, guaranteed)),
    *(st.integers(0, 4).map(lambda devices: devices * 1000) for _ in range(3)),
)
wishes = st.lists(
    st.tuples(st.sampled_from([TENANT, RIVAL, THIRD]), st.integers(1, 3), st.sampled_from([10, 50, 90]), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(limits=st.lists(shares, min_size=3, max_size=3), waves=st.lists(wishes, min_size=1, max_size=3))
@example(
    # In two virtual pools one of three that borrows takes the place of one of two that does not, and is stopped for the
    # other's two: round and round.
    limits=[Limit(guaranteed=1000), *[Limit(guaranteed=2000, borrow=1000, lend=1000)] * 2],
    waves=[
        [
            (TENANT, 1, 10, False),
            *[(RIVAL, 2, 10, False), (RIVAL, 3, 50, False)],
            *[(THIRD, 2, 10, False), (THIRD, 3, 50, False)],
        ]
    ],
)
def test_stops_when_anybody_asks_for_anything_then_they_end_and_make_no_circle(
    limits: list[Limit], waves: list[list[tuple[TenantId, int, int, bool]]]
) -> None:
    pools = [own(1 + place, (TENANT, RIVAL, THIRD)[place], limit) for place, limit in enumerate(limits)]
    world, noted = World.of(node(1, gpus=3), node(2, gpus=2), pools=pools), list[Eviction]()
    for wave in waves:
        for tenant, devices, priority, is_gang in wave:
            wanted = request(count=devices, tenant=tenant)
            if is_gang:
                world.submit_gang(request(count=1, tenant=tenant), devices, priority=priority)
            else:
                world.submit(wanted, priority=priority)
        settle(world, rounds=100, noted=noted)
        pairs = [(one.claimant, one.victim) for one in noted]
        assert len(set(pairs)) == len(pairs)
        made_room: dict[TaskId, set[TaskId]] = {}
        for claimant, victim in pairs:
            made_room.setdefault(claimant, set()).add(victim)
        TopologicalSorter(made_room).prepare()  # refuses a circle
