"""Decides for one policy and makes the decision durable with all that it intends; nobody outside is asked here."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import asyncpg
from pydantic import TypeAdapter

from millpond_autoscaler.domain.deciding import Verdict, decide, left_for_others, watch_load
from millpond_autoscaler.domain.situation import Candidate, Situation
from millpond_autoscaler.store import decisions, orders, policies
from millpond_autoscaler.usecases.observing import is_cancellable, may_be_released
from millpond_contracts.bodies.scaling import (
    DemandShape,
    NodeOrderState,
    ScalingAction,
    ScalingDecisionView,
    ScalingPolicyView,
    ScalingRule,
)
from millpond_contracts.events.autoscaler import (
    NodeOrdered,
    NodeReleaseAnnounced,
    NodeReleaseCancelled,
    ScalingDecided,
)
from millpond_contracts.ids import NodeId, NodeOrderId, ScalingDecisionId
from millpond_kernel.uow import UnitOfWork

# A gap between two looks at the load that is longer than this begins the safety window anew: nobody watched.
LONGEST_GAP = timedelta(seconds=60)
# While the load stays low, that it was looked at is written so often.
WATCH_EVERY = timedelta(seconds=10)

_SITUATIONS: TypeAdapter[Situation] = TypeAdapter(Situation)


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict beside what it was drawn from, and what it leaves of the pool's demand to the next policy."""

    verdict: Verdict
    situation: Situation
    left: tuple[DemandShape, ...]


def make_decision(policy: ScalingPolicyView, situation: Situation) -> Decision:
    """The decision for this situation; the same one for the same values."""
    verdict = decide(policy.rules, policy.template, policy.flavor, situation)
    left = left_for_others(policy.rules, policy.template, policy.flavor, situation)
    return Decision(verdict, situation, left)


def decide_again(decision: ScalingDecisionView) -> Verdict:
    """What the stored inputs of a decision decide now: the replay."""
    situation = _SITUATIONS.validate_python(decision.inputs)
    return decide(decision.rules, decision.template, decision.flavor, situation)


def list_candidates(rows: Sequence[asyncpg.Record], held_milli: dict[NodeId, int]) -> tuple[Candidate, ...]:
    """Nodes of ours that may be released, with what they hold."""
    return tuple(
        Candidate(
            order=str(NodeOrderId.of(row["id"])),
            node=str(NodeId.of(row["n_id"])),
            held_milli=held_milli.get(NodeId.of(row["n_id"]), 0),
            joined_at=row["joined_at"],
        )
        for row in rows
        if may_be_released(row)
    )


async def watch(unit: UnitOfWork, policy: ScalingPolicyView, situation: Situation) -> tuple[Situation, str]:
    """Keeps since when the load is low, as far as somebody watched; the situation then, and what was told last."""
    state = await policies.read_state(unit, policy.scaling_policy_id)
    now, watched_at = situation.now, state["watched_at"]
    low_since: datetime | None = None
    if watch_load(policy.rules, policy.template, policy.flavor, situation):
        is_unbroken = watched_at is not None and now - watched_at <= LONGEST_GAP
        low_since = state["low_since"] if is_unbroken and state["low_since"] is not None else now
    if low_since != state["low_since"] or watched_at is None or now - watched_at >= WATCH_EVERY:
        await policies.write_watch(unit, policy.scaling_policy_id, low_since, now)
    return replace(situation, low_since=low_since), state["told"]


def is_news(decision: Decision, told: str) -> bool:
    """Whether a decision changes something, or says something else than the one that was told last."""
    verdict = decision.verdict
    if verdict.action is not ScalingAction.NONE:
        return True
    # That nothing is to be done is not worth a row while nothing was told before.
    is_quiet = not told and verdict.rule is ScalingRule.HOLD and verdict.code == "steady"
    return _told(verdict) != told and not is_quiet


def _told(verdict: Verdict) -> str:
    return f"{verdict.rule}/{verdict.code}"


async def apply_decision(unit: UnitOfWork, policy: ScalingPolicyView, decision: Decision) -> ScalingDecisionView | None:
    """Keeps the decision, and with it what it intends; None when nothing was written.

    A policy that was changed while it was decided on is left alone until the next pass.
    """
    current = await policies.find_policy(unit, policy.scaling_policy_id, is_locked=True)
    if current is None or current.generation != policy.generation:
        return None
    verdict = decision.verdict
    kept = _view(policy, decision)
    await decisions.insert_decision(unit, kept)
    await policies.note_told(unit, policy.scaling_policy_id, _told(verdict))
    unit.emit(ScalingDecided(decision=kept))
    if verdict.action is ScalingAction.ORDER_NODES:
        await _order(unit, policy, kept, verdict.nodes)
    elif verdict.action is ScalingAction.RELEASE_NODES:
        await _release(unit, policy, kept, verdict.chosen)
    elif verdict.action is ScalingAction.CANCEL_RELEASE:
        await _keep(unit, policy, kept, verdict.nodes)
    return kept


def _view(policy: ScalingPolicyView, decision: Decision) -> ScalingDecisionView:
    verdict = decision.verdict
    inputs: dict[str, Any] = _SITUATIONS.dump_python(decision.situation, mode="json")
    return ScalingDecisionView(
        scaling_decision_id=ScalingDecisionId.new(),
        scaling_policy_id=policy.scaling_policy_id,
        policy=policy.name,
        pool_id=policy.pool_id,
        flavor=policy.flavor,
        decided_at=decision.situation.now,
        rule=verdict.rule,
        action=verdict.action,
        nodes=verdict.nodes,
        code=verdict.code,
        reason=verdict.reason,
        load_ratio=verdict.load_ratio,
        rules=policy.rules,
        template=policy.template,
        inputs=inputs,
    )


async def _order(unit: UnitOfWork, policy: ScalingPolicyView, kept: ScalingDecisionView, count: int) -> None:
    first = await policies.note_out(unit, policy.scaling_policy_id, kept.decided_at, count)
    numbers = range(first, first + count)
    for order in await orders.insert_orders(unit, policy, kept.scaling_decision_id, numbers, kept.decided_at):
        unit.emit(NodeOrdered(order=order))


async def _release(
    unit: UnitOfWork, policy: ScalingPolicyView, kept: ScalingDecisionView, chosen: Sequence[str]
) -> None:
    wanted = {NodeOrderId.parse(text) for text in chosen}
    for row in await orders.list_live(unit, policy.scaling_policy_id):
        if NodeOrderId.of(row["id"]) in wanted and may_be_released(row):
            order = await orders.enter_state(
                unit,
                row,
                NodeOrderState.RELEASING,
                kept.decided_at,
                waits_for="the registry: the node has to be closed for new work",
                drain_seconds=policy.rules.drain_seconds,
            )
            unit.emit(NodeReleaseAnnounced(order=order))
    await policies.note_in(unit, policy.scaling_policy_id, kept.decided_at)


async def _keep(unit: UnitOfWork, policy: ScalingPolicyView, kept: ScalingDecisionView, count: int) -> None:
    rows = [row for row in await orders.list_live(unit, policy.scaling_policy_id) if row["state"] == "releasing"]
    # Those that were to leave last have most of their work still.
    for row in [row for row in reversed(rows) if is_cancellable(row)][:count]:
        order = await orders.enter_state(unit, row, NodeOrderState.JOINED, kept.decided_at)
        unit.emit(NodeReleaseCancelled(order=order))
    await policies.note_kept(unit, policy.scaling_policy_id, kept.decided_at)
