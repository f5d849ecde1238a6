"""A pool under load that swings, pass after pass through the same rules: it must come to rest, never go to and fro."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random

import pytest

from millpond_autoscaler.domain.deciding import decide, watch_load
from millpond_autoscaler.domain.situation import Candidate, Signals
from millpond_contracts.bodies.scaling import ScalingAction
from millpond_contracts.ids import NodeId, NodeOrderId
from tests.unit.autoscaler.situations import FLAVOR, NOW, TEMPLATE, rules, situation

pytestmark = pytest.mark.unit

PASS = timedelta(seconds=30)
BOOT = timedelta(seconds=90)
NODE_MILLI = 8_000
RULES = rules(max_nodes=20)


@dataclass(slots=True)
class Pool:
    """Ten nodes of ours under the default times and thresholds; `actions` = what was done."""

    now: datetime = NOW
    joined: dict[str, datetime] = field(
        default_factory=lambda: {str(NodeOrderId.new()): NOW - timedelta(days=1) for _ in range(10)}
    )
    booting: dict[str, datetime] = field(default_factory=dict)
    low_since: datetime | None = None
    last_out_at: datetime | None = None
    last_in_at: datetime | None = None
    actions: list[ScalingAction] = field(default_factory=list)

    def go_on(self, held_milli: int) -> None:
        """One pass, 30 seconds after the last."""
        self.now += PASS
        for order in [order for order, at in self.booting.items() if at <= self.now]:
            self.joined[order] = self.booting.pop(order)
        count = len(self.joined)
        facts = situation(
            now=self.now,
            held_milli=held_milli,
            schedulable_milli=count * NODE_MILLI,
            nodes=count,
            ordered=len(self.booting),
            signals=Signals(expected=8 * count, told=8 * count, mean_ratio=0.5),
            last_out_at=self.last_out_at,
            last_in_at=self.last_in_at,
            candidates=self._packed(held_milli),
        )
        is_low = watch_load(RULES, TEMPLATE, FLAVOR, facts)
        self.low_since = (self.low_since or self.now) if is_low else None
        verdict = decide(RULES, TEMPLATE, FLAVOR, replace(facts, low_since=self.low_since))
        if verdict.action is ScalingAction.ORDER_NODES:
            self.booting |= {str(NodeOrderId.new()): self.now + BOOT for _ in range(verdict.nodes)}
            self.last_out_at = self.now
        elif verdict.action is ScalingAction.RELEASE_NODES:
            for order in verdict.chosen:
                del self.joined[order]
            self.last_in_at = self.now
        if verdict.action is not ScalingAction.NONE:
            self.actions.append(verdict.action)

    def _packed(self, held_milli: int) -> tuple[Candidate, ...]:
        """The work on as few nodes as hold it, as best fit leaves it."""
        left, found = held_milli, []
        for order, joined_at in self.joined.items():
            here = min(NODE_MILLI, left)
            left -= here
            found.append(Candidate(order, str(NodeId.new()), here, joined_at))
        return tuple(found)


def _hours(hours: float) -> int:
    return int(timedelta(hours=hours) / PASS)


def test_a1_load_when_it_spikes_once_and_goes_on_with_noise_then_one_action_and_rest() -> None:
    pool, chance = Pool(), Random(1)
    for number in range(_hours(14)):
        is_spike = _hours(1) <= number < _hours(1) + 10
        pool.go_on(68_000 if is_spike else round(40_000 * chance.uniform(0.95, 1.05)))
    assert pool.actions == [ScalingAction.ORDER_NODES]
    assert len(pool.joined) == 11


@pytest.mark.parametrize(
    ("load", "actions"),
    [
        # Over and under 80 % at every pass: one node more takes it below for good.
        (lambda number: 63_000 + 2_000 * (number % 2), 1),
        # Over and under 45 % at every pass: never low for a whole window.
        (lambda number: 35_000 + 2_000 * (number % 2), 0),
    ],
    ids=["around-the-emergency", "around-the-scale-in"],
)
def test_a1_load_when_it_swings_around_a_threshold_then_at_most_one_action(
    load: Callable[[int], int], actions: int
) -> None:
    pool = Pool()
    for number in range(_hours(14)):
        pool.go_on(load(number))
    assert len(pool.actions) == actions
