"""One loan of a node: its states, and what the node's own row says about it."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType

from millpond_contracts.bodies.loans import LoanState, LoanView
from millpond_contracts.bodies.nodes import NodeState
from millpond_contracts.ids import PoolId
from millpond_registry.domain.nodes import Node

OPEN = frozenset({LoanState.MOVING, LoanState.LENT, LoanState.RETURNING})

TRANSITIONS: Mapping[LoanState, Mapping[LoanState, str]] = MappingProxyType(
    {
        LoanState.MOVING: {
            LoanState.LENT: "the emptied node entered the borrowing pool",
            LoanState.ENDED: "work came first, or the node is gone or was moved by an operator",
        },
        LoanState.LENT: {
            LoanState.RETURNING: "it is no longer needed, or due, or asked back",
            LoanState.RETURNED: "an operator moved it home",
            LoanState.ENDED: "the node is gone or was moved elsewhere",
        },
        LoanState.RETURNING: {
            LoanState.RETURNED: "the emptied node is home",
            LoanState.LENT: "work came first: it stays until it is idle again, or due",
            LoanState.ENDED: "the node is gone or was moved elsewhere",
        },
        LoanState.RETURNED: {},
        LoanState.ENDED: {},
    }
)
"""From -> to -> why the change happens."""


class IllegalLoanTransition(ValueError):
    """The state machine has no such edge."""


def enter_loan_state(loan: LoanView, state: LoanState, reason: str, now: datetime) -> LoanView:
    """The loan in another state since `now`, with its next generation.

    Raises:
        IllegalLoanTransition: there is no such edge.
    """
    if state not in TRANSITIONS[loan.state]:
        raise IllegalLoanTransition(f"a loan that is {loan.state} may not become {state}")
    return loan.model_copy(
        update={
            "state": state,
            "state_since": now,
            "reason": reason,
            "ended_at": None if state in OPEN else now,
            "generation": loan.generation + 1,
        }
    )


def destination_of(loan: LoanView) -> PoolId:
    """Where the node of an open loan goes, or is."""
    return loan.from_pool_id if loan.state is LoanState.RETURNING else loan.to_pool_id


def moves_to(node: Node, pool_id: PoolId) -> bool:
    """Whether the node is being emptied to enter this pool; an operator may have sent it to another meanwhile."""
    return node.drain is not None and node.drain.move_to == pool_id


def observe_loan(loan: LoanView, node: Node | None, return_after_seconds: int, now: datetime) -> LoanView:
    """The loan after what became of its node since; the same object when nothing did.

    Args:
        node: the node's row now, None when there is none.
        return_after_seconds: when a node that has just arrived is due.
    """
    if node is None or node.state is NodeState.REMOVED:
        return enter_loan_state(loan, LoanState.ENDED, "the node was removed", now)
    if node.pool_id not in (loan.from_pool_id, loan.to_pool_id):
        return enter_loan_state(loan, LoanState.ENDED, "the node was moved to a third pool", now)
    is_there = node.pool_id == loan.to_pool_id
    is_moving = moves_to(node, destination_of(loan))
    if loan.state is LoanState.MOVING:
        if is_there:
            arrived = enter_loan_state(loan, LoanState.LENT, loan.reason, now)
            return arrived.model_copy(
                update={"arrived_at": now, "due_at": now + timedelta(seconds=return_after_seconds)}
            )
        return (
            loan
            if is_moving
            else enter_loan_state(loan, LoanState.ENDED, "the move was called off, or led elsewhere", now)
        )
    if not is_there:
        return enter_loan_state(loan, LoanState.RETURNED, loan.reason, now)
    if loan.state is LoanState.RETURNING and not is_moving:
        return enter_loan_state(loan, LoanState.LENT, "the return was called off, or led elsewhere", now)
    return loan
