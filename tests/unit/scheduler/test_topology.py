"""Where tasks stand: affinity, anti-affinity, spread and pack over the levels of a topology, and why not elsewhere."""

from collections import Counter
from dataclasses import replace

import pytest

from millpond_contracts.bodies.tenants import Preemption
from millpond_contracts.ids import JobId, NodeId, TaskId
from millpond_contracts.resources import TopologyLevel
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.defragmentation import Movable, MoveOutcome, MoveRules, plan_moves
from millpond_scheduler.domain.demand import sum_demand
from millpond_scheduler.domain.explain import Explanation, explain
from millpond_scheduler.domain.nodes import NodeRecord
from millpond_scheduler.domain.plans import Plan
from millpond_scheduler.domain.requests import Bound, Gang, LabelMatch, PlacementRules, RequestClass
from millpond_scheduler.domain.topology import Place, common_place
from millpond_scheduler.domain.verdicts import Reason
from millpond_scheduler.usecases.records import bind_whole_job, placement_rules
from tests.unit.scheduler.world import (
    SECOND_US,
    World,
    check_invariants,
    contents,
    node,
    placed_tasks,
    request,
    virtual_pool,
)

pytestmark = pytest.mark.unit

NODE, RACK, ZONE = TopologyLevel.NODE, TopologyLevel.RACK, TopologyLevel.ZONE
PACKED = PlacementRules(pack=RACK)
APART = PlacementRules((Bound(NODE, Reason.ANTI_AFFINITY),))


def standing(number: int, rack: str | None, gpus: int = 8, zone: str | None = "z1") -> NodeRecord:
    """A node in a rack, its place among its labels as the scheduler reads it."""
    told = {level: value for level, value in (("zone", zone), ("rack", rack)) if value}
    return node(number, gpus=gpus, labels=told, place=Place(zone=zone, rack=rack))


def asking(rules: PlacementRules, count: int = 1) -> RequestClass:
    """A request that asks where nodes stand on the levels of its rules."""
    levels = {bound.level for bound in rules.bounds} | {rules.pack or NODE}
    return request(count=count, levels=levels - {NODE})


def where(plan: Plan) -> list[int]:
    """The numbers of the nodes that were given, in order."""
    return [placement.holding.node.int >> 65 for placement in plan.placements]


def told(world: World, plan: Plan, task: TaskId) -> Explanation:
    return explain(world.snapshot, world.submitted[task], world.states(), rejection=plan.rejections[task])


def gang(world: World, rules: PlacementRules, size: int, count: int = 1) -> tuple[Gang, RequestClass]:
    wanted = asking(rules, count)
    return world.submit_gang(wanted, size, rules=rules), wanted


def test_affinity_when_values_are_named_or_excluded_then_other_nodes_are_counted_as_mismatched() -> None:
    world = World.of(standing(1, "r1"), standing(2, "r2"), standing(3, None))
    among = (LabelMatch("rack", frozenset({"r2", "r9"})),)
    (task,) = world.submit(request(count=1, affinity=among))
    assert where(world.run()) == [2]
    world.submit(request(count=8, affinity=(LabelMatch("rack", frozenset({"r1", "r2"}), is_wanted=False),)))
    assert where(world.run()) == [3], "a node without the label has none of the values"
    (task,) = world.submit(request(count=1, affinity=(LabelMatch("rack", frozenset({"r9"})),)))
    plan = world.run()
    assert plan.rejections[task].reason is Reason.AFFINITY_MISMATCH
    assert plan.rejections[task].counts == {Reason.AFFINITY_MISMATCH: 3}
    assert told(world, plan, task).would_unblock[0].action == "ask for other values of rack"


