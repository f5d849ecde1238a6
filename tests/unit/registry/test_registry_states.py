"""The states of a node, its cordon reasons and its drain."""

import re
from datetime import UTC, datetime, timedelta
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_contracts.bodies.loans import LoanState, LoanView
from millpond_contracts.bodies.nodes import CordonReason, NodeState
from millpond_contracts.ids import LoanId, NodeId, PoolId
from millpond_registry.domain.loans import TRANSITIONS as LOANS
from millpond_registry.domain.loans import destination_of, observe_loan
from millpond_registry.domain.nodes import (
    Node,
    add_cordon,
    enter_pool,
    enter_state,
    mark_emptied,
    node_view,
    open_session,
    remove_cordon,
    request_drain,
)
from millpond_registry.domain.states import TRANSITIONS, IllegalTransition, transition
from tests.factories.registry import inventory

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def node(state: NodeState = NodeState.READY) -> Node:
    return Node(
        id=NodeId.new(),
        pool_id=PoolId.new(),
        name="machine",
        public_key=b"k" * 32,
        state=state,
        state_since=NOW,
        inventory=inventory(labels={"tier": "silver", "rack": "r1"}),
        created_at=NOW,
        boot_id="boot-1",
        labels={"tier": "gold"},
    )


@pytest.mark.parametrize("current", NodeState)
@pytest.mark.parametrize("wanted", NodeState)
def test_transition_when_no_edge_leads_there_then_refused(current: NodeState, wanted: NodeState) -> None:
    if wanted in TRANSITIONS[current]:
        assert transition(current, wanted) is wanted
    else:
        with pytest.raises(IllegalTransition, match=f"is {current}"):
            transition(current, wanted)


def test_transitions_when_read_then_every_edge_has_a_reason_and_removed_is_final() -> None:
    assert set(TRANSITIONS) == set(NodeState)
    assert all(reason for edges in TRANSITIONS.values() for reason in edges.values())
    assert TRANSITIONS[NodeState.REMOVED] == {}
    # Born unschedulable: only checks lead to ready, and a node that fell silent comes back as it was.
    entries = {state for state, edges in TRANSITIONS.items() if NodeState.READY in edges}
    assert entries == {NodeState.CHECKING, NodeState.UNREACHABLE}


@pytest.mark.parametrize(
    ("state", "boot_id", "expected"),
    [
        (NodeState.JOINED, "boot-1", NodeState.CHECKING),
        (NodeState.CHECKING, "boot-2", NodeState.CHECKING),
        (NodeState.READY, "boot-1", NodeState.READY),
        (NodeState.READY, "boot-2", NodeState.CHECKING),
        (NodeState.UNREACHABLE, "boot-1", NodeState.UNREACHABLE),
        (NodeState.UNREACHABLE, "boot-2", NodeState.CHECKING),
    ],
)
def test_open_session_when_machine_was_booted_then_checked_again(
    state: NodeState, boot_id: str, expected: NodeState
) -> None:
    opened = open_session(node(state), boot_id, "2", NOW)
    assert (opened.state, opened.incarnation, opened.sequence, opened.boot_id) == (expected, 1, None, boot_id)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(CordonReason)), max_size=20))
def test_cordons_when_added_and_removed_then_schedulable_only_without_any(
    changes: list[tuple[bool, CordonReason]],
) -> None:
    current = node()
    expected: set[CordonReason] = set()
    for is_added, reason in changes:
        current = add_cordon(current, reason) if is_added else remove_cordon(current, reason)
        (expected.add if is_added else expected.discard)(reason)
    assert current.cordons == expected
    assert current.schedulable == (not expected)


def test_drain_when_requested_then_named_by_the_generation_to_come() -> None:
    drained = request_drain(node(), CordonReason.DRAIN, 60, NOW)
    assert drained.drain is not None
    assert (drained.drain.generation, drained.drain.deadline) == (2, NOW + timedelta(seconds=60))
    assert drained.cordons == {CordonReason.DRAIN}
    assert mark_emptied(drained, NOW).emptied


def test_drain_when_reason_is_removed_then_only_its_own_drain_ends() -> None:
    moving = request_drain(add_cordon(node(), CordonReason.HEALTH), CordonReason.MOVE, 60, NOW, move_to=PoolId.new())
    assert remove_cordon(moving, CordonReason.HEALTH).drain == moving.drain
    assert remove_cordon(moving, CordonReason.MOVE).drain is None
    assert remove_cordon(moving, CordonReason.MOVE).cordons == {CordonReason.HEALTH}


def test_move_when_done_then_in_the_pool_without_drain() -> None:
    target = PoolId.new()
    moved = enter_pool(request_drain(node(), CordonReason.MOVE, 60, NOW, move_to=target), target, "other")
    assert (moved.pool_id, moved.name, moved.drain, moved.schedulable) == (target, "other", None, True)


@pytest.mark.parametrize(
    ("state", "elsewhere"), [(LoanState.MOVING, LoanState.ENDED), (LoanState.RETURNING, LoanState.LENT)]
)
def test_loan_when_an_operator_sends_its_node_to_a_third_pool_then_it_does_not_go_on(
    state: LoanState, elsewhere: LoanState
) -> None:
    lent = node()
    home, keeper = (lent.pool_id, PoolId.new()) if state is LoanState.MOVING else (PoolId.new(), lent.pool_id)
    loan = LoanView(
        loan_id=LoanId.new(),
        node_id=lent.id,
        node_name=lent.name,
        from_pool_id=home,
        to_pool_id=keeper,
        threshold="cpu",
        amount=1000,
        state=state,
        state_since=NOW,
        reason="short",
        asked_at=NOW,
        generation=2,
    )
    on_its_way = request_drain(lent, CordonReason.MOVE, 60, NOW, move_to=destination_of(loan))
    assert observe_loan(loan, on_its_way, 60, NOW) is loan
    turned = request_drain(on_its_way, CordonReason.MOVE, 60, NOW, move_to=PoolId.new())
    assert observe_loan(loan, turned, 60, NOW).state is elsewhere


def test_view_when_labels_conflict_then_those_of_the_join_win() -> None:
    assert node_view(node(), ()).labels == {"tier": "gold", "rack": "r1"}


def test_enter_state_when_entered_then_dated() -> None:
    later = NOW + timedelta(minutes=1)
    assert enter_state(node(), NodeState.UNREACHABLE, later).state_since == later


def test_readme_when_read_then_its_diagram_is_the_transition_table() -> None:
    readme = files("millpond_registry").joinpath("README.md").read_text(encoding="utf-8")
    drawn = set(re.findall(r"^    (\w+) --> (\w+):", readme, re.MULTILINE))
    tables = (TRANSITIONS, LOANS)
    edges = {(str(state), str(wanted)) for table in tables for state, ends in table.items() for wanted in ends}
    assert drawn == edges
