"""The rules of the autoscaler: what is decided, with which reason, and what never happens."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_autoscaler.domain.deciding import Verdict, decide, left_for_others
from millpond_autoscaler.domain.forecasts import NoForecast, NotEnoughData, Prediction
from millpond_autoscaler.domain.situation import Signals, Situation
from millpond_contracts.bodies.scaling import ScalingAction, ScalingRule, ScalingRules
from tests.unit.autoscaler.situations import FLAVOR, NOW, TEMPLATE, candidate, rules, shape, situation

pytestmark = pytest.mark.unit

LATELY = NOW - timedelta(seconds=10)
SOON = NOW + timedelta(seconds=10)
LOW: dict[str, Any] = {"held_milli": 8_000, "schedulable_milli": 32_000}


def verdict(facts: Situation, policy: ScalingRules | None = None) -> Verdict:
    return decide(policy or rules(), TEMPLATE, FLAVOR, facts)


def ends(facts: Situation, policy: ScalingRules | None = None) -> tuple[ScalingRule, ScalingAction, int, str]:
    found = verdict(facts, policy)
    return found.rule, found.action, found.nodes, found.code


def test_steady_load_when_inside_the_band_then_nothing() -> None:
    assert ends(situation()) == (ScalingRule.HOLD, ScalingAction.NONE, 0, "steady")


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        # A4: thirty tasks of one device, nodes of eight: four nodes, of which some may be on their way.
        ({"demand": (shape(30),), "nodes": 0, "held_milli": 0, "schedulable_milli": 0}, 4),
        ({"demand": (shape(30),), "nodes": 0, "held_milli": 0, "schedulable_milli": 0, "ordered": 3}, 1),
        ({"demand": (shape(9),), "ordered": 1}, 1),
        ({"demand": (shape(9),), "settling": 1}, 1),
        # In one piece: three tasks of five devices need three nodes, not two.
        ({"demand": (shape(3, devices=5),)}, 3),
        ({"demand": (shape(20, milli=500),)}, 2),
        # 40 GiB of 80: two on a device, however few milli; in proportion they would be ten.
        ({"demand": (shape(32, milli=100, device_memory_mib=40_960),)}, 2),
        ({"demand": (shape(8, 1, 100, device_memory_mib=41_000, cpu_milli=1), shape(64, 1, 100, cpu_milli=1))}, 2),
        ({"demand": (shape(3, cpu_milli=40_000),)}, 3),
        # A gang of sixteen devices needs two nodes.
        ({"demand": (shape(16, gang_size=16),)}, 2),
    ],
)
def test_demand_when_nodes_on_their_way_do_not_serve_it_then_as_many_as_it_needs(
    facts: dict[str, Any], wanted: int
) -> None:
    assert ends(situation(**facts)) == (ScalingRule.EMERGENCY, ScalingAction.ORDER_NODES, wanted, "demand")


def test_gangs_when_not_all_could_ever_have_nodes_then_for_whole_ones_alone() -> None:
    facts = situation(demand=(shape(96, gang_size=48),), nodes=0, held_milli=0, schedulable_milli=0)
    assert ends(facts, rules(max_nodes=10)) == (ScalingRule.EMERGENCY, ScalingAction.ORDER_NODES, 6, "demand")


def test_demand_when_nodes_on_their_way_serve_it_then_no_more_however_high_the_load() -> None:
    facts = situation(demand=(shape(30),), nodes=0, held_milli=0, schedulable_milli=0, ordered=4)
    assert ends(facts) == (ScalingRule.EMERGENCY, ScalingAction.NONE, 0, "on_their_way")


@pytest.mark.parametrize(
    "waiting",
    [
        shape(5, devices=9),
        shape(5, flavors=("another",)),
        shape(5, simulated=False),
        shape(5, needs_image=True),
        shape(5, architectures=("aarch64",)),
        shape(5, labels={"rack": "1"}),
        shape(5, memory_mib=1_000_000),
        shape(5, device_memory_mib=81_921),
        # More devices than ten nodes have: it could never start, however many of them there were.
        shape(96, gang_size=96),
    ],
)
def test_demand_when_no_node_of_the_policy_could_serve_it_then_nothing_is_bought(waiting: Any) -> None:
    assert ends(situation(demand=(waiting,))) == (ScalingRule.HOLD, ScalingAction.NONE, 0, "steady")


@pytest.mark.parametrize(
    ("facts", "policy", "wanted"),
    [
        ({"held_milli": 26_000}, rules(), (ScalingRule.EMERGENCY, ScalingAction.ORDER_NODES, 1, "load")),
        ({"held_milli": 26_000}, rules(unit_nodes=2), (ScalingRule.EMERGENCY, ScalingAction.ORDER_NODES, 2, "load")),
        ({"held_milli": 25_000}, rules(), (ScalingRule.HOLD, ScalingAction.NONE, 0, "steady")),
        ({"held_milli": 26_000, "last_out_at": LATELY}, rules(), (ScalingRule.EMERGENCY, "none", 0, "cool_down")),
        ({"held_milli": 26_000}, rules(max_nodes=4), (ScalingRule.EMERGENCY, "none", 0, "at_maximum")),
        ({"held_milli": 26_000, "releasing": 6}, rules(), (ScalingRule.EMERGENCY, "none", 0, "at_maximum")),
        ({"held_milli": 26_000, "retry_at": SOON}, rules(), (ScalingRule.EMERGENCY, "none", 0, "backing_off")),
        ({"held_milli": 26_000, "stock_out_until": SOON}, rules(), (ScalingRule.EMERGENCY, "none", 0, "stock_out")),
        ({"held_milli": 26_000, "foreign": 1}, rules(), (ScalingRule.EMERGENCY, "none", 0, "wrong_flavor")),
        ({"held_milli": None}, rules(), (ScalingRule.HOLD, "none", 0, "unknown_capacity")),
        ({"nodes": 1}, rules(min_nodes=3), (ScalingRule.MINIMUM, ScalingAction.ORDER_NODES, 2, "below_minimum")),
        ({"nodes": 1, "ordered": 2}, rules(min_nodes=3), (ScalingRule.HOLD, "none", 0, "steady")),
        (
            {"demand": (shape(200),)},
            rules(max_step_nodes=3, max_nodes=40),
            (ScalingRule.EMERGENCY, "order_nodes", 3, "demand"),
        ),
        ({"demand": (shape(200),)}, rules(max_nodes=5), (ScalingRule.EMERGENCY, "order_nodes", 1, "demand")),
        # Demand waits for no cool-down: what it needs is known, and bound to what comes.
        ({"demand": (shape(8),), "last_out_at": LATELY}, rules(), (ScalingRule.EMERGENCY, "order_nodes", 1, "demand")),
    ],
)
def test_growth_when_asked_for_then_within_its_bounds(facts: dict[str, Any], policy: ScalingRules, wanted: Any) -> None:
    assert ends(situation(**facts), policy) == wanted


@pytest.mark.parametrize(
    ("facts", "policy", "left"),
    [
        ({}, rules(), 0),
        ({}, rules(max_nodes=4), 20),
        ({}, rules(max_nodes=6), 4),
        ({}, rules(max_nodes=6, unit_nodes=3), 20),
        ({"ordered": 1}, rules(max_nodes=5), 12),
        ({"releasing": 2, "cancellable": 1}, rules(max_nodes=6), 12),
        ({"stock_out_until": SOON}, rules(), 20),
        ({"stock_out_until": SOON, "ordered": 1}, rules(), 12),
        ({"stock_out_until": LATELY}, rules(), 0),
        ({"foreign": 1}, rules(), 20),
        # It tries again soon, and both would buy for the same work.
        ({"retry_at": SOON}, rules(), 0),
    ],
)
def test_demand_when_the_policy_can_have_no_more_nodes_then_the_rest_is_left_for_others(
    facts: dict[str, Any], policy: ScalingRules, left: int
) -> None:
    rest = left_for_others(policy, TEMPLATE, FLAVOR, situation(demand=(shape(20),), **facts))
    assert sum(one.tasks for one in rest) == left


def test_emergency_when_nodes_are_leaving_then_they_stay_before_others_are_ordered() -> None:
    facts = situation(demand=(shape(16),), releasing=3, cancellable=2)
    assert ends(facts) == (ScalingRule.EMERGENCY, ScalingAction.CANCEL_RELEASE, 2, "demand")
    facts = situation(held_milli=30_000, releasing=1, cancellable=1, last_in_at=LATELY)
    assert ends(facts) == (ScalingRule.EMERGENCY, ScalingAction.CANCEL_RELEASE, 1, "load")


def test_planned_when_a_forecast_sees_load_then_a_unit_ahead_of_it() -> None:
    seen = Prediction(horizon_seconds=600, highest_median_ratio=0.6, highest_p90_ratio=0.7, model="seasonal")
    assert ends(situation(forecast=seen)) == (ScalingRule.PLANNED, ScalingAction.ORDER_NODES, 1, "forecast")
    assert ends(situation(forecast=seen, ordered=1))[3] == "on_their_way"
    assert ends(situation(forecast=seen, last_out_at=LATELY))[3] == "cool_down"
    calm = replace(seen, highest_p90_ratio=0.5)
    assert ends(situation(forecast=calm))[3] == "steady"


def test_forecast_when_there_is_no_model_then_it_says_what_is_missing() -> None:
    assert NoForecast().predict((), NOW, 600) == NotEnoughData(have_seconds=0, need_seconds=604_800)


def test_scale_in_when_the_load_stayed_low_then_the_idlest_nodes_that_are_old_enough() -> None:
    facts = situation(**LOW)
    asked = verdict(facts)
    # Two nodes less leave 8 of 16 held, under the 60 % that the hysteresis allows; three would leave them full.
    assert (asked.action, asked.nodes, asked.chosen) == (ScalingAction.RELEASE_NODES, 2, ())
    idle, busy, young = candidate(), candidate(held_milli=8_000), candidate(age_seconds=5)
    found = verdict(replace(facts, candidates=(busy, young, idle)))
    assert (found.action, found.nodes, found.chosen) == (ScalingAction.RELEASE_NODES, 1, (idle.order,))
    both = verdict(replace(facts, candidates=(busy, young, idle)), rules(drain_busy_nodes=True))
    assert both.chosen == (idle.order, busy.order)
    none = verdict(replace(facts, candidates=(busy, young)))
    assert (none.action, none.code) == (ScalingAction.NONE, "no_candidate")


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"signals": Signals(expected=32, told=31, mean_ratio=0.1)}, "unknown_signals"),
        ({"signals": Signals(expected=32, told=0, mean_ratio=None)}, "unknown_signals"),
        ({"behind": "the scheduler does not answer"}, "unknown_views"),
        ({"ordered": 1}, "on_their_way"),
        ({"low_since": None}, "safety_window"),
        ({"low_since": NOW - timedelta(seconds=599)}, "safety_window"),
        ({"last_in_at": LATELY}, "cool_down"),
        ({"last_out_at": LATELY}, "cool_down"),
        (
            {"forecast": Prediction(600, 0.4, 0.5, "seasonal")},
            "forecast",
        ),
    ],
)
def test_a6_scale_in_when_anything_speaks_against_it_or_is_unknown_then_the_size_stays(
    facts: dict[str, Any], code: str
) -> None:
    found = verdict(situation(**{**LOW, **facts}))
    assert (found.rule, found.action, found.code) == (ScalingRule.SCALE_IN, ScalingAction.NONE, code)


def test_scale_in_when_one_node_less_would_overfill_the_rest_then_the_band_holds() -> None:
    facts = situation(held_milli=6_000, schedulable_milli=16_000, nodes=2)
    assert ends(facts) == (ScalingRule.SCALE_IN, ScalingAction.NONE, 0, "band")


def test_scale_in_when_at_the_minimum_then_nothing() -> None:
    assert ends(situation(**LOW), rules(min_nodes=4))[1:] == (ScalingAction.NONE, 0, "steady")


_SOME = st.integers(0, 6)


@given(
    held=st.integers(0, 60_000),
    schedulable=st.integers(0, 60_000),
    nodes=_SOME,
    ordered=_SOME,
    releasing=_SOME,
    waiting=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 8)), max_size=3),
    told=st.integers(0, 40),
    low_for=st.integers(0, 3600),
    least=st.integers(0, 3),
    most=st.integers(3, 9),
)
def test_decisions_when_facts_are_any_then_bounds_hold_and_unknown_never_shrinks(
    held: int,
    schedulable: int,
    nodes: int,
    ordered: int,
    releasing: int,
    waiting: list[tuple[int, int]],
    told: int,
    low_for: int,
    least: int,
    most: int,
) -> None:
    policy = rules(min_nodes=least, max_nodes=most, max_step_nodes=3)
    facts = situation(
        held_milli=held,
        schedulable_milli=schedulable,
        nodes=nodes,
        ordered=ordered,
        releasing=releasing,
        cancellable=releasing,
        demand=tuple(shape(tasks, devices) for tasks, devices in waiting),
        signals=Signals(expected=32, told=told, mean_ratio=0.1),
        low_since=NOW - timedelta(seconds=low_for),
        candidates=tuple(candidate() for _ in range(nodes)),
    )
    found = verdict(facts, policy)
    assert verdict(facts, policy) == found
    assert found.reason
    if found.action is ScalingAction.ORDER_NODES:
        assert 1 <= found.nodes <= 3
        assert facts.all_nodes + found.nodes <= most
    if found.action is ScalingAction.RELEASE_NODES:
        assert told >= 32
        assert not waiting
        assert not ordered
        assert low_for >= policy.safety_window_seconds
        assert len(set(found.chosen)) == found.nodes <= nodes - least
    if found.action is ScalingAction.CANCEL_RELEASE:
        assert 1 <= found.nodes <= releasing
