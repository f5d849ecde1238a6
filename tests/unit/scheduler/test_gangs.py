"""Gangs start whole or not at all, hold nothing while they wait, and are not passed for ever by small tasks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond_contracts.bodies.tenants import Limit
from millpond_scheduler.domain.explain import explain
from millpond_scheduler.domain.plans import GangRoom
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.domain.requests import Gang
from millpond_scheduler.domain.verdicts import Reason
from tests.unit.scheduler.world import (
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

ONE = request(count=1)


def test_gang_when_every_task_finds_a_place_then_all_start_in_one_batch() -> None:
    world = World.of(node(1, gpus=2), node(2, gpus=2))
    gang = world.submit_gang(ONE, 4)
    members = world.members(gang)
    assert placed_tasks(world.run()) == members
    check_invariants(world)


def test_gang_when_one_task_finds_no_place_then_none_starts_and_nothing_is_held() -> None:
    world = World.of(node(1, gpus=2), node(2, gpus=1))
    before = contents(world.snapshot)
    gang = world.submit_gang(ONE, 4)
    plan = world.run()
    assert plan.placements == ()
    assert contents(world.snapshot) == before
    assert len({id(plan.rejections[task]) for task in world.members(gang)}) == 1
    rejection = plan.rejections[world.members(gang)[0]]
    assert (rejection.reason, rejection.gang) == (Reason.NOT_ENOUGH_DEVICES, GangRoom(tasks=4, fitting=3))
    assert sum(rejection.counts.values()) == 2


def test_gang_when_it_waits_then_smaller_work_behind_it_goes_on_s6() -> None:
    world = World.of(node(1, gpus=2), node(2, gpus=2))
    block = world.submit(request(count=4))
    gang = world.submit_gang(request(count=2), 3)
    small = world.submit(ONE, 4)
    plan = world.run()
    assert placed_tasks(plan) == small
    assert plan.rejections[block[0]].reason in {Reason.NOT_ENOUGH_DEVICES, Reason.LARGEST_FREE_BLOCK_TOO_SMALL}
    assert plan.rejections[world.members(gang)[0]].gang == GangRoom(3, 2)


def test_gang_when_the_limit_ends_inside_it_then_none_starts_and_the_limit_is_free_for_others() -> None:
    share = virtual_pool(1, TENANT, devices={"a100": Limit(guaranteed=3000)})
    world = World.of(node(1, gpus=8), pools=[share])
    gang = world.submit_gang(ONE, 4)
    behind = world.submit(ONE, 3)
    plan = world.run()
    assert placed_tasks(plan) == behind
    rejection = plan.rejections[world.members(gang)[0]]
    assert (rejection.reason, rejection.gang) == (Reason.LIMIT_REACHED, GangRoom(4, 3))
    check_invariants(world)


def test_gang_when_a_task_of_it_still_runs_then_the_others_wait_for_it() -> None:
    world = World.of(node(1, gpus=8))
    gang = world.submit_gang(ONE, 3)
    world.queue.pop()
    plan = world.run()
    assert plan.placements == ()
    assert {plan.rejections[task].reason for task in world.members(gang)} == {Reason.GANG_STOPPING}


def test_gang_when_larger_than_a_batch_then_it_is_a_batch_of_its_own() -> None:
    world = World.of(node(1, gpus=8))
    first = world.submit(ONE, priority=90)
    gang = world.submit_gang(ONE, 4)
    members = world.members(gang)
    assert placed_tasks(world.run(max_tasks=2)) == first
    assert placed_tasks(world.run(max_tasks=2)) == members


def test_gang_when_room_goes_to_one_group_only_then_none_starts_and_the_other_is_named_case_3() -> None:
    world = World.of(node(1, gpus=4), node(2, cpu=4_000))
    gang = world.submit_roles(("t1", request(count=1, cpu=1_000), 3), ("t2", request(count=1, cpu=50_000), 2))
    before = contents(world.snapshot)
    plan = world.run()
    assert plan.placements == ()
    assert contents(world.snapshot) == before
    task = world.submitted[world.members(gang)[0]]
    rejection = plan.rejections[task.id]
    assert rejection.gang == GangRoom(5, 1, "t2", 2, 1)
    told = explain(world.snapshot, task, world.states(), rejection=rejection)
    assert told.message.startswith("room for 1 of the gang's 5 tasks (t2 has room for 1 of 2), which start together: ")
    assert next(line for line in told.admission if line.resource == "cpu").requested == 100_000
    assert "with nothing running the pool could hold 1 of its 2 tasks" in {item.effect for item in told.would_unblock}


def test_gang_when_every_group_finds_room_then_all_groups_start_in_one_batch() -> None:
    world = World.of(node(1, gpus=4), node(2, cpu=8_000))
    gang = world.submit_roles(("driver", request(cpu=2_000), 1), ("workers", request(count=1), 4))
    members = world.members(gang)
    plan = world.run(max_tasks=2)
    assert sorted(placed_tasks(plan)) == sorted(members)
    check_invariants(world)


def test_hold_when_a_gang_of_several_groups_waits_then_nodes_are_kept_for_each_until_all_have_room() -> None:
    world = World.of(node(1, gpus=4, cpu=8_000), node(2, cpu=8_000))
    world.submit(request(count=4, cpu=8_000), limit=900)
    world.run()
    world.submit(request(cpu=8_000), limit=800)
    world.run()
    gang = world.submit_roles(("driver", request(cpu=8_000), 1), ("workers", request(count=1, cpu=2_000), 4))
    world.now_us = 700 * SECOND_US
    plan = world.run()
    first = next(task for task in world.members(gang) if world.submitted[task].group == "workers")
    assert plan.rejections[first].starts_us == 900 * SECOND_US
    assert set(plan.earmarks.values()) == {node(1).id, node(2).id}


def test_gang_when_a_part_of_it_waits_again_then_no_newcomer_joins_an_older_one_case_1() -> None:
    """A gang is what its job says, and a job never changes: a member without the rest of its gang is not started."""
    world = World.of(node(1, gpus=8))
    gang = world.submit_roles(("t1", ONE, 2), ("t2", request(count=1, cpu=2_000), 2))
    late = [world.queue.pop() for _ in range(2)]
    assert {world.run().rejections[task].reason for task in world.members(gang)} == {Reason.GANG_STOPPING}
    world.queue += late
    assert len(world.run().placements) == 4


@given(
    devices=st.lists(st.integers(0, 8), min_size=1, max_size=12),
    held=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 40)), max_size=8),
    wanted=st.sampled_from([(1, 1), (1, 9), (2, 3), (4, 1), (0, 17)]),
    size=st.integers(2, 30),
)
@settings(max_examples=40)
def test_gang_when_its_tasks_are_placed_together_then_as_many_find_room_as_one_by_one(
    devices: list[int], held: list[tuple[int, int]], wanted: tuple[int, int], size: int
) -> None:
    def started(*, as_gang: bool) -> int:
        world = World.of(*(node(number, gpus=count) for number, count in enumerate(devices, 1)))
        for count, cpu in held:
            world.submit(request(count=count, cpu=1_000 * cpu))
        world.run()
        world.queue.clear()
        each = request(count=wanted[0], cpu=1_000 * wanted[1])
        if as_gang:
            world.submit_gang(each, size)
        else:
            world.submit(each, size)
        plan = world.run()
        check_invariants(world)
        if not as_gang or plan.placements:
            return len(plan.placements)
        return next(each.gang.fitting for each in plan.rejections.values() if each.gang is not None)

    assert started(as_gang=True) == started(as_gang=False)


def run_stream(policy: Policy, gang_of: int, rounds: int = 60) -> tuple[World, Gang]:
    """Two nodes of four devices under a steady stream of small tasks, one ending and one coming each 30 s."""
    world = World.of(node(1, gpus=4), node(2, gpus=4))
    world.policy = policy
    running = list(world.submit(ONE, 8))
    world.run()
    gang = world.submit_gang(ONE, gang_of)
    for _ in range(rounds):
        world.now_us += 30 * SECOND_US
        world.snapshot.release_allocation(running.pop(0))
        world.submit(ONE)
        plan = world.run()
        placed = placed_tasks(plan)
        if len(placed) >= gang_of:
            break
        running += placed
        check_invariants(world)
    return world, gang


def test_gang_when_small_tasks_stream_past_then_it_starts_after_the_wait_bound_s1() -> None:
    never = Policy(hold_after_seconds=86_400)
    world, gang = run_stream(never, 4)
    assert world.members(gang), "without a hold the stream passes it for ever"
    world, gang = run_stream(Policy(hold_after_seconds=600), 4)
    assert not world.members(gang)
    assert world.now_us <= (600 + 8 * 30) * SECOND_US  # at most until each of the running tasks has ended


def test_hold_when_a_gang_does_not_start_in_its_time_then_the_nodes_are_everybodys_again() -> None:
    policy = Policy(hold_after_seconds=600, hold_seconds=1200)
    world = World.of(node(1, gpus=4))
    world.policy = policy
    long_running = world.submit(ONE, 1)
    world.run()
    gang = world.submit_gang(ONE, 4)
    started: list[bool] = []
    for minutes in (0, 9, 11, 29, 31, 39, 41):
        world.now_us = minutes * 60 * SECOND_US
        small = world.submit(ONE)[0]
        plan = world.run()
        started.append(small in placed_tasks(plan))
        for task in placed_tasks(plan):
            world.snapshot.release_allocation(task)
        world.queue = [task for task in world.queue if task.gang is not None]
    assert world.members(gang)
    assert long_running
    assert started == [True, True, False, False, True, True, False]


def test_hold_when_even_an_empty_pool_could_not_hold_the_gang_then_nothing_is_kept() -> None:
    world = World.of(node(1, gpus=4))
    world.submit_gang(ONE, 5)
    world.now_us = 700 * SECOND_US
    small = world.submit(ONE, 4)
    plan = world.run()
    assert plan.earmarks == {}
    assert placed_tasks(plan) == small


def test_order_when_the_head_of_one_flavor_is_stuck_then_the_other_flavor_goes_on_s2() -> None:
    world = World.of(node(1, gpus=4, flavor="a100"), node(2, gpus=4, flavor="t4"))
    world.submit(request(count=4, flavors=["a100"]))
    world.run()
    head = world.submit(request(count=4, flavors=["a100"]), priority=90)
    gang = world.submit_gang(request(count=1, flavors=["a100"]), 2, priority=90)
    for seconds in (1, 700):  # before and while a node is kept for the head
        world.now_us = seconds * SECOND_US
        behind = world.submit(request(count=1, flavors=["t4"], tenant=RIVAL), 2, priority=10)
        plan = world.run()
        assert placed_tasks(plan) == behind
    assert head[0] in plan.rejections
    assert world.members(gang)[0] in plan.rejections


def test_explanation_when_a_gang_waits_then_says_how_many_of_its_tasks_fit_and_what_is_missing() -> None:
    world = World.of(node(1, gpus=2), node(2, gpus=1))
    gang = world.submit_gang(ONE, 4)
    plan = world.run()
    task = next(one for one in world.queue if one.gang == gang)
    told = explain(world.snapshot, task, world.states(), rejection=plan.rejections[task.id])
    assert told.message.startswith("room for 3 of the gang's 4 tasks, which start together: ")
    assert told.gang == GangRoom(4, 3)
    assert "with nothing running the pool could hold 3 of its 4 tasks" in {item.effect for item in told.would_unblock}
    assert next(line for line in told.admission if line.resource == "device").requested == 4000
