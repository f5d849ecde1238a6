"""The states of an ordered node and the only changes between them, and how long to wait after failures.

Source: docs/decisions/0031-states-and-cordon-as-a-set-of-reasons.md.
"""

from collections.abc import Mapping
from types import MappingProxyType

from millpond_contracts.bodies.scaling import NodeOrderState

TRANSITIONS: Mapping[NodeOrderState, Mapping[NodeOrderState, str]] = MappingProxyType(
    {
        NodeOrderState.REQUESTED: {
            NodeOrderState.PROVISIONING: "the provider took the order, or was found to have it",
            NodeOrderState.FAILED: "the provider had none, or did not take it in time",
        },
        NodeOrderState.PROVISIONING: {
            NodeOrderState.JOINED: "its node joined and is ready",
            NodeOrderState.RELEASING: "its node joined and did not become ready in time",
            NodeOrderState.FAILED: "no node joined in time",
        },
        NodeOrderState.JOINED: {
            NodeOrderState.RELEASING: "the load stayed low, or an operator removed the node",
        },
        NodeOrderState.RELEASING: {
            NodeOrderState.JOINED: "the node is needed again and nothing was given back yet",
            NodeOrderState.RELEASED: "emptied, removed and given back",
        },
        NodeOrderState.RELEASED: {},
        NodeOrderState.FAILED: {},
    }
)
"""From -> to -> why the change happens. The README's diagram shows the same edges."""

LIVE = tuple(state for state, following in TRANSITIONS.items() if following)
"""The states that an order can still leave."""

FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 600.0


class IllegalTransition(ValueError):
    """The state machine has no such edge."""


def transition(current: NodeOrderState, wanted: NodeOrderState) -> NodeOrderState:
    """The wanted state.

    Raises:
        IllegalTransition: no edge leads from `current` to `wanted`.
    """
    if wanted not in TRANSITIONS[current]:
        allowed = ", ".join(TRANSITIONS[current]) or "nothing"
        raise IllegalTransition(f"an order that is {current} may become {allowed}, not {wanted}")
    return wanted


def pause_seconds(failures: int) -> float:
    """How long to wait after so many failures in a row: twice as long each time."""
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(max(failures - 1, 0), 20))