def test_anti_affinity_when_each_node_has_one_then_the_next_waits_until_one_ends() -> None:
    world = World.of(standing(1, "r1"), standing(2, "r1"))
    tasks = world.submit(asking(APART), 3, rules=APART, job=7)
    plan = world.run()
    assert sorted(where(plan)) == [1, 2]
    assert plan.rejections[tasks[2]].counts == {Reason.ANTI_AFFINITY: 2}
    explanation = told(world, plan, tasks[2])
    assert explanation.dominant is Reason.ANTI_AFFINITY
    assert explanation.would_unblock[0].action == "wait until tasks of the group end, or add nodes"
    world.release(tasks[1])
    assert where(world.run()) == [2]
    other = world.submit(asking(APART), rules=APART, job=8)
    assert placed_tasks(world.run()) == other, "another job's tasks are nobody's concern"


def test_anti_affinity_when_it_names_labels_then_only_the_tenants_jobs_with_them_count() -> None:
    rules = PlacementRules((Bound(RACK, Reason.ANTI_AFFINITY, labels=frozenset({("app", "db")})),))
    world = World.of(standing(1, "r1"), standing(2, "r1"), standing(3, "r2"))
    world.submit(request(count=1), labels=[("app", "db"), ("tier", "gold")])
    world.submit(request(count=1), labels=[("app", "web")])
    assert where(world.run()) == [1, 1]
    world.submit(asking(rules), 2, rules=rules, labels=[("app", "web")])
    assert where(world.run()) == [3, 3], "rack r1 has a task of such a job; what is placed is none itself"
    (task,) = world.submit(request(count=1, levels=[RACK], cpu=64_000), rules=rules)
    plan = world.run()
    assert plan.rejections[task].counts == {Reason.NOT_ENOUGH_CPU: 2, Reason.ANTI_AFFINITY: 1}


def test_spread_when_a_rack_has_its_most_then_the_next_rack_is_taken_and_then_it_waits() -> None:
    rules = PlacementRules((Bound(RACK, Reason.SPREAD_REACHED, most=2),))
    world = World.of(standing(1, "r1"), standing(2, "r1"), standing(3, "r2"), standing(4, None))
    group, _ = gang(world, rules, 4)
    assert sorted(where(world.run())) == [1, 1, 3, 3]
    (task,) = world.submit(asking(rules), rules=rules, job=group.job.int)
    plan = world.run()
    assert plan.rejections[task].counts == {Reason.SPREAD_REACHED: 3, Reason.TOPOLOGY_UNKNOWN: 1}
    explanation = told(world, plan, task)
    assert explanation.dominant is Reason.SPREAD_REACHED
    assert [one.action for one in explanation.would_unblock] == [
        "label the nodes with rack, which an operator can (`millpond node label`)",
        "wait until tasks of the group end, or add nodes in another rack",
    ]


def test_spread_when_the_skew_is_bounded_then_the_domain_with_fewest_is_filled_first() -> None:
    rules = PlacementRules((Bound(ZONE, Reason.SPREAD_REACHED, skew=1),))
    nodes = [standing(number, "r1", zone=f"z{number}") for number in (1, 2, 3)]
    world = World.of(*nodes, standing(4, "r1", gpus=0, zone="z4"))
    group, _ = gang(world, rules, 7)
    assert Counter(where(world.run())) == {1: 3, 2: 2, 3: 2}, "a zone that could take none is not waited for"
    world.submit(request(count=6), 2)
    world.run()
    (task,) = world.submit(asking(rules), rules=rules, job=group.job.int)
    counts = world.run().rejections[task].counts
    assert counts == {Reason.NO_MATCHING_DEVICE: 1, Reason.NOT_ENOUGH_DEVICES: 2, Reason.SPREAD_REACHED: 1}


def test_pack_when_several_racks_have_room_then_the_tightest_takes_the_whole_gang() -> None:
    world = World.of(standing(1, "r1"), standing(2, "r1"), standing(3, "r2", gpus=4), standing(4, "r2", gpus=2))
    gang(world, PACKED, 5)
    assert sorted(set(where(world.run()))) == [3, 4]
    check_invariants(world)


