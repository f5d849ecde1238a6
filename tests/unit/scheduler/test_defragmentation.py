"""Moves that make room for what waits: few, cheap, allowed, worth it, and tried without a trace."""

from dataclasses import replace

import pytest

from millpond_contracts.bodies.nodes import CordonReason
from millpond_contracts.ids import TaskId
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.defragmentation import Movable, MoveOutcome, MovePlan, MoveRules, plan_moves
from millpond_scheduler.domain.explain import explain
from tests.unit.scheduler.world import SECOND_US, World, contents, node, request

pytestmark = pytest.mark.unit

ONE = request(count=1)


def scatter(*used: int) -> tuple[World, list[list[TaskId]]]:
    """Nodes of eight devices with so many one-device tasks on each, all started at 0; and the tasks by node."""
    world = World.of(*(node(number, gpus=8) for number in range(1, len(used) + 1)))
    tasks = world.submit(ONE, 8 * len(used))
    world.run()
    by_node = [
        [one.task for one in world.snapshot.list_holdings(node(number).id)] for number in range(1, len(used) + 1)
    ]
    for placed, count in zip(by_node, used, strict=True):
        placed.sort()
        while len(placed) > count:
            world.release(placed.pop())
    assert len(tasks) == 8 * len(used)
    world.now_us = 100 * SECOND_US
    return world, by_node


def search(world: World, unit: list[TaskId], rules: MoveRules | None = None, stay: tuple[TaskId, ...] = ()) -> MovePlan:
    before = contents(world.snapshot)
    movable = {
        each.id: Movable(each, world.submitted[each.id].request) for each in world.list_running() if each.id not in stay
    }
    tasks = [world.submitted[task] for task in unit]
    found = plan_moves(
        world.snapshot, CandidateCache(world.snapshot), tasks, movable, world.now_us, None, rules or MoveRules()
    )
    assert contents(world.snapshot) == before, "nothing is left of the search"
    return found


def test_moves_when_free_devices_are_scattered_then_the_fewest_tasks_move_together_f1() -> None:
    """Three nodes of eight with 7, 6 and 7 used; four devices of one node are asked for."""
    world, by_node = scatter(7, 6, 7)
    head = world.submit(request(count=4))
    rejection = world.run().rejections[head[0]]
    told = explain(world.snapshot, world.submitted[head[0]], world.states(), rejection=rejection)
    assert (told.largest_free_devices, told.fragmentation_permille) == (2, 1000)
    found = search(world, head)
    assert (found.outcome, found.fragmentation_permille, found.nodes) == (MoveOutcome.MOVES, 1000, (node(2).id,))
    assert len(found.moves) == 2
    assert {move.before.task for move in found.moves} <= set(by_node[1])
    assert {move.after.node for move in found.moves} == {node(1).id, node(3).id}
    assert found.cost == 2 * 1000 * (100 + 60)
    assert found.gain == 3600 * 4000


def test_moves_when_looked_at_again_a_moment_later_then_they_are_the_same() -> None:
    """Lost seconds are whole: by them alone the two nodes would be the cheaper one by turns."""
    world, by_node = scatter(6, 6)
    head = world.submit(request(count=3))
    for tasks, started_us in zip(by_node, (10_400_000, 10_600_000), strict=True):
        world.started_us |= dict.fromkeys(tasks, started_us)
    plans = []
    for now_us in (100_500_000, 100_700_000):
        world.now_us = now_us
        plans.append([(move.before.task, move.after.node) for move in search(world, head).moves])
    assert plans[0] == plans[1]
    assert len(plans[0]) == 1


def test_moves_when_a_gang_waits_then_each_of_its_tasks_is_served_and_none_of_them_makes_way() -> None:
    world, _ = scatter(6, 6, 6, 6)
    gang = world.submit_gang(request(count=4), 2)
    found = search(world, world.members(gang))
    assert (found.outcome, len(found.moves), len(set(found.nodes))) == (MoveOutcome.MOVES, 4, 2)
    assert not {move.after.node for move in found.moves} & set(found.nodes)


@pytest.mark.parametrize(
    ("rules", "outcome"),
    [
        (MoveRules(max_moves=1), MoveOutcome.NO_WAY),
        (MoveRules(wait_seconds=60), MoveOutcome.NOT_WORTH),
        (MoveRules(threshold_permille=1000), MoveOutcome.MOVES),
    ],
)
def test_moves_when_the_budget_or_the_gain_is_too_small_then_none(rules: MoveRules, outcome: MoveOutcome) -> None:
    world, _ = scatter(7, 6, 7)
    found = search(world, world.submit(request(count=4)), rules)
    assert found.outcome is outcome


def test_moves_when_little_is_fragmented_then_none() -> None:
    world, _ = scatter(7, 6, 7, 0)
    world.submit(request(count=8, flavors=["a100"]))
    assert search(world, world.submit(request(count=4))).outcome is MoveOutcome.STARTS_NOW
    head = world.submit(request(count=1, cpu=60_000))
    assert search(world, head, MoveRules(threshold_permille=1001)).outcome is MoveOutcome.STARTS_NOW
    world.snapshot.upsert_node(replace(node(4, gpus=8), version=2, cordons=frozenset({CordonReason.OPERATOR})))
    assert search(world, head, MoveRules(threshold_permille=1001)).outcome is MoveOutcome.BELOW_THRESHOLD


def test_moves_when_tasks_may_not_be_restarted_then_others_go_or_there_is_no_way() -> None:
    world, by_node = scatter(7, 6, 7)
    head = world.submit(request(count=4))
    found = search(world, head, stay=tuple(by_node[1]))
    assert (found.outcome, len(found.moves), found.nodes) == (MoveOutcome.MOVES, 3, (node(1).id,))
    everybody = tuple(task for tasks in by_node for task in tasks)
    assert search(world, head, stay=everybody).outcome is MoveOutcome.NO_WAY


def test_moves_when_memory_is_full_beside_idle_devices_then_what_fills_it_moves_f3() -> None:
    """The shape counts, not the fill: a task that only holds memory makes way to a node without devices."""
    world = World.of(node(1, gpus=4, memory=100_000), node(2, memory=64_000, cpu=8_000))
    world.submit(request(cpu=4_000, memory=60_000))
    world.run()
    (hog,) = world.submit(request(cpu=9_000, memory=60_000))
    world.run()
    (small,) = world.submit(request(count=1, memory=30_000))
    world.run()
    assert world.snapshot.find_holding(hog) is not None
    assert world.snapshot.find_holding(small) is not None
    heavy = next(one.task for one in world.snapshot.list_holdings(node(2).id))
    world.release(heavy)
    world.submitted[hog] = replace(world.submitted[hog], request=request(cpu=8_000, memory=60_000))
    world.now_us = 10 * SECOND_US
    found = search(world, world.submit(request(count=2, memory=50_000)))
    assert (found.outcome, [move.before.task for move in found.moves]) == (MoveOutcome.MOVES, [hog])
    assert found.moves[0].after.node == node(2).id
