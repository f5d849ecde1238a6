"""`python -m millpond_scheduler.simulation placement ...`: what `millpond simulate placement` starts.

Ends with 2 and one line on standard error when the input cannot be used.
"""

import argparse
import hashlib
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from millpond_scheduler.simulation.openb import Outcome, run_openb
from millpond_scheduler.simulation.policies import POLICIES
from millpond_scheduler.simulation.reports import make_report, show_report, write_allocations, write_report
from millpond_scheduler.simulation.traces import read_jobs, read_nodes

_SEEDS = re.compile(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*\Z")
_MOST_SEEDS = 10_000


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one simulation; the exit code."""
    options = _parse(argv)
    try:
        _simulate(options)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"millpond simulate placement: {error}\n")
        return 2
    return 0


def parse_seeds(text: str) -> list[int]:
    """Seeds written as `42-51`, `7` or `1,3,8-9`, in the order written, each once.

    Raises:
        ValueError: anything else, an empty range, or more than 10,000 of them.
    """
    if not _SEEDS.match(text):
        raise ValueError(f"expected seeds such as 42-51 or 1,3,8-9, found {text[:40]!r}")
    seeds: dict[int, None] = {}
    for part in text.split(","):
        first, _, last = part.partition("-")
        found = range(int(first), int(last or first) + 1)
        if not found:
            raise ValueError(f"the seeds {part} run backwards")
        if len(seeds) + len(found) > _MOST_SEEDS:
            raise ValueError(f"there are more than {_MOST_SEEDS} seeds")
        seeds |= dict.fromkeys(found)
    return list(seeds)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="millpond simulate", description=__doc__)
    placement = parser.add_subparsers(required=True).add_parser("placement")
    placement.add_argument("--nodes", type=Path, required=True)
    placement.add_argument("--jobs", type=Path, required=True)
    placement.add_argument("--protocol", choices=("openb",), default="openb")
    placement.add_argument("--policy", choices=tuple(POLICIES), default="default")
    placement.add_argument("--seeds", default="42")
    placement.add_argument("--report", type=Path)
    placement.add_argument("--allocations", type=Path)
    placement.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args(argv)


def _simulate(options: argparse.Namespace) -> None:
    seeds = parse_seeds(options.seeds)
    nodes = read_nodes(options.nodes)
    jobs = read_jobs(options.jobs, nodes)
    about: dict[str, Any] = {
        "protocol": options.protocol,
        "policy": options.policy,
        "nodes": {**_describe(options.nodes), "nodes": len(nodes), "devices": sum(node.devices for node in nodes)},
        "jobs": {**_describe(options.jobs), "jobs": len(jobs)},
    }
    outcomes = run_seeds(partial(run_openb, nodes, jobs, POLICIES[options.policy]), seeds, options.processes)
    report = make_report(outcomes, about)
    if options.report is not None:
        write_report(options.report, report)
    if options.allocations is not None:
        with options.allocations.open("w", encoding="utf-8", newline="") as file:
            write_allocations(file, outcomes)
    sys.stdout.write(show_report(report, outcomes) + "\n")


def run_seeds(run: Callable[[int], Outcome], seeds: Sequence[int], processes: int) -> list[Outcome]:
    """Every seed's outcome in the order of the seeds, so many of them at a time."""
    workers = max(1, min(processes, len(seeds)))
    if workers == 1:
        return [run(seed) for seed in seeds]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as executor:
        return list(executor.map(run, seeds))


def _describe(path: Path) -> dict[str, str]:
    return {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


if __name__ == "__main__":
    sys.exit(main())