def test_pack_when_no_rack_has_room_though_the_pool_has_then_the_domain_is_the_reason() -> None:
    world = World.of(standing(1, "r1", 2), standing(2, "r2", 2), standing(3, "r2", 1), standing(4, "r1", 2, "z2"))
    group, _ = gang(world, PACKED, 4)
    first = world.members(group)[0]
    plan = world.run()
    assert not plan.placements
    explanation = told(world, plan, first)
    assert explanation.dominant is Reason.DOMAIN_TOO_SMALL
    assert explanation.gang is not None
    assert (explanation.gang.fitting, explanation.gang.level, explanation.gang.domain) == (3, RACK, "z1/r2")
    assert explanation.message.startswith("room for 3 of the gang's 4 tasks in rack z1/r2, which start together")
    assert plan.rejections[first].counts == {Reason.DOMAIN_TOO_SMALL: 2, Reason.NOT_ENOUGH_DEVICES: 2}
    assert explanation.would_unblock[0].effect == "with nothing running the largest rack could hold 3 of 4 such tasks"


def test_pack_when_only_preferred_then_the_next_wider_level_with_room_and_at_last_anywhere() -> None:
    preferred = PlacementRules(prefers_pack=RACK)
    world = World.of(
        standing(1, "r1", 3), standing(2, "r2", 2, "z2"), standing(3, "r3", 2, "z2"), standing(4, None, 1, None)
    )
    gang(world, preferred, 3)
    assert where(world.plan()) == [1, 1, 1]
    world.snapshot.undo_to(0)
    world.queue.clear()
    gang(world, preferred, 4)
    assert sorted(where(world.plan())) == [2, 2, 3, 3], "no rack has four, zone z2 has"
    world.snapshot.undo_to(0)
    world.queue.clear()
    gang(world, preferred, 8)
    assert len(where(world.run())) == 8


def test_pack_when_groups_share_a_gang_then_those_that_ask_stand_together_and_others_anywhere() -> None:
    world = World.of(standing(1, "r1", 4), standing(2, "r2", 8), standing(3, "r3", 1))
    world.submit_roles(
        ("driver", request(cpu=64_000), 1),
        ("workers", asking(PACKED, 2), 3),
        ("readers", asking(PACKED, 1), 2),
        rules={"workers": PACKED, "readers": PACKED},
    )
    plan = world.run()
    racks = Counter(where(plan))
    assert racks[2] == 5
    assert racks[1] + racks[3] == 1


def test_preemption_when_rules_bind_the_claimant_then_victims_stop_only_where_it_may_stand() -> None:
    pool = replace(virtual_pool(1), preemption=Preemption.LOWER_PRIORITY)
    world = World.of(standing(1, "r1", 2), standing(2, "r2", 2), pools=[pool])
    world.submit(request(count=1), 4, priority=10)
    mine = world.submit(asking(APART), rules=APART, job=9, priority=90)
    world.now_us = SECOND_US
    for _ in range(3):
        world.run()
        world.release_stopping()
    here = world.snapshot.find_holding(mine[0])
    assert here is not None
    second = world.submit(asking(APART), rules=APART, job=9, priority=90)
    plan = world.run()
    assert plan.rejections[second[0]].reason is Reason.PREEMPTING
    (reclaim,) = plan.reclaims
    assert reclaim.claim.nodes.isdisjoint({here.node})
    world.release_stopping()
    world.run()
    held = world.snapshot.find_holding(second[0])
    assert held is not None
    assert held.node != here.node


def test_preemption_when_a_packed_gang_claims_then_all_victims_are_of_one_rack() -> None:
    pool = replace(virtual_pool(1), preemption=Preemption.LOWER_PRIORITY)
    world = World.of(standing(1, "r1", 1), standing(2, "r2", 1), standing(3, "r2", 1), pools=[pool])
    world.submit(request(count=1), 3, priority=10)
    world.run()
    world.now_us = SECOND_US
    group = world.submit_gang(asking(PACKED), 2, priority=90, rules=PACKED)
    plan = world.run()
    (reclaim,) = plan.reclaims
    assert reclaim.claim.nodes == {node(2).id, node(3).id}
    world.release_stopping()
    assert sorted(where(world.run())) == [2, 3]
    assert not world.members(group)
    check_invariants(world)


