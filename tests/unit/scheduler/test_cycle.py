"""One batch: order, limits, fractions, earmarks; named after the reported failures they replay."""

import random

import pytest

from millpond_contracts.bodies.tenants import Limit, QueuePolicy
from millpond_contracts.ids import TaskId, VirtualPoolId
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.cycle import plan_batch
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.domain.queues import Queues
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


def test_order_when_priorities_and_ages_differ_then_priority_then_age_then_id() -> None:
    world = World.of(node(1))
    (old,) = world.submit(request())
    world.now_us = SECOND_US
    young = world.submit(request(), 2)
    (urgent,) = world.submit(request(), priority=60)
    random.Random(1).shuffle(world.queue)
    assert placed_tasks(world.plan()) == [urgent, old, *young]


def test_order_when_a_virtual_pool_is_fifo_then_its_priorities_do_not_count() -> None:
    world = World.of(node(1), pools=[virtual_pool(policy=QueuePolicy.FIFO)])
    (first,) = world.submit(request(), priority=1)
    (second,) = world.submit(request(), priority=99)
    units = Queues(world.queue).read_units(lambda key: world.pools[key].policy)
    assert [task.id for (task,) in units] == [first, second]


def test_blocked_head_when_its_flavor_is_full_then_other_flavors_go_on() -> None:
    world = World.of(node(1, gpus=1), node(2, gpus=1, flavor="t4"))
    world.submit(request(count=1, flavors=["a100"]))
    world.run()
    (head,) = world.submit(request(count=1, flavors=["a100"]), priority=99)
    (other,) = world.submit(request(count=1, flavors=["t4"]))
    plan = world.run()
    assert placed_tasks(plan) == [other]
    assert plan.rejections[head].reason is Reason.NOT_ENOUGH_DEVICES


def test_plan_when_the_input_is_the_same_then_is_the_same() -> None:
    def build(seed: int) -> World:
        records = [node(number, gpus=number % 5) for number in range(1, 40)]
        random.Random(seed).shuffle(records)
        world = World.of(*records)
        for number in range(60):
            world.submit(request(count=number % 3, milli=1000 if number % 3 == 2 else 350, cpu=1_000 * (number % 7)))
        random.Random(seed).shuffle(world.queue)
        return world

    first, second = build(1).plan(), build(2).plan()
    assert first.placements == second.placements
    assert first.rejections == second.rejections


def test_plan_when_scores_are_remembered_between_batches_then_is_as_with_fresh_ones() -> None:
    world, twin = (World.of(*(node(number, gpus=4) for number in range(1, 20))) for _ in range(2))
    cache = CandidateCache(world.snapshot, size=3)
    chance = random.Random(5)
    for _ in range(12):
        wanted = [request(count=1, milli=chance.choice([250, 500, 1000])) for _ in range(6)]
        for one in wanted:
            world.submit(one)
            twin.submit(one)
        kept = plan_batch(world.snapshot, world.queue, world.states(), 0, cache=cache)
        world.snapshot.keep()
        world.queue.clear()
        assert kept.placements == twin.run().placements
        gone = chance.sample(placed_tasks(kept), min(3, len(kept.placements)))
        for task in gone:
            world.snapshot.release_allocation(task)
            twin.snapshot.release_allocation(task)


def test_plan_when_the_batch_is_full_then_the_rest_is_not_examined() -> None:
    world = World.of(node(1))
    world.submit(request(), 5)
    plan = world.plan(max_tasks=2)
    assert len(plan.placements) == plan.examined == 2
    assert not plan.rejections


def test_plan_when_a_queued_task_holds_its_place_already_then_it_is_not_placed_twice() -> None:
    world = World.of(node(1))
    world.submit(request())
    first = world.plan()
    world.snapshot.keep()
    assert len(first.placements) == 1
    assert world.plan().placements == ()


def test_limits_when_the_batch_itself_fills_them_then_are_not_passed_case_30() -> None:
    world = World.of(node(1), node(2), pools=[virtual_pool(cpu=Limit(guaranteed=3_000))])
    world.submit(request(cpu=1_000), 5)
    plan = world.run()
    assert len(plan.placements) == 3
    assert {rejection.reason for rejection in plan.rejections.values()} == {Reason.LIMIT_REACHED}
    (line,) = [line for line in next(iter(plan.rejections.values())).admission if line.missing]
    assert (line.resource, line.limit, line.used, line.requested, line.missing) == ("cpu", 3_000, 3_000, 1_000, 1_000)
    check_invariants(world)


def test_limits_when_one_flavor_has_none_left_then_another_allowed_one_is_used() -> None:
    limits = {"a100": Limit(guaranteed=1000), "t4": Limit(guaranteed=2000)}
    world = World.of(node(1, gpus=4), node(2, gpus=4, flavor="t4"), pools=[virtual_pool(devices=limits)])
    world.submit(request(count=1), 5)
    plan = world.run()
    assert [placement.flavor for placement in plan.placements] == ["a100", "t4", "t4"]
    assert {rejection.reason for rejection in plan.rejections.values()} == {Reason.LIMIT_REACHED}
    check_invariants(world)


