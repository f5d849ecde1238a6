"""How a simulated task goes, as pure functions of the machine's clock: its state, its end, what it prints and measures.

Nothing ticks: a task that nobody looks at costs nothing, and an agent that comes back finds every task where it is.
"""

import signal
from dataclasses import dataclass

from millpond_node_agent.runtimes.protocol import Simulation, StopReason, TaskState, TaskStatus, TaskTerms

PROGRESS = "progress_ratio"
_TOLD_PERCENT = (25, 50, 75)


@dataclass(frozen=True, slots=True)
class Stop:
    """The order to end: from `at_ms` on, by force at `kill_ms`."""

    at_ms: int
    kill_ms: int
    reason: StopReason


@dataclass(frozen=True, slots=True)
class Act:
    """One simulated task. `started_ms` None = only prepared; instants are of the clock of `boot_id`."""

    terms: TaskTerms
    simulation: Simulation
    time_limit_seconds: int | None
    boot_id: str
    started_ms: int | None = None
    stop: Stop | None = None


@dataclass(frozen=True, slots=True)
class End:
    """When and how a task ends if nothing else happens."""

    at_ms: int
    exit_code: int | None
    signal: int | None
    reason: StopReason | None


def end_of(act: Act) -> End | None:
    """The end as it is due now; None for a task that was neither started nor stopped."""
    if act.started_ms is None:
        return None if act.stop is None else End(act.stop.at_ms, None, None, act.stop.reason)
    natural_ms = act.started_ms + _ms(act.simulation.seconds)
    asked = None if act.stop is None or act.stop.at_ms >= natural_ms else act.stop.reason
    ends = [End(natural_ms, act.simulation.exit_code, None, asked)]
    if act.time_limit_seconds is not None:
        limit_ms = act.started_ms + act.time_limit_seconds * 1000
        grace_ms = _ms(act.terms.stop_grace_seconds)
        ends.append(_end_of_stop(act, Stop(limit_ms, limit_ms + grace_ms, StopReason.TIME_LIMIT)))
    if act.stop is not None:
        ends.append(_end_of_stop(act, act.stop))
    return min(ends, key=lambda end: end.at_ms)  # of equal ones the first: it was over anyway


def status_at(act: Act, now_ms: int) -> TaskStatus:
    """What is known of the task at this instant."""
    end = end_of(act)
    if end is not None and now_ms >= end.at_ms:
        return TaskStatus(
            state=TaskState.EXITED,
            boot_id=act.boot_id,
            exit_code=end.exit_code,
            signal=end.signal,
            stop_reason=end.reason,
            started_monotonic_ms=act.started_ms,
            active_monotonic_ms=act.started_ms,
            ended_monotonic_ms=end.at_ms,
            empty_monotonic_ms=end.at_ms,
        )
    if act.started_ms is None:
        return TaskStatus(TaskState.PREPARED, act.boot_id)
    return TaskStatus(
        TaskState.RUNNING, act.boot_id, started_monotonic_ms=act.started_ms, active_monotonic_ms=act.started_ms
    )


def is_running(act: Act, now_ms: int) -> bool:
    """Whether the task holds and uses what it was given."""
    return status_at(act, now_ms).state is TaskState.RUNNING


def progress_at(act: Act, now_ms: int) -> float:
    """How far the task has come, 0 to 1."""
    if act.started_ms is None:
        return 0.0
    whole = _ms(act.simulation.seconds)
    return 1.0 if whole == 0 else min(max((now_ms - act.started_ms) / whole, 0.0), 1.0)


def value_at(act: Act, name: str, default: float, now_ms: int) -> float:
    """The value of the task's curve `name` at this instant, `default` when it has none."""
    points = act.simulation.signals.get(name)
    if not points or act.started_ms is None:
        return default
    seconds = (now_ms - act.started_ms) / 1000
    before = [point for point in points if point[0] <= seconds]
    after = [point for point in points if point[0] > seconds]
    if not before or not after:
        return (before[-1] if before else after[0])[1]
    (left, low), (right, high) = before[-1], after[0]
    return low + (high - low) * (seconds - left) / (right - left)


def text_at(act: Act, now_ms: int) -> bytes:
    """All that the task has printed until this instant."""
    if act.started_ms is None:
        return b""
    end = end_of(act)
    assert end is not None
    simulation, seen_ms = act.simulation, min(now_ms, end.at_ms)
    lines = [f"simulated: {simulation.seconds:g} s, exit code {simulation.exit_code}"]
    lines += [f"progress {told} %" for told in _TOLD_PERCENT if progress_at(act, seen_ms) * 100 >= told]
    if now_ms >= end.at_ms:
        how = f"exit code {end.exit_code}" if end.signal is None else signal.Signals(end.signal).name
        lines.append(f"ended with {how}")
    return "".join(f"{line}\n" for line in lines).encode()


def _end_of_stop(act: Act, stop: Stop) -> End:
    gone_ms = stop.at_ms + _ms(act.simulation.stop_seconds)
    if gone_ms <= stop.kill_ms:
        return End(gone_ms, None, signal.SIGTERM, stop.reason)
    return End(stop.kill_ms, None, signal.SIGKILL, stop.reason)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
