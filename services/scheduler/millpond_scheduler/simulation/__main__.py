"""`python -m millpond_scheduler.simulation placement ...`: what `millpond simulate placement` starts.

Ends with 2 and one line on standard error when the input cannot be used.
"""

import argparse
import hashlib
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from millpond_scheduler.domain.scoring import KERNEL_NODES, load_kernel
from millpond_scheduler.simulation import plots, reports
from millpond_scheduler.simulation.openb import History, run_openb
from millpond_scheduler.simulation.parallel import run_seeds
from millpond_scheduler.simulation.policies import POLICIES, SimulatedPolicy
from millpond_scheduler.simulation.replay import Clock, limit_times, run_replay
from millpond_scheduler.simulation.traces import TraceJob, TraceNode, read_jobs, read_nodes
from millpond_scheduler.simulation.tuning import tune

_SEEDS = re.compile(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*\Z")
_MOST_SEEDS = 10_000


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one simulation; the exit code."""
    options = _parse(argv)
    try:
        simulate = _simulate_openb if options.protocol == "openb" else _simulate_trace
        nodes = read_nodes(options.nodes)
        jobs = read_jobs(options.jobs, nodes)
        if len(nodes) >= KERNEL_NODES:
            load_kernel()  # once, before there are processes
        told = simulate(options, nodes, jobs)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"millpond simulate placement: {error}\n")
        return 2
    sys.stdout.write(told + "\n")
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
    placement.add_argument("--protocol", choices=("openb", "trace"), default="openb")
    placement.add_argument("--policy", choices=tuple(POLICIES), default="default")
    placement.add_argument("--tune", action="store_true")
    placement.add_argument("--history", choices=[each.value for each in History], default=History.JOBS.value)
    placement.add_argument("--load", type=float)
    placement.add_argument("--time-limits", type=float)
    placement.add_argument("--no-holds", action="store_true")
    placement.add_argument("--step-seconds", type=int, default=Clock().step_seconds)
    placement.add_argument("--seeds", default="42")
    placement.add_argument("--report", type=Path)
    placement.add_argument("--allocations", type=Path)
    placement.add_argument("--plot", type=Path)
    placement.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    return parser.parse_args(argv)


def _simulate_openb(options: argparse.Namespace, nodes: list[TraceNode], jobs: list[TraceJob]) -> str:
    if options.load is not None:
        raise ValueError("a load belongs to the protocol trace: in openb jobs arrive until 130 %")
    if options.time_limits is not None or options.no_holds:
        raise ValueError("time limits and holds belong to the protocol trace: in openb nothing waits or ends")
    if options.plot is not None:
        plots.check_plots()  # before minutes of work, not after
    history = History(options.history)
    seeds = parse_seeds(options.seeds)
    policy, tuned = _choose_policy(options, nodes, jobs)
    outcomes = run_seeds(partial(run_openb, nodes, jobs, policy, history), seeds, options.processes)
    about = {"policy": options.policy, **tuned, "history": history.value, **_describe(options, nodes, jobs)}
    report = reports.make_report([reports.sum_up_openb(outcome) for outcome in outcomes], about)
    _write(options, report, partial(reports.write_openb, outcomes=outcomes))
    if options.plot is not None:
        plots.plot_curves(report, options.plot)
    return reports.show_openb(report, outcomes)


def _simulate_trace(options: argparse.Namespace, nodes: list[TraceNode], jobs: list[TraceJob]) -> str:
    if options.load is not None and not (math.isfinite(options.load) and 0.001 <= options.load <= 1000):
        raise ValueError(f"expected a load from 0.001 to 1000, found {options.load}")
    if options.plot is not None:
        raise ValueError("only the protocol openb has curves to plot")
    clock = Clock(options.step_seconds, options.load)
    seeds = parse_seeds(options.seeds)
    policy, tuned = _choose_policy(options, nodes, jobs)
    if options.no_holds:
        policy = policy.without_holds()
    if options.time_limits is not None:
        jobs = limit_times(jobs, options.time_limits)
    replays = run_seeds(partial(run_replay, nodes, jobs, policy, clock), seeds, options.processes)
    times = {"load": clock.load, "step_seconds": clock.step_seconds, "time_limits": options.time_limits}
    times["holds"] = not options.no_holds
    about = {"policy": options.policy, **tuned, **times, **_describe(options, nodes, jobs)}
    report = reports.make_report([reports.sum_up_replay(each) for each in replays], about)
    _write(options, report, partial(reports.write_replay, replays=replays))
    return reports.show_replay(report, replays)


def _choose_policy(
    options: argparse.Namespace, nodes: list[TraceNode], jobs: list[TraceJob]
) -> tuple[SimulatedPolicy, dict[str, Any]]:
    """The policy asked for, tuned if that is wanted, and what the report says of its tuning."""
    policy = POLICIES[options.policy]
    if not options.tune:
        return policy, {"setting": policy.setting.name} if policy.learns else {}
    if not policy.learns:
        raise ValueError(f"the policy {policy.name} has nothing to tune")
    tuned = tune(nodes, jobs, policy, options.processes)
    return policy.tuned(tuned.setting), {"setting": tuned.setting.name, "tuning": tuned.scores}


def _describe(options: argparse.Namespace, nodes: list[TraceNode], jobs: list[TraceJob]) -> dict[str, Any]:
    devices = sum(node.devices for node in nodes)
    return {
        "protocol": options.protocol,
        "nodes": {**_describe_file(options.nodes), "nodes": len(nodes), "devices": devices},
        "jobs": {**_describe_file(options.jobs), "jobs": len(jobs)},
    }


def _describe_file(path: Path) -> dict[str, str]:
    return {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _write(options: argparse.Namespace, report: dict[str, Any], write_allocations: Callable[[Any], None]) -> None:
    if options.report is not None:
        reports.write_report(options.report, report)
    if options.allocations is not None:
        with options.allocations.open("w", encoding="utf-8", newline="") as file:
            write_allocations(file)


if __name__ == "__main__":
    sys.exit(main())