def test_limits_when_a_flavor_is_not_named_then_none_of_it_may_be_used() -> None:
    world = World.of(node(1, gpus=4), pools=[virtual_pool(devices={})])
    (task,) = world.submit(request(count=1))
    assert world.plan().rejections[task].reason is Reason.LIMIT_REACHED


def test_limits_when_they_block_one_tenant_then_the_others_go_on() -> None:
    world = World.of(node(1), pools=[virtual_pool(1, TENANT, cpu=Limit()), virtual_pool(2, RIVAL)])
    world.submit(request(), priority=99)
    (other,) = world.submit(request(tenant=RIVAL))
    assert placed_tasks(world.plan()) == [other]


def test_limits_when_the_virtual_pool_is_unknown_then_the_task_waits_with_that_reason() -> None:
    world = World.of(node(1))
    (task,) = world.submit(request(), pool=77)
    rejection = world.plan().rejections[task]
    assert rejection.reason is Reason.NO_VIRTUAL_POOL
    assert rejection.counts == {Reason.PLACEABLE: 1}


@pytest.mark.parametrize(("hard", "placed"), [(2_999, 2), (3_000, 3), (3_001, 3)])
def test_limits_when_one_milli_is_missing_then_the_task_waits(hard: int, placed: int) -> None:
    world = World.of(node(1), pools=[virtual_pool(cpu=Limit(hard=hard))])
    world.submit(request(cpu=1_000), 5)
    assert len(world.run().placements) == placed


@pytest.mark.parametrize(("lend", "placed"), [(0, 2), (1000, 3), (2000, 4)])
def test_borrowing_when_others_do_not_use_their_guarantee_then_only_what_they_lend_is_taken(
    lend: int, placed: int
) -> None:
    borrower = virtual_pool(1, TENANT, devices={"a100": Limit(guaranteed=0, borrow=4000)})
    owner = virtual_pool(2, RIVAL, devices={"a100": Limit(guaranteed=2000, lend=lend)})
    world = World.of(node(1, gpus=4), pools=[borrower, owner])
    world.submit(request(count=1), 4)
    plan = world.run()
    assert len(plan.placements) == placed
    if placed < 4:
        assert {one.reason for one in plan.rejections.values()} == {Reason.GUARANTEE_OF_OTHERS}
    guaranteed = world.submit(request(count=1, tenant=RIVAL), 2)
    assert len(set(placed_tasks(world.run())) & set(guaranteed)) == 2 - lend // 1000


def test_borrowing_when_guarantees_are_used_in_the_same_batch_then_they_no_longer_hold_others_back() -> None:
    borrower = virtual_pool(1, TENANT, cpu=Limit(borrow=64_000))
    owner = virtual_pool(2, RIVAL, cpu=Limit(guaranteed=32_000))
    world = World.of(node(1, cpu=64_000), pools=[borrower, owner])
    world.submit(request(cpu=32_000, tenant=RIVAL))
    world.submit(request(cpu=16_000), 3)
    plan = world.run()
    assert len(plan.placements) == 3
    check_invariants(world)


def test_memory_slices_when_rounding_would_admit_one_more_then_it_waits_case_18() -> None:
    world = World.of(node(1, gpus=1, flavor="t4", device_memory=46_068))
    world.submit(request(cpu=100, memory=100, count=1, milli=None, slice_memory=2_000), 24)
    plan = world.run()
    assert len(plan.placements) == 23
    assert [rejection.reason for rejection in plan.rejections.values()] == [Reason.NOT_ENOUGH_DEVICES]
    assert {placement.holding.device_milli for placement in plan.placements} == {43}
    check_invariants(world)


def test_slices_when_their_memory_is_used_up_before_their_share_then_memory_decides() -> None:
    world = World.of(node(1, gpus=1))
    world.submit(request(count=1, milli=100, slice_memory=40_000), 3)
    plan = world.run()
    assert len(plan.placements) == 2
    assert world.snapshot.columns.device_memory_free[0, 0] == 1_920
    assert {rejection.reason for rejection in plan.rejections.values()} == {Reason.LARGEST_FREE_BLOCK_TOO_SMALL}


def test_fractions_when_ten_tenths_are_taken_and_returned_then_exactly_one_device_case_21() -> None:
    world = World.of(node(1, gpus=1))
    world.submit(request(count=1, milli=100), 11)
    plan = world.run()
    assert len(plan.placements) == 10
    assert world.snapshot.columns.device_milli_free[0, 0] == 0
    for task in placed_tasks(plan):
        world.snapshot.release_allocation(task)
    assert world.snapshot.columns.device_milli_free[0, 0] == 1000
    assert world.snapshot.columns.device_memory_free[0, 0] == 81_920


