"""What a simulation leaves: a report in JSON, every arrival in CSV, and a few lines to read."""

import csv
import json
import statistics
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TextIO

from millpond_scheduler.simulation.openb import Outcome

ALLOCATION_COLUMNS = ("seed", "arrival", "job", "node", "devices", "milli", "accepted")


def make_report(outcomes: Sequence[Outcome], about: dict[str, Any]) -> dict[str, Any]:
    """The report on all seeds with their mean; nothing in it depends on the machine, so equal input gives equal text.

    Args:
        about: what was simulated; stands at the top.
    """
    names = ("arrivals", "placed", "refused", "unallocated_devices", "allocation_percent", "fragment_percent")
    seeds = [_report_seed(outcome) for outcome in outcomes]
    mean = {name: _average(statistics.fmean, [each[name] for each in seeds]) for name in names}
    report = {"engine": _engine_version(), **about, "mean": mean}
    if len(seeds) > 1:
        report["standard_deviation"] = {
            name: _average(statistics.stdev, [each[name] for each in seeds]) for name in names
        }
    return {**report, "seeds": seeds}


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write a report as JSON."""
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def write_allocations(file: TextIO, outcomes: Iterable[Outcome]) -> None:
    """Write one line per arrival, accepted or not; devices are indexes on the node, `milli` is of each of them."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(ALLOCATION_COLUMNS)
    for outcome in outcomes:
        for row in outcome.rows:
            devices = "|".join(map(str, row.devices))
            accepted = "true" if row.accepted else "false"
            writer.writerow((outcome.seed, row.arrival, row.job, row.node, devices, row.milli, accepted))


def show_report(report: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    """The mean over the seeds as a table, and how fast this machine decided."""
    mean = report["mean"]
    lines = [
        f"{report['protocol']}, policy {report['policy']}, {len(outcomes)} seeds: "
        f"{mean['placed']:.0f} of {mean['arrivals']:.0f} arrivals placed, "
        f"{mean['unallocated_devices']:.1f} devices idle at the end",
        "arrived %   allocated %   of idle is fragment %",
    ]
    for load, allocated in mean["allocation_percent"].items():
        lines.append(f"{load:>9}   {allocated:>11.2f}   {mean['fragment_percent'][load]:>21.2f}")
    decisions, seconds = sum(len(outcome.rows) for outcome in outcomes), sum(each.seconds for each in outcomes)
    if seconds:
        lines.append(f"{decisions / seconds:.0f} decisions a second of CPU time")
    return "\n".join(lines)


def _report_seed(outcome: Outcome) -> dict[str, Any]:
    return {
        "seed": outcome.seed,
        "arrivals": len(outcome.rows),
        "placed": outcome.placed,
        "refused": len(outcome.rows) - outcome.placed,
        "unallocated_devices": outcome.unallocated_devices,
        "allocation_percent": {str(each.load_percent): round(each.allocation_percent, 4) for each in outcome.points},
        "fragment_percent": {str(each.load_percent): round(each.fragment_percent, 4) for each in outcome.points},
    }


def _average(how: Any, values: Sequence[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _average(how, [each[key] for each in values]) for key in values[0]}
    return round(how(values), 4)


def _engine_version() -> str:
    try:
        return version("millpond")
    except PackageNotFoundError:
        return "unknown"
