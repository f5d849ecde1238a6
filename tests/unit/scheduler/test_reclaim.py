"""Lent capacity comes back: who stops, for whom, and that nobody counts on the same room twice."""

import pytest

from millpond_contracts.bodies.tenants import Limit
from millpond_contracts.ids import TaskId, TenantId
from millpond_scheduler.domain.admission import VirtualPoolState
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

THIRD = TenantId(int=3)


def shares(*lenders: Limit, borrower: Limit | None = None) -> list[VirtualPoolState]:
    """A borrower (virtual pool 1) and lenders (2, 3, ...), by their limits on a100."""
    borrows = borrower or Limit(borrow=64_000)
    tenants = (RIVAL, THIRD)
    return [
        virtual_pool(1, TENANT, devices={"a100": borrows}),
        *(virtual_pool(2 + place, tenants[place], devices={"a100": limit}) for place, limit in enumerate(lenders)),
    ]


def lent_out(devices: int, times: int, *, lender: Limit | None = None) -> tuple[World, list[TaskId]]:
    """One node of so many devices, all lent to the borrower in equal tasks, the oldest first."""
    limit = lender or Limit(guaranteed=devices * 1000, lend=devices * 1000)
    world = World.of(node(1, gpus=devices), pools=shares(limit))
    tasks = []
    for _ in range(times):
        world.now_us += 60 * SECOND_US
        tasks += world.submit(request(count=1))
        world.run()
    assert not world.queue
    return world, tasks


def test_reclaim_when_two_claim_in_one_cycle_then_each_has_a_victim_of_its_own_q1() -> None:
    pools = shares(Limit(guaranteed=3000, lend=3000), Limit(guaranteed=3000, lend=3000))
    world = World.of(node(1, gpus=6), pools=pools)
    borrowed = world.submit(request(count=3), 2)
    world.run()
    mine = world.submit(request(count=3, tenant=RIVAL))
    others = world.submit(request(count=3, tenant=THIRD))
    plan = world.run()
    assert [reclaim.claimant for reclaim in plan.reclaims] == [*mine, *others]
    assert sorted(victim for reclaim in plan.reclaims for victim in reclaim.victims) == sorted(borrowed)
    started: list[TaskId] = []
    for victim in borrowed:  # one after the other: at every instant the sum is at most the capacity
        world.release(victim)
        started += placed_tasks(world.run())
        check_invariants(world)
    assert sorted(started) == sorted([*mine, *others])


def test_reclaim_when_less_is_needed_than_is_lent_then_as_little_as_possible_stops() -> None:
    world, tasks = lent_out(devices=8, times=8)
    wanted = world.submit(request(count=1, tenant=RIVAL))
    plan = world.run()
    assert [(reclaim.claimant, reclaim.victims) for reclaim in plan.reclaims] == [(wanted[0], (tasks[-1],))]


def test_reclaim_when_priorities_and_ages_differ_then_the_cheapest_stop() -> None:
    world = World.of(node(1, gpus=3), pools=shares(Limit(guaranteed=3000, lend=3000)))
    dear = world.submit(request(count=1), priority=90)
    world.run()
    world.now_us += 60 * SECOND_US
    cheap = world.submit(request(count=1), 2, priority=10)
    world.run()
    world.submit(request(count=2, tenant=RIVAL))
    plan = world.run()
    assert sorted(plan.reclaims[0].victims) == sorted(cheap)
    assert dear[0] not in world.stopping


def test_reclaim_when_one_large_victim_suffices_then_the_smaller_one_is_spared() -> None:
    world = World.of(node(1, gpus=4), pools=shares(Limit(guaranteed=4000, lend=4000)))
    large = world.submit(request(count=3))
    world.run()
    world.now_us += 60 * SECOND_US
    small = world.submit(request(count=1))
    world.run()
    world.submit(request(count=3, tenant=RIVAL))
    assert world.run().reclaims[0].victims == (large[0],)
    assert small[0] not in world.stopping


def test_reclaim_when_the_asker_would_borrow_himself_then_nothing_stops() -> None:
    world, _ = lent_out(devices=4, times=4, lender=Limit(guaranteed=1000, lend=1000, borrow=3000))
    world.pools |= {state.id: state for state in shares(Limit(guaranteed=1000, lend=1000, borrow=3000))}
    world.submit(request(count=2, tenant=RIVAL))
    plan = world.run()
    assert plan.reclaims == ()
    assert {rejection.reason for rejection in plan.rejections.values()} == {Reason.NOT_ENOUGH_DEVICES}


