"""The rules, in the order in which they are asked; the first that acts ends the pass.

Every answer carries a code and a reason, also the answer that nothing changes. Unknown never shrinks a pool.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from millpond_autoscaler.domain.demand import Binding, bind_demand
from millpond_autoscaler.domain.forecasts import Prediction
from millpond_autoscaler.domain.situation import NOTHING_TO_HOLD_IT, Candidate, Situation, load_ratio, node_milli
from millpond_contracts.bodies.scaling import DemandShape, NodeTemplate, ScalingAction, ScalingRule, ScalingRules


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision. `chosen` = the orders whose nodes are released."""

    rule: ScalingRule
    action: ScalingAction
    nodes: int
    code: str
    reason: str
    load_ratio: float | None
    chosen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """What the rules look at: the policy, the facts, and what follows from both at once."""

    rules: ScalingRules
    template: NodeTemplate
    facts: Situation
    binding: Binding
    load: float | None

    def hold(self, rule: ScalingRule, code: str, reason: str) -> Verdict:
        """Nothing changes, by this rule."""
        return Verdict(rule, ScalingAction.NONE, 0, code, reason, self.load)


def decide(rules: ScalingRules, template: NodeTemplate, flavor: str, facts: Situation) -> Verdict:
    """What to do now.

    The answer RELEASE_NODES without `chosen` asks for `facts.candidates`; with them it names the orders.
    """
    question = make_question(rules, template, flavor, facts)
    # 1. What an operator wants there at least, whatever the load.
    # 2. Load that is there: at once, and drains are called off first.
    # 3. Load that is to come.
    # 4. Load that stayed away.
    steps: list[Callable[[Question], Verdict | None]] = [_keep_minimum, _emergency, _planned, _scale_in]
    for step in steps:
        verdict = step(question)
        if verdict is not None:
            return verdict
    return question.hold(ScalingRule.HOLD, "steady", f"load {_percent(question.load)} is inside the band")


def make_question(rules: ScalingRules, template: NodeTemplate, flavor: str, facts: Situation) -> Question:
    """Binds the demand to nodes on their way and weighs the load."""
    binding = bind_demand(
        facts.demand, template, flavor, on_their_way=facts.ordered + facts.settling, most_new=rules.max_nodes
    )
    load = load_ratio(facts, binding.queued_milli, node_milli(template.devices))
    return Question(rules, template, facts, binding, load)


def left_for_others(
    rules: ScalingRules, template: NodeTemplate, flavor: str, facts: Situation
) -> tuple[DemandShape, ...]:
    """What waits and finds no place on this policy's nodes that are on their way, can be kept or may still be ordered.

    A policy that is at its most, or whose provider has none, so leaves its work to the pool's next one. One whose
    orders failed keeps it: it tries again soon, and both would buy for the same work.
    """
    room = 0 if _why_none_to_have(facts) is not None else max(0, rules.max_nodes - facts.all_nodes)
    room += facts.cancellable - room % rules.unit_nodes
    binding = bind_demand(facts.demand, template, flavor, on_their_way=facts.ordered + facts.settling, most_new=room)
    return binding.left


def watch_load(rules: ScalingRules, template: NodeTemplate, flavor: str, facts: Situation) -> bool:
    """Whether the load is low now, as far as anybody can tell."""
    question = make_question(rules, template, flavor, facts)
    return (
        question.load is not None
        and question.load < rules.scale_in_ratio
        and not question.binding.queued_milli
        and facts.signals.are_known
    )


def _keep_minimum(question: Question) -> Verdict | None:
    facts, rules = question.facts, question.rules
    lacking = rules.min_nodes - facts.nodes - facts.ordered
    if lacking <= 0:
        return None
    reason = f"{facts.nodes} nodes and {facts.ordered} on their way, at least {rules.min_nodes} are wanted"
    return _order(question, ScalingRule.MINIMUM, lacking, "below_minimum", reason)


