"""How a run's status becomes a reason of the closed list."""

from typing import Any

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_node_agent.report import end_reason, exit_number
from millpond_node_agent.runtimes.protocol import StopReason, TaskState, TaskStatus

pytestmark = pytest.mark.unit


def ended(**changes: Any) -> TaskStatus:
    values: dict[str, Any] = {"active_monotonic_ms": 10, "exit_code": 0, **changes}
    return TaskStatus(TaskState.EXITED, "boot", **values)


UNSEEN = ended(exit_code=None, stop_reason=StopReason.REQUESTED)


@pytest.mark.parametrize(
    ("status", "ordered", "reason", "number"),
    [
        (ended(), None, EndReason.COMPLETED, 0),
        (ended(exit_code=3), None, EndReason.EXIT_CODE, 3),
        (ended(exit_code=None, signal=11), None, EndReason.SIGNAL, -11),
        (ended(exit_code=None, signal=9, oom_killed=True), None, EndReason.OUT_OF_MEMORY, -9),
        (ended(exit_code=127, active_monotonic_ms=None), None, EndReason.START_FAILED, 127),
        (ended(stop_reason=StopReason.TIME_LIMIT), None, EndReason.TIME_LIMIT, 0),
        (ended(stop_reason=StopReason.LEASE_EXPIRED), None, EndReason.NODE_LOST, 0),
        (ended(stop_reason=StopReason.REQUESTED), EndReason.PREEMPTED, EndReason.PREEMPTED, 0),
        # It ended by itself before the order reached it, or before the time limit that the order came after.
        (ended(), EndReason.CANCELLED, EndReason.COMPLETED, 0),
        (ended(stop_reason=StopReason.TIME_LIMIT), EndReason.CANCELLED, EndReason.TIME_LIMIT, 0),
        # Nobody saw the end: the launcher was killed.
        (ended(exit_code=None, stop_reason=StopReason.REQUESTED), None, EndReason.SIGNAL, None),
        (
            ended(exit_code=None, stop_reason=StopReason.REQUESTED),
            EndReason.NODE_RESTARTED,
            EndReason.NODE_RESTARTED,
            None,
        ),
    ],
)
def test_end_reason_when_a_run_ended_then_the_cause_is_named(
    status: TaskStatus, ordered: EndReason | None, reason: EndReason, number: int | None
) -> None:
    assert end_reason(status, ordered) is reason
    assert exit_number(status) == number