def test_reclaim_when_others_only_use_their_own_share_then_nothing_stops() -> None:
    pools = shares(Limit(guaranteed=3000), borrower=Limit(guaranteed=3000))
    world = World.of(node(1, gpus=3), pools=pools)
    world.submit(request(count=1), 3)
    world.run()
    world.submit(request(count=1, tenant=RIVAL))
    assert world.run().reclaims == ()


def test_reclaim_when_a_borrower_keeps_his_own_share_then_only_what_is_above_it_is_taken() -> None:
    pools = shares(Limit(guaranteed=2000, lend=2000), borrower=Limit(guaranteed=2000, borrow=2000))
    world = World.of(node(1, gpus=4), pools=pools)
    tasks = world.submit(request(count=1), 4)
    world.run()
    world.submit(request(count=1, tenant=RIVAL), 3)
    plan = world.run()
    victims = [victim for reclaim in plan.reclaims for victim in reclaim.victims]
    assert len(victims) == 2
    assert set(victims) < set(tasks)


def test_reclaim_when_a_gang_asks_then_all_its_room_is_made_at_once_and_it_starts_whole() -> None:
    world = World.of(node(1, gpus=2), node(2, gpus=2), node(3, gpus=1), pools=shares(Limit(guaranteed=4000, lend=4000)))
    world.submit(request(count=1), 5)
    world.run()
    gang = world.submit_gang(request(count=1, tenant=RIVAL), 4)
    members = world.members(gang)
    before = contents(world.snapshot)
    plan = world.run()
    assert contents(world.snapshot) == before
    assert len(plan.reclaims) == 1
    assert len(plan.reclaims[0].victims) == 4
    latecomers = world.submit(request(count=1), 2)
    for victim in plan.reclaims[0].victims[:3]:
        world.release(victim)
        assert placed_tasks(world.run()) == [], "what was freed is kept for the gang"
    world.release(plan.reclaims[0].victims[3])
    assert placed_tasks(world.run()) == members
    assert {task.id for task in world.queue} == set(latecomers)


def test_reclaim_when_a_victim_is_in_a_gang_then_the_gang_stops_whole() -> None:
    world = World.of(node(1, gpus=2), node(2, gpus=2), pools=shares(Limit(guaranteed=1000, lend=1000)))
    world.pools = {state.id: state for state in shares(Limit(guaranteed=4000, lend=4000))}
    gang = world.submit_gang(request(count=1), 4)
    members = world.members(gang)
    world.run()
    world.submit(request(count=1, tenant=RIVAL))
    assert sorted(world.run().reclaims[0].victims) == sorted(members)


def test_reclaim_when_victims_are_stopping_then_no_further_ones_are_chosen() -> None:
    world, _ = lent_out(devices=4, times=4)
    wanted = world.submit(request(count=1, tenant=RIVAL))
    assert len(world.run().reclaims) == 1
    plan = world.run()
    assert plan.reclaims == ()
    assert plan.rejections[wanted[0]].reason is Reason.RECLAIMING
    second = world.submit(request(count=1, tenant=RIVAL))
    assert [reclaim.claimant for reclaim in world.run().reclaims] == second


def test_reclaim_when_something_stops_anyway_then_its_room_is_waited_for() -> None:
    world, tasks = lent_out(devices=2, times=2)
    world.stopping.add(tasks[0])
    world.submit(request(count=1, tenant=RIVAL))
    assert world.run().reclaims == ()
    world.release_stopping()
    assert len(placed_tasks(world.run())) == 1


def test_reclaim_when_the_borrower_is_back_in_the_queue_then_nothing_goes_to_and_fro_s4() -> None:
    world, tasks = lent_out(devices=4, times=4)
    world.submit(request(count=1, tenant=RIVAL), 4)
    evictions = 0
    for _ in range(20):
        plan = world.run()
        victims = [victim for reclaim in plan.reclaims for victim in reclaim.victims]
        evictions += len(victims)
        world.release_stopping()
        world.submit(request(count=1), len(victims), priority=900)  # each comes back at once, and more important
        world.now_us += 60 * SECOND_US
    assert evictions == len(tasks)
    assert not [task for task in world.queue if task.request.tenant == RIVAL]


def test_reclaim_when_only_cpu_is_lent_then_cpu_comes_back() -> None:
    pools = [
        virtual_pool(1, TENANT, cpu=Limit(borrow=64_000)),
        virtual_pool(2, RIVAL, cpu=Limit(guaranteed=64_000, lend=64_000)),
    ]
    world = World.of(node(1, cpu=64_000), pools=pools)
    world.submit(request(cpu=16_000), 4)
    world.run()
    world.submit(request(cpu=20_000, tenant=RIVAL))
    assert len(world.run().reclaims[0].victims) == 2