def _emergency(question: Question) -> Verdict | None:
    facts, rules, binding = question.facts, question.rules, question.binding
    if question.load is None:
        return question.hold(ScalingRule.HOLD, "unknown_capacity", "the pool's capacity is not known yet")
    wanted = binding.missing_nodes
    if wanted or binding.unbound_tasks:
        reason = (
            f"{binding.queued_milli} device milli wait for capacity alone;"
            f" beside {facts.ordered + facts.settling} nodes on their way they need {wanted}"
        )
        return _cancel_or_order(question, wanted, "demand", reason)
    if question.load < rules.emergency_ratio or not (facts.held_milli or binding.queued_milli):
        return None
    # What waits is bound to nodes on their way: whether more is needed shows when they are there.
    if facts.ordered or facts.settling:
        return question.hold(
            ScalingRule.EMERGENCY,
            "on_their_way",
            f"load {_percent(question.load)}; {facts.ordered + facts.settling} nodes are coming or have just come",
        )
    cooling = _cooling(question, facts.last_out_at)
    if cooling is not None and not facts.cancellable:
        return question.hold(ScalingRule.EMERGENCY, "cool_down", cooling)
    reason = f"load {_percent(question.load)} is over {_percent(rules.emergency_ratio)}"
    return _cancel_or_order(question, rules.unit_nodes, "load", reason)


def _planned(question: Question) -> Verdict | None:
    facts, rules = question.facts, question.rules
    if not isinstance(facts.forecast, Prediction) or facts.forecast.highest_p90_ratio < rules.planned_ratio:
        return None
    if facts.ordered:
        return question.hold(ScalingRule.PLANNED, "on_their_way", f"{facts.ordered} nodes are coming")
    cooling = _cooling(question, facts.last_out_at)
    if cooling is not None:
        return question.hold(ScalingRule.PLANNED, "cool_down", cooling)
    reason = (
        f"{facts.forecast.model} sees {_percent(facts.forecast.highest_p90_ratio)} within"
        f" {facts.forecast.horizon_seconds} s, over {_percent(rules.planned_ratio)}"
    )
    return _order(question, ScalingRule.PLANNED, rules.unit_nodes, "forecast", reason)


def _scale_in(question: Question) -> Verdict | None:
    facts, rules, load = question.facts, question.rules, question.load
    if load is None or load >= rules.scale_in_ratio or facts.nodes <= rules.min_nodes:
        return None
    against = _why_not_shrink(question)
    if against is not None:
        return question.hold(ScalingRule.SCALE_IN, *against)
    count = _how_many_fewer(question)
    if not count:
        return question.hold(ScalingRule.SCALE_IN, "band", "one unit less would bring the load into the band")
    reason = f"load {_percent(load)} stayed under {_percent(rules.scale_in_ratio)} for {rules.safety_window_seconds} s"
    if facts.candidates is None:
        return Verdict(ScalingRule.SCALE_IN, ScalingAction.RELEASE_NODES, count, "low_load", reason, load)
    chosen = choose_nodes(rules, facts.candidates, count, facts.now)
    if not chosen:
        kind = "node" if rules.drain_busy_nodes else "idle node"
        return question.hold(ScalingRule.SCALE_IN, "no_candidate", f"{reason}; no {kind} is old enough to be released")
    return Verdict(ScalingRule.SCALE_IN, ScalingAction.RELEASE_NODES, len(chosen), "low_load", reason, load, chosen)


def _why_not_shrink(question: Question) -> tuple[str, str] | None:
    """Whatever speaks against shrinking a pool whose load is low; unknown always does."""
    facts, rules = question.facts, question.rules
    if facts.behind is not None:
        return "unknown_views", f"what is known may be old: {facts.behind}"
    if not facts.signals.are_known:
        return (
            "unknown_signals",
            f"{facts.signals.told} of {facts.signals.expected} devices told their utilisation; unknown is not idle",
        )
    if question.binding.queued_milli or facts.ordered:
        return "on_their_way", f"work waits, or {facts.ordered} nodes are coming"
    if isinstance(facts.forecast, Prediction) and facts.forecast.highest_p90_ratio >= rules.scale_in_ratio:
        return "forecast", f"{facts.forecast.model} sees {_percent(facts.forecast.highest_p90_ratio)} to come"
    if facts.low_since is None or facts.now - facts.low_since < timedelta(seconds=rules.safety_window_seconds):
        return (
            "safety_window",
            f"low since {_instant(facts.low_since)}, for {rules.safety_window_seconds} s it has to stay so",
        )
    for last in (facts.last_out_at, facts.last_in_at):
        cooling = _cooling(question, last)
        if cooling is not None:
            return "cool_down", cooling
    return None