def test_hold_when_a_packed_gang_waits_long_then_nodes_of_the_rack_that_is_free_first_are_kept() -> None:
    world = World.of(standing(1, "r1", 1), standing(2, "r2", 1), standing(3, "r2", 1), standing(4, "r1", 1))
    for seconds in (1000, 1000, 2000, 5000):
        world.submit(request(count=1), limit=seconds)
        world.run()
    group = world.submit_gang(asking(PACKED), 2, rules=PACKED)
    world.now_us = 600 * SECOND_US
    plan = world.run()
    assert set(plan.earmarks.values()) == {node(2).id, node(3).id}
    assert plan.rejections[world.members(group)[0]].starts_us == 2000 * SECOND_US


def test_hold_when_tasks_stay_apart_then_each_is_kept_a_node_of_its_own() -> None:
    world = World.of(standing(1, "r1", 2), standing(2, "r2", 2))
    world.submit(request(count=2), limit=1000)
    world.run()
    world.submit(request(count=2), limit=2000)
    world.run()
    world.submit_gang(asking(APART), 2, rules=APART)
    world.now_us = 600 * SECOND_US
    assert set(world.run().earmarks.values()) == {node(1).id, node(2).id}


def test_backfill_when_a_short_task_must_stay_apart_then_a_kept_node_is_closed_to_it_all_the_same() -> None:
    world = World.of(standing(1, "r1", 2), standing(2, "r2", 2))
    world.submit(asking(APART), rules=APART, job=9, limit=1000)
    world.run()
    world.submit(request(count=2))
    (head,) = world.submit(request(count=2))
    world.run()
    world.now_us = 600 * SECOND_US
    (apart,) = world.submit(asking(APART), rules=APART, job=9, limit=10)
    (free,) = world.submit(request(count=1), limit=10)
    plan = world.run()
    assert plan.earmarks == {head: node(1).id}
    assert placed_tasks(plan) == [free]
    assert plan.rejections[apart].counts == {Reason.ANTI_AFFINITY: 1, Reason.NOT_ENOUGH_DEVICES: 1}


def test_moves_when_a_victim_stays_apart_or_the_claimant_is_packed_then_both_hold_after_the_moves() -> None:
    world = World.of(standing(1, "r1", 4), standing(2, "r2", 4), standing(3, "r3", 4), standing(4, "r3", 4))
    apart = world.submit(asking(APART), 2, rules=APART, job=9)
    world.run()
    filler = world.submit(request(count=2), 2)
    world.run()
    assert sorted(one.node for one in map(world.snapshot.find_holding, apart) if one) == [node(1).id, node(2).id]
    world.release(
        next(task for task in filler if task in {one.task for one in world.snapshot.list_holdings(node(1).id)})
    )
    world.now_us = 100 * SECOND_US
    four = request(count=4, levels=[RACK], affinity=(LabelMatch("rack", frozenset({"r1"})),))
    (task,) = world.submit(four)
    before = contents(world.snapshot)
    movable = {
        one.id: Movable(one, world.submitted[one.id].request, world.submitted[one.id].rules)
        for one in world.list_running()
    }
    cache = CandidateCache(world.snapshot)
    found = plan_moves(
        world.snapshot, cache, [world.submitted[task]], movable, world.now_us, None, MoveRules(threshold_permille=0)
    )
    assert found.outcome is MoveOutcome.MOVES
    (move,) = found.moves
    assert move.after.node in (node(3).id, node(4).id), (
        "node 2 is the tightest, but has the other task that stays apart"
    )
    assert contents(world.snapshot) == before