def test_slices_when_eleven_want_a_device_of_ten_then_it_never_gets_eleven_case_13() -> None:
    world = World.of(node(1, gpus=2))
    world.submit(request(count=1, milli=100), 25)
    assert len(world.run().placements) == 20
    check_invariants(world)


def test_whole_device_when_a_slice_lies_on_it_then_is_never_lent() -> None:
    world = World.of(node(1, gpus=2))
    world.submit(request(count=1, milli=1))
    world.run()
    (pair,) = world.submit(request(count=2))
    (single,) = world.submit(request(count=1))
    plan = world.run()
    assert placed_tasks(plan) == [single]
    assert plan.rejections[pair].reason is Reason.NOT_ENOUGH_DEVICES
    (refused,) = world.submit(request(count=1))
    assert world.run().rejections[refused].reason is not Reason.PLACEABLE
    check_invariants(world)


def test_devices_when_a_task_is_terminating_then_stay_charged_until_released_case_15() -> None:
    world = World.of(node(1, gpus=1))
    (task,) = world.submit(request(count=1))
    world.run()
    (waiting,) = world.submit(request(count=1))
    assert world.run().placements == ()
    world.snapshot.release_allocation(task)
    assert placed_tasks(world.run()) == [waiting]


def test_earmark_when_small_tasks_stream_past_a_waiting_whole_node_task_then_it_starts_case_32() -> None:
    def run(policy: Policy) -> bool:
        world = World.of(node(1, gpus=4), node(2, gpus=4))
        world.policy = policy
        running = world.submit(request(count=1), 8)
        world.run()
        (large,) = world.submit(request(count=4))
        for step in range(40):
            world.now_us = step * 60 * SECOND_US
            world.submit(request(count=1), 2)
            world.snapshot.release_allocation(running.pop(0))
            plan = world.run()
            check_invariants(world)
            running += [task for task in placed_tasks(plan) if task != large]
            if large in placed_tasks(plan):
                return True
        return False

    assert run(Policy(hold_after_seconds=600))
    assert not run(Policy(hold_after_seconds=1_000_000))


def test_earmark_when_a_node_is_kept_then_others_see_why_and_still_use_the_rest() -> None:
    world = World.of(node(1, gpus=4), node(2, gpus=2), node(3))
    running = world.submit(request(count=1, cpu=4_000), 3)
    world.run()
    world.snapshot.release_allocation(running[0])  # one free on n2, three on n1
    (large,) = world.submit(request(count=4))
    world.now_us = 700 * SECOND_US
    small = world.submit(request(count=1), 3)
    (host_only,) = world.submit(request())
    plan = world.run()
    assert plan.earmarks == {large: node(1).id}
    assert placed_tasks(plan) == [small[0], host_only]
    assert plan.rejections[small[1]].reason is Reason.EARMARKED
    assert sum(plan.rejections[small[1]].counts.values()) == 3


def test_earmark_when_several_nodes_could_hold_the_task_then_the_one_that_lacks_fewest_devices_is_kept() -> None:
    world = World.of(node(1, gpus=4, flavor="t4"), node(2, gpus=4), node(3, gpus=3))
    world.submit(request(cpu=60_000, count=1, flavors=["t4"]))  # n1 then lacks one device, and CPU
    world.submit(request(count=3, flavors=["a100"]))  # fills n3, which is too small anyway
    world.run()
    world.submit(request(count=2, flavors=["a100"]))  # n2 then lacks two devices
    world.run()
    (large,) = world.submit(request(cpu=10_000, count=4))
    world.now_us = 700 * SECOND_US
    assert world.plan().earmarks == {large: node(1).id}


def test_earmark_when_no_node_could_ever_hold_the_task_then_nothing_is_kept_free() -> None:
    world = World.of(node(1, gpus=4))
    world.submit(request(count=8))
    world.now_us = 10_000 * SECOND_US
    world.submit(request(count=1), 4)
    plan = world.run()
    assert plan.earmarks == {}
    assert len(plan.placements) == 4


def test_undo_when_a_commit_is_refused_then_the_same_plan_comes_again() -> None:
    world = World.of(node(1, gpus=4), pools=[virtual_pool(devices={"a100": PLENTY})])
    world.submit(request(count=1, milli=300), 7)
    before = contents(world.snapshot)
    plan = world.plan()
    world.snapshot.undo_to(plan.mark)
    assert contents(world.snapshot) == before
    assert world.plan().placements == plan.placements


def test_plan_when_everything_is_empty_then_is_empty() -> None:
    world = World()
    assert world.plan().placements == ()
    world.pools = {VirtualPoolId(int=1): virtual_pool()}
    (task,) = world.submit(request(count=1))
    assert task == TaskId(int=1)
    assert world.plan().rejections[task].reason is Reason.POOL_EMPTY
