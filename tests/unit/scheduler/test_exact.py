"""Gangs of several groups with rules on places: what the greedy search misses is found exactly, and nothing else."""

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond_contracts.resources import TopologyLevel
from millpond_scheduler.domain import cycle
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.plans import Plan, Search
from millpond_scheduler.domain.requests import Bound, LabelMatch, PlacementRules
from millpond_scheduler.domain.topology import Place
from millpond_scheduler.domain.verdicts import Reason
from tests.unit.scheduler.test_topology import standing, told
from tests.unit.scheduler.world import SECOND_US, World, check_invariants, contents, node, request

pytestmark = pytest.mark.unit

NODE, RACK = TopologyLevel.NODE, TopologyLevel.RACK
JOB_APART = Bound(NODE, Reason.ANTI_AFFINITY, of_group=False)


def crossed(world: World) -> Plan:
    """A wide group that best fit puts on the only node that the picky one may use; they must stand apart."""
    rules = PlacementRules((JOB_APART,))
    picky = request(1_000, count=1, affinity=(LabelMatch("rack", frozenset({"r1"})),))
    world.submit_roles(("wide", request(2_000, count=1), 1), ("picky", picky, 1), rules={"wide": rules, "picky": rules})
    return world.run()


def test_gang_when_greedy_takes_the_only_node_of_another_group_then_the_exact_search_places_all() -> None:
    world = World.of(standing(1, "r1", 2), standing(2, "r2", 8))
    plan = crossed(world)
    assert plan.searches == (Search.FOUND,)
    assert [placement.holding.node.int >> 65 for placement in plan.placements] == [2, 1]
    check_invariants(world)


def test_gang_when_no_way_exists_then_that_is_proved_told_and_not_asked_again_at_once() -> None:
    world = World.of(standing(1, "r1", 2), standing(2, "r2", 1))
    world.submit(request(count=1, affinity=(LabelMatch("rack", frozenset({"r2"})),)))
    world.run()
    world.snapshot.upsert_node(standing(3, "r1", 0))
    before = contents(world.snapshot)
    plan = crossed(world)
    assert contents(world.snapshot) == before
    assert plan.searches == (Search.IMPOSSIBLE,)
    first = next(iter(plan.rejections))
    explanation = told(world, plan, first)
    assert explanation.dominant is Reason.ANTI_AFFINITY
    assert explanation.message.startswith("room for 1 of the gang's 2 tasks")
    assert explanation.message.endswith("an exact search proved that there is no way now")
    cache = CandidateCache(world.snapshot)
    assert [world.plan(cache=cache).searches for _ in range(2)] == [(Search.IMPOSSIBLE,), ()]
    world.now_us += SECOND_US
    assert world.plan(cache=cache).searches == (Search.IMPOSSIBLE,)


@dataclass(frozen=True)
class Machine:
    rack: str | None
    cpu: int
    gpus: int


@dataclass(frozen=True)
class Role:
    """One group: how many tasks of so much, on which nodes, and what it asks of places."""

    count: int
    cpu: int
    gpus: int
    excluded: frozenset[str]
    pack: bool
    bounds: tuple[Bound, ...]


MACHINES = st.lists(
    st.builds(Machine, st.sampled_from(["a", "b", "b", None]), st.integers(1, 4), st.integers(0, 2)),
    min_size=2,
    max_size=4,
)
LEVEL = st.sampled_from([NODE, RACK])
BOUNDS = st.one_of(
    st.builds(Bound, LEVEL, st.just(Reason.SPREAD_REACHED), most=st.integers(1, 2)),
    st.builds(Bound, LEVEL, st.just(Reason.SPREAD_REACHED), skew=st.just(1)),
)
ROLES = st.lists(
    st.builds(
        Role,
        st.integers(1, 2),
        st.integers(1, 2),
        st.integers(0, 1),
        st.frozensets(st.sampled_from("1234"), max_size=2),
        st.booleans(),
        st.lists(BOUNDS, max_size=1).map(tuple),
    ),
    min_size=2,
    max_size=3,
)


def build(machines: list[Machine]) -> World:
    return World.of(
        *(
            node(number, each.gpus, cpu=each.cpu, place=Place(rack=each.rack), labels={"number": str(number)})
            for number, each in enumerate(machines, 1)
        )
    )