def test_moves_when_a_packed_gang_waits_then_its_tasks_stand_in_one_rack() -> None:
    world = World.of(*(standing(number, rack, 2) for number, rack in enumerate(("r0", "r1", "r1", "r0"), 1)))
    tasks = world.submit(request(count=1), 8)
    world.run()
    for number in range(1, 5):
        world.release(next(one.task for one in world.snapshot.list_holdings(node(number).id)))
    world.now_us = 100 * SECOND_US
    cheap = {one.task for number in (1, 2) for one in world.snapshot.list_holdings(node(number).id)}
    world.started_us |= dict.fromkeys(cheap, 90 * SECOND_US)
    group = world.submit_gang(asking(PACKED, 2), 2, rules=PACKED)
    movable = {one.id: Movable(one, world.submitted[one.id].request) for one in world.list_running()}
    unit = [world.submitted[task] for task in world.members(group)]
    found = plan_moves(world.snapshot, CandidateCache(world.snapshot), unit, movable, world.now_us, None, MoveRules())
    assert found.outcome is MoveOutcome.MOVES
    assert {world.snapshot.get_node(each).place.rack for each in found.nodes} in ({"r0"}, {"r1"})
    assert len(tasks) == 8


def test_counts_when_tasks_come_and_go_then_they_are_as_if_counted_anew() -> None:
    world = World.of(standing(1, "r1"), standing(2, "r2"))
    tasks = world.submit(asking(APART), 3, rules=APART, job=5)
    world.run()
    selectors = list(world.snapshot.neighbours._counts)  # what was asked for
    world.release(tasks[0])
    world.run()
    world.snapshot.remove_node(NodeId(int=1 << 65))
    for selector in selectors:
        held = Counter(one.node for one in world.snapshot.list_holdings() if selector.matches(one))
        assert +world.snapshot.neighbours.count(selector) == held
    assert [selector.job for selector in selectors] == [JobId(int=5)]


def test_place_when_names_repeat_in_zones_then_they_are_two_domains_and_only_what_is_common_is_told() -> None:
    one, two = Place("n", "z1", "r1"), Place("n", "z2", "r1")
    assert one.domain_at(RACK) != two.domain_at(RACK)
    assert one.domain_at(TopologyLevel.INTERCONNECT_DOMAIN) is None
    assert common_place([one, two]) == Place("n")
    assert common_place([one, Place("n", "z1", "r1", "d1")]) == one


def test_demand_when_a_rule_asks_where_nodes_stand_then_no_new_node_is_asked_for_as_its_place_is_not_known() -> None:
    world = World.of(standing(1, "r1", 1))
    world.submit(asking(APART), 2, rules=APART, job=3)
    spread = PlacementRules((Bound(RACK, Reason.SPREAD_REACHED),))
    world.submit(asking(spread), rules=spread, job=3)
    plan = world.run()
    ((shape,),) = sum_demand(world.queue, plan.rejections, world.states()).values()
    assert (shape.tasks, len(plan.rejections)) == (1, 2)


def test_rules_when_a_job_is_read_then_what_is_said_of_the_whole_job_binds_every_group() -> None:
    of_job = {"level": "rack", "scope": "job", "labels": {}}
    own = {"level": "node", "scope": "group", "labels": {}}
    groups = [
        {"name": "one", "requires": {"anti_affinity": [own, of_job]}},
        {"name": "two", "requires": {"spread": [{"level": "zone", "max_skew": 2}]}, "prefers": {"pack": "zone"}},
    ]
    one, two = (placement_rules(group) for group in bind_whole_job(groups))
    apart = Bound(RACK, Reason.ANTI_AFFINITY, of_group=False)
    assert one == PlacementRules((Bound(NODE, Reason.ANTI_AFFINITY), apart))
    assert two == PlacementRules((apart, Bound(ZONE, Reason.SPREAD_REACHED, skew=2)), prefers_pack=ZONE)
    assert placement_rules({"requires": {}}) is None, "as stored by an earlier version"
