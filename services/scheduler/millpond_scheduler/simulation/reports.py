"""What a simulation leaves: a report in JSON, every arrival in CSV, and a few lines to read.

Nothing in a report depends on the machine, so equal input gives equal text.
"""

import csv
import json
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from millpond_scheduler.simulation.openb import Outcome
from millpond_scheduler.simulation.replay import Replayed, Run

ALLOCATION_COLUMNS = ("seed", "arrival", "job", "node", "devices", "milli", "accepted")
TIME_COLUMNS = ("submit_s", "start_s", "end_s")


def make_report(seeds: Sequence[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
    """The report: what was simulated, the mean over the seeds with its standard deviation, then each seed.

    Args:
        seeds: one mapping per seed, of numbers or of mappings of numbers, with the same keys; `seed` is its number.
    """
    report = {"engine": _engine_version(), **about, "mean": _average(statistics.fmean, seeds)}
    if len(seeds) > 1:
        report["standard_deviation"] = _average(statistics.stdev, seeds)
    return {**report, "seeds": list(seeds)}


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write a report as JSON."""
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


# Protocol openb


def sum_up_openb(outcome: Outcome) -> dict[str, Any]:
    """One seed's figures: how much was placed, and the pool at each load."""
    return {
        "seed": outcome.seed,
        "arrivals": len(outcome.rows),
        "placed": outcome.placed,
        "refused": len(outcome.rows) - outcome.placed,
        "unallocated_devices": outcome.unallocated_devices,
        "allocation_percent": {str(each.load_percent): round(each.allocation_percent, 4) for each in outcome.points},
        "fragment_percent": {str(each.load_percent): round(each.fragment_percent, 4) for each in outcome.points},
    }


def write_openb(file: TextIO, outcomes: Iterable[Outcome]) -> None:
    """Write one line per arrival, accepted or not; devices are indexes on the node, `milli` is of each of them."""
    writer = _start(file, ALLOCATION_COLUMNS)
    for outcome in outcomes:
        for row in outcome.rows:
            accepted = "true" if row.accepted else "false"
            devices = _join(row.devices)
            writer.writerow((outcome.seed, row.arrival, row.job, row.node, devices, row.milli, accepted))


def _count(seeds: Sequence[object]) -> str:
    return f"{len(seeds)} seed{'s' if len(seeds) != 1 else ''}"


def show_openb(report: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    """The mean over the seeds as a table, and how fast this machine decided."""
    mean = report["mean"]
    lines = [
        f"openb, policy {report['policy']}, {_count(outcomes)}: "
        f"{mean['placed']:.0f} of {mean['arrivals']:.0f} arrivals placed, "
        f"{mean['unallocated_devices']:.1f} devices idle at the end",
        "arrived %   allocated %   of idle is fragment %",
    ]
    for load, allocated in mean["allocation_percent"].items():
        lines.append(f"{load:>9}   {allocated:>11.2f}   {mean['fragment_percent'][load]:>21.2f}")
    decisions, seconds = sum(len(outcome.rows) for outcome in outcomes), sum(each.seconds for each in outcomes)
    return "\n".join((*lines, *_show_rate(decisions, seconds)))


# Protocol trace


def sum_up_replay(replayed: Replayed) -> dict[str, Any]:
    """One seed's figures: devices held over time, and by size of task how long they waited.

    A task that has not started has waited until the end; its wait counts as at least that.
    """
    sizes: dict[str, list[Run]] = {}
    for run in replayed.runs:
        sizes.setdefault(_size_of(run), []).append(run)
    capacity = replayed.device_milli * max(replayed.end_s, 1)
    return {
        "seed": replayed.seed,
        "end_s": replayed.end_s,
        "offered_percent": round(100 * replayed.offered_milli_s / capacity, 4),
        "held_percent": round(100 * replayed.held_milli_s / capacity, 4),
        "tasks": {size: _sum_up_runs(sizes[size], replayed.end_s) for size in sorted(sizes)},
    }


def write_replay(file: TextIO, replays: Iterable[Replayed]) -> None:
    """Write one line per task in order of arrival, with its times in seconds, empty for what did not happen."""
    writer = _start(file, (*ALLOCATION_COLUMNS, *TIME_COLUMNS))
    for replayed in replays:
        for run in replayed.runs:
            accepted = "false" if run.start_s is None else "true"
            times = (run.submit_s, run.start_s, run.end_s)
            writer.writerow(
                (replayed.seed, run.arrival, run.job, run.node, _join(run.devices), run.milli, accepted, *times)
            )


def show_replay(report: dict[str, Any], replays: Sequence[Replayed]) -> str:
    """The mean over the seeds as a table, and how fast this machine decided."""
    mean = report["mean"]
    lines = [
        f"trace, policy {report['policy']}, {_count(replays)}: {mean['offered_percent']:.1f} % of the devices asked "
        f"for over {mean['end_s']:.0f} s, {mean['held_percent']:.2f} % held",
        "tasks      number   started   wait s: median       p95",
    ]
    for size, each in mean["tasks"].items():
        waits = f"{each['wait_p50_s']:>15.0f}   {each['wait_p95_s']:>7.0f}"
        lines.append(f"{size:<9}  {each['tasks']:>6.0f}   {each['started']:>7.0f}   {waits}")
    decisions, seconds = sum(each.decisions for each in replays), sum(each.seconds for each in replays)
    return "\n".join((*lines, *_show_rate(decisions, seconds)))


def _size_of(run: Run) -> str:
    if not run.asked_devices:
        return "cpu"
    if run.is_gang:
        return "gang"
    return "small" if run.asked_devices == 1 else "several"


def _sum_up_runs(runs: Sequence[Run], end_s: int) -> dict[str, float]:
    waits = sorted((end_s if run.start_s is None else run.start_s) - run.submit_s for run in runs)
    started = sum(run.start_s is not None for run in runs)
    return {
        "tasks": len(runs),
        "started": started,
        "wait_mean_s": round(statistics.fmean(waits), 4),
        "wait_p50_s": waits[(len(waits) - 1) // 2],
        "wait_p95_s": waits[max(0, -(-95 * len(waits) // 100) - 1)],
    }


def _show_rate(decisions: int, seconds: float) -> list[str]:
    return [f"{decisions / seconds:.0f} decisions a second of CPU time"] if seconds else []


def _start(file: TextIO, columns: Sequence[str]) -> Any:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    return writer


def _join(devices: Iterable[int]) -> str:
    return "|".join(map(str, devices))


def _average(how: Any, values: Sequence[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _average(how, [each[key] for each in values]) for key in values[0] if key != "seed"}
    return round(how(values), 4)


def _engine_version() -> str:
    try:
        return version("millpond")
    except PackageNotFoundError:
        return "unknown"
