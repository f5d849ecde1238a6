"""A simulated task as a function of the clock: every way to end, what it prints, what it measures."""

import signal
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_node_agent.runtimes.protocol import Simulation, StopReason, TaskState, TaskTerms
from millpond_node_agent.simulation.acting import Act, End, Stop, end_of, progress_at, status_at, text_at, value_at

pytestmark = pytest.mark.unit

START = 50_000
REQUESTED, LIMIT = StopReason.REQUESTED, StopReason.TIME_LIMIT


def act(
    seconds: float = 10,
    exit_code: int = 0,
    *,
    stop_seconds: float = 0,
    limit: int | None = None,
    stop: Stop | None = None,
    started: int | None = START,
    signals: Mapping[str, tuple[tuple[float, float], ...]] | None = None,
) -> Act:
    terms = TaskTerms("alloc", "job", "task", "tenant", 1, 1, 1000, 512, (), stop_grace_seconds=5)
    return Act(terms, Simulation(seconds, exit_code, stop_seconds, signals or {}), limit, "boot", started, stop)


def asked(at_seconds: float, grace_seconds: float, reason: StopReason = REQUESTED) -> Stop:
    at = START + int(at_seconds * 1000)
    return Stop(at, at + int(grace_seconds * 1000), reason)


@pytest.mark.parametrize(
    ("task", "end"),
    [
        (act(), End(60_000, 0, None, None)),
        (act(exit_code=3), End(60_000, 3, None, None)),
        (act(seconds=0), End(50_000, 0, None, None)),
        (act(stop=asked(2, 5)), End(52_000, None, signal.SIGTERM, REQUESTED)),
        (act(stop=asked(2, 5), stop_seconds=3), End(55_000, None, signal.SIGTERM, REQUESTED)),
        (act(stop=asked(2, 1), stop_seconds=3), End(53_000, None, signal.SIGKILL, REQUESTED)),
        (act(stop=asked(9, 5), stop_seconds=3), End(60_000, 0, None, REQUESTED)),  # it ended before the stop did
        (act(stop=asked(11, 5)), End(60_000, 0, None, None)),  # it was over when it was told
        (act(limit=4), End(54_000, None, signal.SIGTERM, LIMIT)),
        (act(limit=4, stop_seconds=60), End(59_000, None, signal.SIGKILL, LIMIT)),  # the job's grace is 5 s
        (act(limit=10), End(60_000, 0, None, None)),
        (act(limit=4, stop=asked(1, 5)), End(51_000, None, signal.SIGTERM, REQUESTED)),
        (act(started=None), None),
        (act(started=None, stop=asked(1, 5)), End(51_000, None, None, REQUESTED)),
    ],
)
def test_end_when_a_task_goes_its_way_or_is_stopped_then_as_a_real_one(task: Act, end: End | None) -> None:
    assert end_of(task) == end


@given(
    seconds=st.floats(0, 100),
    stop_seconds=st.floats(0, 100),
    limit=st.none() | st.integers(1, 100),
    told=st.none() | st.tuples(st.integers(0, 100_000), st.integers(0, 100_000)),
)
def test_end_when_told_to_stop_then_never_after_the_kill_and_never_later_than_alone(
    seconds: float, stop_seconds: float, limit: int | None, told: tuple[int, int] | None
) -> None:
    stop = None if told is None else Stop(START + told[0], START + told[0] + told[1], REQUESTED)
    alone = end_of(act(seconds, stop_seconds=stop_seconds, limit=limit))
    end = end_of(act(seconds, stop_seconds=stop_seconds, limit=limit, stop=stop))
    assert alone is not None
    assert end is not None
    assert START <= end.at_ms <= alone.at_ms
    assert stop is None or end.at_ms <= max(stop.kill_ms, START)


def test_status_when_the_clock_goes_on_then_prepared_running_exited() -> None:
    assert status_at(act(started=None), START).state is TaskState.PREPARED
    running = status_at(act(), 59_999)
    assert (running.state, running.started_monotonic_ms, running.active_monotonic_ms) == (
        TaskState.RUNNING,
        START,
        START,
    )
    over = status_at(act(exit_code=7), 60_000)
    assert (over.state, over.exit_code, over.empty_monotonic_ms) == (TaskState.EXITED, 7, 60_000)


def test_log_when_read_early_then_the_beginning_of_what_is_read_late() -> None:
    late = text_at(act(exit_code=2), 99_000)
    assert late.decode().splitlines() == [
        "simulated: 10 s, exit code 2",
        "progress 25 %",
        "progress 50 %",
        "progress 75 %",
        "ended with exit code 2",
    ]
    for now in range(START, 61_000, 250):
        assert late.startswith(text_at(act(exit_code=2), now))
    assert text_at(act(stop=asked(3, 5)), 99_000).decode().splitlines()[-1] == "ended with SIGTERM"
    assert text_at(act(started=None), START) == b""


def test_curve_when_between_points_then_a_straight_line_and_level_outside() -> None:
    task = act(signals={"utilization_ratio": ((2.0, 0.2), (4.0, 0.6))})
    found = [value_at(task, "utilization_ratio", 9.0, START + ms) for ms in (0, 2_000, 3_000, 4_000, 9_000)]
    assert found == pytest.approx([0.2, 0.2, 0.4, 0.6, 0.6])
    assert value_at(task, "loss", 9.0, START) == 9.0


def test_progress_when_running_then_from_nought_to_one() -> None:
    assert [progress_at(act(), now) for now in (START, 55_000, 60_000, 70_000)] == [0.0, 0.5, 1.0, 1.0]
    assert progress_at(act(seconds=0), START) == 1.0