def _how_many_fewer(question: Question) -> int:
    """As many units as leave the load the hysteresis below the planned threshold, within the step and the minimum."""
    facts, rules = question.facts, question.rules
    most = min(rules.max_step_nodes, facts.nodes - rules.min_nodes)
    ceiling, size = rules.planned_ratio - rules.hysteresis_ratio, node_milli(question.template.devices)
    for count in range(most - most % rules.unit_nodes, 0, -rules.unit_nodes):
        after = load_ratio(facts, 0, size, less_nodes=count)
        if after is not None and after <= ceiling:
            return count
    return 0


def choose_nodes(rules: ScalingRules, candidates: tuple[Candidate, ...], count: int, now: datetime) -> tuple[str, ...]:
    """The orders whose nodes go first: who holds least, of equals the oldest; none before its minimum life."""
    old_enough = timedelta(seconds=rules.min_node_life_seconds)
    ripe = [
        one
        for one in candidates
        if now - one.joined_at >= old_enough and (rules.drain_busy_nodes or not one.held_milli)
    ]
    ripe.sort(key=lambda one: (one.held_milli, one.joined_at, one.order))
    return tuple(one.order for one in ripe[:count])


def _cancel_or_order(question: Question, wanted: int, code: str, reason: str) -> Verdict:
    """Keeps nodes that were to leave before it asks for new ones."""
    kept = min(question.facts.cancellable, max(wanted, question.rules.unit_nodes))
    if kept:
        told = f"{reason}; nodes being drained stay"
        return Verdict(ScalingRule.EMERGENCY, ScalingAction.CANCEL_RELEASE, kept, code, told, question.load)
    return _order(question, ScalingRule.EMERGENCY, wanted, code, reason)


def _order(question: Question, rule: ScalingRule, wanted: int, code: str, reason: str) -> Verdict:
    """Orders whole units, at most one step and never beyond the most; or says what stands against it."""
    facts, rules = question.facts, question.rules
    none = _why_none_to_have(facts)
    if none is not None:
        code, why = none
        return question.hold(rule, code, f"{reason}; {why}")
    if facts.retry_at is not None and facts.now < facts.retry_at:
        return question.hold(rule, "backing_off", f"{reason}; orders failed, tried again {_instant(facts.retry_at)}")
    units = -(-max(wanted, 1) // rules.unit_nodes)
    count = min(units * rules.unit_nodes, rules.max_step_nodes, rules.max_nodes - facts.all_nodes)
    count -= count % rules.unit_nodes
    if count <= 0:
        return question.hold(rule, "at_maximum", f"{reason}; the policy allows {rules.max_nodes} nodes")
    return Verdict(rule, ScalingAction.ORDER_NODES, count, code, reason, question.load)


def _why_none_to_have(facts: Situation) -> tuple[str, str] | None:
    """Why no node of the policy's kind can be had for now."""
    if facts.foreign:
        return "wrong_flavor", f"{facts.foreign} ordered nodes have no device of the policy's flavor"
    if facts.stock_out_until is not None and facts.now < facts.stock_out_until:
        return "stock_out", f"the provider had none, asked again {_instant(facts.stock_out_until)}"
    return None


def _cooling(question: Question, last: datetime | None) -> str | None:
    until = None if last is None else last + timedelta(seconds=question.rules.cool_down_seconds)
    if until is None or question.facts.now >= until:
        return None
    return f"the number of nodes changed {_instant(last)}, it stays until {_instant(until)}"


def _percent(ratio: float | None) -> str:
    if ratio is None:
        return "unknown"
    return "beyond all that is there" if ratio >= NOTHING_TO_HOLD_IT else f"{ratio * 100:.0f} %"


def _instant(instant: datetime | None) -> str:
    return "not yet" if instant is None else instant.strftime("%Y-%m-%d %H:%M:%S UTC")
