"""Gangs start whole or not at all, hold nothing while they wait, and are not passed for ever by small tasks."""

import pytest

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