def submit(world: World, roles: list[Role], apart: bool) -> None:
    rules, groups = {}, []
    for number, role in enumerate(roles):
        bounds = (*role.bounds, JOB_APART) if apart else role.bounds
        rules[str(number)] = PlacementRules(bounds, pack=RACK if role.pack else None)
        levels = {bound.level for bound in bounds} | ({RACK} if role.pack else set())
        wanted = request(
            role.cpu,
            count=role.gpus,
            levels=levels - {NODE},
            affinity=(LabelMatch("number", role.excluded, is_wanted=False),) if role.excluded else (),
        )
        groups.append((str(number), wanted, role.count))
    world.submit_roles(*groups, rules=rules)


def may_take(machine: Machine, number: int, role: Role) -> bool:
    """Whether an empty node could take one task, its place known as far as it is asked of."""
    asks_rack = role.pack or any(bound.level is RACK for bound in role.bounds)
    fits = machine.cpu >= role.cpu and machine.gpus >= role.gpus and str(number + 1) not in role.excluded
    return fits and not (asks_rack and machine.rack is None)


def is_valid(machines: list[Machine], roles: list[Role], apart: bool, places: list[tuple[int, int]]) -> bool:
    """Whether the tasks, each as its role and node, break nothing: written again from the words of the contract."""
    for number, machine in enumerate(machines):
        here = [roles[role] for role, place in places if place == number]
        if sum(each.cpu for each in here) > machine.cpu or sum(each.gpus for each in here) > machine.gpus:
            return False
        if apart and len(here) > 1:
            return False
    packed = {machines[place].rack for role, place in places if roles[role].pack}
    if len(packed) > 1 or not all(may_take(machines[place], place, roles[role]) for role, place in places):
        return False
    for index, role in enumerate(roles):
        for bound in role.bounds:
            domain = {place: place if bound.level is NODE else machines[place].rack for place in range(len(machines))}
            counts = Counter(domain[place] for one, place in places if one == index)
            usable = {
                domain[place]
                for place, machine in enumerate(machines)
                if may_take(machine, place, role) and (not role.pack or machine.rack in packed)
            }
            most = bound.most if bound.skew is None else bound.skew + min((counts[each] for each in usable), default=0)
            if max(counts.values()) > most:
                return False
    return True


@settings(max_examples=100, deadline=None)
@given(MACHINES, ROLES, st.booleans())
def test_gang_when_any_placement_exists_then_one_is_found_and_it_breaks_nothing(
    machines: list[Machine], roles: list[Role], apart: bool
) -> None:
    world = build(machines)
    submit(world, roles, apart)
    before = contents(world.snapshot)
    world.now_us += SECOND_US
    plan = world.run()
    tasks = [index for index, role in enumerate(roles) for _ in range(role.count)]
    if plan.placements:
        places = [
            (int(world.submitted[one.holding.task].group), (one.holding.node.int >> 65) - 1) for one in plan.placements
        ]
        assert len(places) == len(tasks)
        assert is_valid(machines, roles, apart, places)
        check_invariants(world)
        return
    assert contents(world.snapshot) == before
    every = (list(zip(tasks, places, strict=True)) for places in product(range(len(machines)), repeat=len(tasks)))
    assert not any(is_valid(machines, roles, apart, places) for places in every), (
        machines,
        roles,
        apart,
        plan.rejections,
    )


def test_exact_search_when_it_was_never_asked_then_its_solver_is_not_in_memory() -> None:
    code = (
        "import sys, millpond_scheduler.app, millpond_scheduler.worker\n"
        "print(sorted({'ortools', 'pandas'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_exact_search_when_it_is_away_then_fewer_gangs_start_and_none_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(machines: list[Machine], roles: list[Role]) -> bool:
        world = build(machines)
        submit(world, roles, apart=True)
        return bool(world.run().placements)

    roles = [Role(1, 2, 0, frozenset(), False, ()), Role(1, 1, 0, frozenset("2"), False, ())]
    cases = [([Machine("a", cpu, 1), Machine("b", other, 1)], roles) for cpu, other in product(range(1, 4), repeat=2)]
    with_it = [run(*case) for case in cases]
    monkeypatch.setattr(cycle, "find_exactly", lambda *_: None)
    without = [run(*case) for case in cases]
    assert all(one or not other for one, other in zip(with_it, without, strict=True))
    assert sum(with_it) > sum(without)
