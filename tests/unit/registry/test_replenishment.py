"""Who lends what to whom, and when it returns: every rule as a row, and what no pass may ever do."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_contracts.bodies.loans import LoanState, LoanView, Threshold
from millpond_contracts.ids import LoanId, NodeId, PoolId
from millpond_registry.domain.replenishment import (
    PATIENCE,
    CallOff,
    IdleNode,
    Lend,
    PoolRoom,
    Return,
    Short,
    Situation,
    Step,
    amount_in_words,
    decide_replenishment,
)

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NEEDY, DONOR, SECOND = PoolId.new(), PoolId.new(), PoolId.new()
KEY = "device/t4"


def rule(**more: Any) -> Threshold:
    return Threshold.model_validate({"flavor": "t4", "low": 4000, "donors": [DONOR, SECOND], "max_nodes": 9, **more})


def pool(pool_id: PoolId, available: int, *thresholds: Threshold, **more: int) -> PoolRoom:
    name = {NEEDY: "needy", DONOR: "donor", SECOND: "second"}[pool_id]
    return PoolRoom(pool_id, name, thresholds, {KEY: available, **more})


def node(pool_id: PoolId, amount: int, name: str = "n", node_id: NodeId | None = None, **more: int) -> IdleNode:
    return IdleNode(node_id or NodeId.new(), name, pool_id, {KEY: amount, **more})


def loan(state: LoanState, amount: int = 2000, **more: Any) -> LoanView:
    values: dict[str, Any] = {
        "loan_id": LoanId.new(),
        "node_id": NodeId.new(),
        "node_name": "n",
        "from_pool_id": DONOR,
        "to_pool_id": NEEDY,
        "threshold": KEY,
        "amount": amount,
        "state": state,
        "state_since": NOW,
        "reason": "",
        "asked_at": NOW,
        "due_at": NOW + timedelta(hours=1),
        "generation": 1,
        **more,
    }
    return LoanView(**values)


def decide(
    *pools: PoolRoom, idle: tuple[IdleNode, ...] = (), loans: tuple[LoanView, ...] = (), low: bool = False
) -> list[Step]:
    known = frozenset({(NEEDY, KEY)}) if low else frozenset()
    return decide_replenishment(Situation({each.pool_id: each for each in pools}, idle, loans, known, NOW))


def lent(steps: list[Step]) -> list[str]:
    return [step.node.name for step in steps if isinstance(step, Lend)]


def test_threshold_when_crossed_then_told_once_in_each_direction() -> None:
    needy = pool(NEEDY, 3999, rule(donors=[]))
    assert decide(needy) == [Short(NEEDY, needy.thresholds[0], 3999, is_low=True)]
    assert decide(needy, low=True) == []
    restored = pool(NEEDY, 4000, rule(donors=[]))
    assert decide(restored, low=True) == [Short(NEEDY, restored.thresholds[0], 4000, is_low=False)]
    assert decide(restored) == []


def test_pool_when_short_then_borrows_until_enough_from_the_first_donor_that_can() -> None:
    nodes = (node(DONOR, 2000, "d1"), node(DONOR, 2000, "d2"), node(SECOND, 2000, "s1"), node(SECOND, 2000, "s2"))
    pools = (pool(NEEDY, 1000, rule(enough=6000)), pool(DONOR, 4000), pool(SECOND, 4000))
    assert lent(decide(*pools, idle=nodes)) == ["d1", "d2", "s1"]
    assert lent(decide(*pools, idle=nodes[2:])) == ["s1", "s2"]
    assert lent(decide(pool(NEEDY, 4000, rule(enough=6000)), *pools[1:], idle=nodes)) == []


def test_reason_when_told_then_in_the_words_of_people() -> None:
    (_, lend) = decide(pool(NEEDY, 500, rule(low=2500)), pool(DONOR, 4000), idle=(node(DONOR, 4000),))
    assert isinstance(lend, Lend)
    assert lend.reason == "pool needy has 0.5 devices of t4 available, below 2.5 devices of t4"
    assert amount_in_words("cpu", 16_000) == "16 cores"
    assert amount_in_words("memory", 512) == "512 MiB of memory"


def test_pool_when_short_then_the_node_with_least_to_spare_comes() -> None:
    nodes = (node(DONOR, 8000, "large"), node(DONOR, 4000, "fits"), node(DONOR, 1000, "small"))
    assert lent(decide(pool(NEEDY, 1000, rule()), pool(DONOR, 13_000), idle=nodes)) == ["fits"]
    assert lent(decide(pool(NEEDY, 1000, rule()), pool(DONOR, 13_000), idle=nodes[2:])) == ["small"]


@pytest.mark.parametrize(
    ("needy", "donor", "loans", "expected"),
    [
        (rule(), (), (), 2),
        (rule(max_nodes=1), (), (), 1),
        (rule(max_nodes=1), (), (loan(LoanState.LENT),), 0),
        (rule(), (), (loan(LoanState.MOVING, 3000),), 0),  # what is on its way counts
        (rule(), (), (loan(LoanState.MOVING, 1000),), 1),
        (rule(donor_keeps=3000), (), (), 1),
        (rule(donor_keeps=5000), (), (), 0),
        (rule(), (Threshold(flavor="t4", low=3000),), (), 1),  # the donor's own threshold
        (rule(), (Threshold(resource="cpu", low=50_000),), (), 1),  # and that of another resource
        (rule(donors=[NEEDY]), (), (), 0),
    ],
)
def test_donor_when_asked_then_keeps_what_it_needs(
    needy: Threshold, donor: tuple[Threshold, ...], loans: tuple[LoanView, ...], expected: int
) -> None:
    nodes = tuple(node(DONOR, 2000, f"d{number}", cpu=32_000) for number in range(3))
    pools = (pool(NEEDY, 1000, needy), pool(DONOR, 6000, *donor, cpu=96_000))
    assert len(lent(decide(*pools, idle=nodes, loans=loans))) == expected


def test_node_when_on_loan_then_not_lent_on() -> None:
    held = loan(LoanState.LENT, from_pool_id=SECOND, to_pool_id=DONOR)
    nodes = (node(DONOR, 2000, "borrowed", held.node_id),)
    steps = decide(pool(NEEDY, 0, rule()), pool(DONOR, 2000), pool(SECOND, 0), idle=nodes, loans=(held,))
    assert lent(steps) == []


def test_loan_when_enough_is_there_without_it_then_it_returns_while_idle_and_only_one_too_many() -> None:
    first, second = loan(LoanState.LENT), loan(LoanState.LENT, asked_at=NOW + timedelta(seconds=1))
    idle = (node(NEEDY, 2000, "a", first.node_id), node(NEEDY, 2000, "b", second.node_id))
    pools = (pool(NEEDY, 7000, rule(enough=5000)), pool(DONOR, 0))
    (step,) = decide(*pools, idle=idle, loans=(second, first))
    assert isinstance(step, Return)
    assert (step.loan, step.grace_seconds) == (first, None)
    assert decide(*pools, idle=idle[1:], loans=(first,)) == []  # busy: it stays
    assert decide(pool(NEEDY, 6999, rule(enough=5000)), pool(DONOR, 0), idle=idle, loans=(first, second)) == []


def test_loan_when_the_lender_is_short_then_it_returns_though_there_would_be_less_than_enough() -> None:
    held = loan(LoanState.LENT)
    idle = (node(NEEDY, 2000, "a", held.node_id),)
    donor = pool(DONOR, 100, Threshold(flavor="t4", low=1000))
    (told, step) = decide(pool(NEEDY, 6000, rule(enough=9000)), donor, idle=idle, loans=(held,))
    assert isinstance(told, Short)
    assert isinstance(step, Return)
    assert "donor" in step.reason
    (told,) = decide(pool(NEEDY, 5999, rule(enough=9000)), donor, idle=idle, loans=(held,))
    assert isinstance(told, Short)


def test_loan_when_due_then_it_returns_busy_or_not_with_the_rule_s_grace() -> None:
    held = loan(LoanState.LENT, due_at=NOW)
    (step,) = decide(pool(NEEDY, 0, rule(return_grace_seconds=60)), loans=(held,), low=True)
    assert isinstance(step, Return)
    assert step.grace_seconds == 60


def test_loan_when_its_threshold_is_gone_then_it_returns() -> None:
    held = loan(LoanState.LENT)
    (step,) = decide(pool(NEEDY, 0), idle=(node(NEEDY, 2000, "a", held.node_id),), loans=(held,))
    assert isinstance(step, Return)


@pytest.mark.parametrize(
    ("state", "since", "due", "called_off"),
    [
        (LoanState.MOVING, NOW - PATIENCE, None, False),
        (LoanState.MOVING, NOW - PATIENCE - timedelta(seconds=1), None, True),
        (LoanState.RETURNING, NOW - 2 * PATIENCE, NOW + timedelta(hours=1), True),
        (LoanState.RETURNING, NOW - 2 * PATIENCE, NOW, False),  # due: the drain's deadline ends it
        (LoanState.LENT, NOW - 2 * PATIENCE, None, False),
    ],
)
def test_move_when_work_came_first_then_called_off(
    state: LoanState, since: datetime, due: datetime | None, called_off: bool
) -> None:
    held = loan(state, state_since=since, due_at=due)
    steps = decide(pool(NEEDY, 4000, rule()), loans=(held,))
    assert any(isinstance(step, CallOff) for step in steps) == called_off


@given(
    available=st.integers(0, 10_000),
    low=st.integers(1, 8000),
    more=st.integers(0, 8000),
    keeps=st.integers(0, 4000),
    offers=st.lists(st.integers(0, 4000), max_size=8),
    held=st.lists(st.integers(1, 4000), max_size=4),
)
def test_pass_when_anything_is_there_then_donors_keep_theirs_and_nothing_swings(
    available: int, low: int, more: int, keeps: int, offers: list[int], held: list[int]
) -> None:
    threshold = rule(low=low, enough=low + more, donor_keeps=keeps)
    idle = tuple(node(DONOR, offer, f"d{index}") for index, offer in enumerate(offers))
    loans = tuple(loan(LoanState.LENT, amount) for amount in held)
    back = tuple(node(NEEDY, each.amount, "b", each.node_id) for each in loans)
    donor_has = sum(offers)
    steps = decide(pool(NEEDY, available, threshold), pool(DONOR, donor_has), idle=(*idle, *back), loans=loans)
    lends = [step for step in steps if isinstance(step, Lend)]
    returns = [step for step in steps if isinstance(step, Return)]
    assert not (lends and returns)
    assert len({step.node.node_id for step in lends}) == len(lends)
    assert not lends or donor_has - sum(step.node.offers[KEY] for step in lends) >= keeps
    assert not returns or available - sum(step.loan.amount for step in returns) >= low + more
