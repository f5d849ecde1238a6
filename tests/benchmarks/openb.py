"""How well the default policy packs the published workloads, beside the published results; one JSON line per figure.

For each list of jobs in the folder the seeds 42 to 51 are played in the openb protocol by the simulator's own code; a
figure is the share of all devices that is allocated when 130 % arrived, in percent, and beside it the means, also at 95
and 100 %, less the published results of fragmentation gradient descent (FGD). The folder holds `nodes_gpu.csv`,
`pods_*.csv` and `expected_summary.csv`; MILLPOND_OPENB_FOLDER names it, MILLPOND_OPENB_SEEDS other seeds,
MILLPOND_OPENB_WORKLOADS some of its lists (`default,cpu250`), of which the means then are.
"""

import csv
import os
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from millpond_scheduler.simulation.__main__ import parse_seeds
from millpond_scheduler.simulation.openb import History, Outcome, run_openb
from millpond_scheduler.simulation.parallel import run_seeds
from millpond_scheduler.simulation.policies import POLICIES, SimulatedPolicy
from millpond_scheduler.simulation.traces import TraceJob, TraceNode, read_jobs, read_nodes
from tests.architecture.tree import ROOT
from tests.benchmarks.figures import tell

FOLDER_VARIABLE = "MILLPOND_OPENB_FOLDER"
DEFAULT_FOLDER = ROOT.parent / "shared" / "data" / "openb"
SEEDS_VARIABLE, SEEDS = "MILLPOND_OPENB_SEEDS", "42-51"
WORKLOADS_VARIABLE = "MILLPOND_OPENB_WORKLOADS"
LOADS = (95, 100, 130)
# workload -> load -> bar of what is allocated then
BARS = {"default": {100: ">= 95.2", 130: ">= 95.4"}}
MEAN_BARS, WORST_BARS = {130: ">= 0.1"}, {130: ">= -0.6"}

Published = dict[int, float]
ChoosePolicy = Callable[[list[TraceNode], list[TraceJob]], SimulatedPolicy]


def measure() -> None:
    """Every workload of the folder under the default policy, then their mean and the worst of them.

    Raises:
        FileNotFoundError: the folder is not there.
    """
    measure_folder("openb", lambda nodes, jobs: POLICIES["default"], MEAN_BARS, WORST_BARS)


def measure_folder(
    name: str, choose: ChoosePolicy, mean_bars: Mapping[int, str], worst_bars: Mapping[int, str]
) -> None:
    """Play every workload under the policy chosen for it and print its figures under `name`.

    Raises:
        FileNotFoundError: the folder is not there.
    """
    folder = find_folder(FOLDER_VARIABLE, DEFAULT_FOLDER, "nodes_gpu.csv")
    nodes = read_nodes(folder / "nodes_gpu.csv")
    published = _read_published(folder / "expected_summary.csv")
    wanted = os.environ.get(WORKLOADS_VARIABLE, "").replace(",", " ").split()
    differences: dict[str, Published] = {}
    for file in sorted(folder.glob("pods_*.csv")):
        workload = file.stem.removeprefix("pods_")
        if wanted and workload not in wanted:
            continue
        jobs = read_jobs(file, nodes)
        policy = choose(nodes, jobs)
        differences[workload] = _measure_workload(name, workload, nodes, jobs, policy, published.get(workload, {}))
    for load in LOADS:
        found = {workload: each[load] for workload, each in differences.items() if load in each}
        worst = min(found, key=lambda workload: found[workload])
        tell(f"{name}.minus_fgd.at_{load}.mean", [statistics.fmean(found.values())], "points", bar=mean_bars.get(load))
        tell(f"{name}.minus_fgd.at_{load}.{worst}", [found[worst]], "points", bar=worst_bars.get(load))


def find_folder(variable: str, default: Path, holds: str) -> Path:
    """The folder of recorded workloads that the environment names.

    Raises:
        FileNotFoundError: the file that it should hold is not there.
    """
    folder = Path(os.environ.get(variable, default))
    if not (folder / holds).is_file():
        raise FileNotFoundError(
            f"{folder} has no {holds}; {variable} names the folder of recorded workloads "
            "(docs/benchmarks/README.md says where they come from)"
        )
    return folder


def _measure_workload(
    name: str,
    workload: str,
    nodes: list[TraceNode],
    jobs: list[TraceJob],
    policy: SimulatedPolicy,
    published: Published,
) -> Published:
    seeds = parse_seeds(os.environ.get(SEEDS_VARIABLE, SEEDS))
    outcomes = run_seeds(partial(run_openb, nodes, jobs, policy, History.JOBS), seeds, os.cpu_count() or 1)
    means = {load: statistics.fmean(_at(outcome, load) for outcome in outcomes) for load in LOADS}
    difference = {load: means[load] - published[load] for load in LOADS if load in published}
    setting, bars = policy.setting, BARS.get(workload, {})
    tell(
        f"{name}.allocation_percent.{workload}",
        [_at(outcome, LOADS[-1]) for outcome in outcomes],
        "%",
        bar=bars.get(LOADS[-1]),
        mean=round(means[LOADS[-1]], 3),
        **{f"at_{load}": round(means[load], 3) for load in LOADS[:-1]},
        **{f"minus_fgd_at_{load}": round(points, 3) for load, points in difference.items()},
        unallocated_devices=round(statistics.fmean(outcome.unallocated_devices for outcome in outcomes), 1),
        decisions_per_s=round(sum(len(each.rows) for each in outcomes) / sum(each.seconds for each in outcomes)),
        quantum=setting.quantum_milli,
        core_price=setting.scarcity.core,
        device_price=setting.scarcity.device,
        shadow_permille=setting.scarcity.shadow_permille,
    )
    for load in (load for load in LOADS[:-1] if load in bars):
        values = [_at(outcome, load) for outcome in outcomes]
        tell(f"{name}.allocation_percent_at_{load}.{workload}", values, "%", bar=bars[load], mean=round(means[load], 3))
    return difference


def _at(outcome: Outcome, load: int) -> float:
    return next(point.allocation_percent for point in outcome.points if point.load_percent == load)


def _read_published(path: Path) -> dict[str, Published]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["sc_policy"] == "FGD"]
    return {row["workload"]: {load: float(row[f"alloc_at_{load}_mean"]) for load in LOADS} for row in rows}
