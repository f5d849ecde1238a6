"""The states of a node and the only changes between them.

Source: docs/decisions, states (joined → checking → ready ⇄ unreachable → removed; cordons stand beside the state).
"""

from collections.abc import Mapping
from types import MappingProxyType

from millpond_contracts.bodies.nodes import NodeState

TRANSITIONS: Mapping[NodeState, Mapping[NodeState, str]] = MappingProxyType(
    {
        NodeState.JOINED: {
            NodeState.CHECKING: "the agent opened its first session",
            NodeState.REMOVED: "an operator removed a machine that never started",
        },
        NodeState.CHECKING: {
            NodeState.READY: "the agent reported explicitly that the node can work",
            NodeState.REMOVED: "an operator removed a machine that did not pass its checks",
        },
        NodeState.READY: {
            NodeState.UNREACHABLE: "no heartbeat for longer than the pool allows",
            NodeState.CHECKING: "the machine was booted anew: everything is checked again",
            NodeState.REMOVED: "an operator removed the emptied node",
        },
        NodeState.UNREACHABLE: {
            NodeState.READY: "a heartbeat came back",
            NodeState.CHECKING: "the machine came back after a boot: everything is checked again",
            NodeState.REMOVED: "an operator gave the machine up",
        },
        NodeState.REMOVED: {},
    }
)
"""From -> to -> why the change happens. The README's diagram shows the same edges."""


class IllegalTransition(ValueError):
    """The state machine has no such edge."""


def transition(current: NodeState, wanted: NodeState) -> NodeState:
    """The wanted state.

    Raises:
        IllegalTransition: no edge leads from `current` to `wanted`.
    """
    if wanted not in TRANSITIONS[current]:
        allowed = ", ".join(TRANSITIONS[current]) or "nothing"
        raise IllegalTransition(f"a node that is {current} may become {allowed}, not {wanted}")
    return wanted
