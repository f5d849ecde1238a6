"""Whether gangs start in a full pool in which jobs come and go, and what that costs the others; one JSON line a figure.

Requests are drawn from the openb list `default`, durations from recorded jobs: `dlrm` = instances on machines with
devices that began and ended within the trace, `philly` = jobs with as many devices. The pool, all openb nodes, begins
full: with jobs drawn by how long they run, as one finds them at a random instant, each somewhere in its life. Then jobs
arrive at random, so many that they ask for 1.1 times the devices; one in a hundred is a gang of 8 devices, on one node
(`node`) or as 8 tasks with one each (`tasks`). Every job has a time limit of 1.5 times its duration. All is played
twice by the simulator's own code, with holds and without, for twice as long as a gang may wait; those gangs are judged
that came so early that they could have waited for so long.

Beside the bar stands how long gangs would have waited at least by holding alone (`bound`): if each node took nothing
but gangs from the beginning on, the oldest first, once what ran there at the beginning has ended.

MILLPOND_OPENB_FOLDER and MILLPOND_TRACES_FOLDER name the folders of the lists. For smaller runs MILLPOND_CHURN_ONLY
names one of `dlrm.node`, `dlrm.tasks`, `philly.node` and `philly.tasks`, MILLPOND_CHURN_EVERY_NODE another pool of
every so many of the nodes, and MILLPOND_CHURN_STEP_S other seconds from one decision to the next.
"""

import csv
import os
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from millpond_scheduler.simulation.policies import POLICIES, SimulatedPolicy
from millpond_scheduler.simulation.replay import Clock, Replayed, Run, limit_times, run_replay
from millpond_scheduler.simulation.traces import TraceJob, TraceNode, read_jobs, read_nodes
from tests.architecture.tree import ROOT
from tests.benchmarks import openb
from tests.benchmarks.churn_bounds import group_by_nodes, is_enough, tell_bounds
from tests.benchmarks.figures import percentile, tell

TRACES_VARIABLE, TRACES_FOLDER = "MILLPOND_TRACES_FOLDER", ROOT.parent / "shared" / "data" / "jobs"
EVERY_VARIABLE, EVERY_NODE = "MILLPOND_CHURN_EVERY_NODE", 1
STEP_VARIABLE, STEP_SECONDS = "MILLPOND_CHURN_STEP_S", 3_600
ONLY_VARIABLE = "MILLPOND_CHURN_ONLY"
SEED = 42
OVERLOAD, LIMITS, GANG_SHARE, GANG_DEVICES = 1.1, 1.5, 0.01, 8
MOST_WAITS, DELIVERED_BAR = 2, ">= 95"
# All is played for so many times the longest wait that the bar allows; that wait is measured on so many arrivals first.
LENGTH, FIRST_ARRIVALS = 2, 20_000


@dataclass(frozen=True)
class Draws:
    """What arrivals are drawn from: requests, and durations in seconds by number of devices, 0 = of any other."""

    chance: random.Random
    small: list[TraceJob]
    gangs: list[TraceJob]
    durations: dict[int, list[int]]

    def draw(self) -> TraceJob:
        """One arrival, small or a gang, with its duration and time limit."""
        job = self.chance.choice(self.gangs if self.chance.random() < GANG_SHARE else self.small)
        duration = self.chance.choice(self.durations.get(max(job.devices, 1), self.durations[0]))
        (limited,) = limit_times([replace(job, duration_s=duration)], LIMITS)
        return limited


def measure() -> None:
    """Both lists of durations and both kinds of gangs, each with holds and without.

    Raises:
        FileNotFoundError: a folder is not there.
    """
    nodes, jobs = read_lists()
    dlrm, philly = read_dlrm(), read_philly()
    for kind, durations, tasks in (
        ("dlrm.node", dlrm, 1),
        ("dlrm.tasks", dlrm, GANG_DEVICES),
        ("philly.node", philly, 1),
        ("philly.tasks", philly, GANG_DEVICES),
    ):
        if os.environ.get(ONLY_VARIABLE, kind) == kind:
            _measure_kind(f"churn.{kind}", nodes, draw_churn(nodes, jobs, durations, tasks))


def read_lists() -> tuple[list[TraceNode], list[TraceJob]]:
    """The nodes of the pool, and the jobs whose requests are drawn."""
    folder = openb.find_folder(openb.FOLDER_VARIABLE, openb.DEFAULT_FOLDER, "nodes_gpu.csv")
    nodes = read_nodes(folder / "nodes_gpu.csv")
    return nodes[:: int(os.environ.get(EVERY_VARIABLE, EVERY_NODE))], read_jobs(folder / "pods_default.csv", nodes)


def draw_churn(
    nodes: list[TraceNode], jobs: list[TraceJob], durations: dict[int, list[int]], gang_tasks: int
) -> list[TraceJob]:
    """What runs at the beginning, then the arrivals."""
    fitting = [job for job in jobs if any(is_enough(node, job) for node in nodes)]
    draws = Draws(
        random.Random(f"churn {SEED}"),
        [job for job in fitting if job.devices < GANG_DEVICES],
        [_split(job, gang_tasks) for job in fitting if job.devices == GANG_DEVICES],
        durations,
    )
    capacity = 1000 * sum(node.devices for node in nodes)
    arrivals = [draws.draw() for _ in range(FIRST_ARRIVALS)]
    wanted = OVERLOAD * capacity * LENGTH * _longest_wait(arrivals)
    offered = sum(map(_offer, arrivals))
    while offered < wanted:
        arrivals.append(draws.draw())
        offered += _offer(arrivals[-1])
    mean = offered / (OVERLOAD * capacity * len(arrivals))
    instants = accumulate(draws.chance.expovariate(1 / mean) for _ in arrivals)
    coming = [
        replace(job, name=f"{_kind_of(job)}-{number}", submit_s=int(instant))
        for number, (job, instant) in enumerate(zip(arrivals, instants, strict=True))
    ]
    return [*_fill(draws, capacity), *coming]


def _longest_wait(jobs: Sequence[TraceJob]) -> int:
    """What the bar allows a gang to wait: so many times the p95 of how long small jobs with devices run."""
    durations = [job.duration_s or 0 for job in jobs if 0 < job.devices < GANG_DEVICES]
    return int(MOST_WAITS * percentile(durations, 0.95))


def _offer(job: TraceJob) -> int:
    return job.device_milli * (job.duration_s or 0)


def _fill(draws: Draws, capacity: int) -> Iterator[TraceJob]:
    """A full pool at a random instant: jobs in proportion to how long they run, each with a part of its time behind it.

    Gangs are placed first, while there is room for them.
    """
    drawn = [draws.draw() for _ in range(50_000)]
    found: list[TraceJob] = []
    asked = 0
    for job in draws.chance.choices(drawn, [job.duration_s or 0 for job in drawn], k=len(drawn)):
        if asked >= capacity:
            break
        asked += job.device_milli
        past = int((job.duration_s or 0) * draws.chance.random())
        left, limit = (job.duration_s or 0) - past, (job.time_limit_s or 0) - past
        found.append(replace(job, name=f"first-{len(found)}", duration_s=left, time_limit_s=limit, submit_s=0))
    yield from sorted(found, key=lambda job: job.devices != GANG_DEVICES)


def _split(job: TraceJob, tasks: int) -> TraceJob:
    return replace(
        job,
        tasks=tasks,
        cpu_milli=job.cpu_milli - job.cpu_milli % tasks,
        memory_mib=job.memory_mib - job.memory_mib % tasks,
    )


def read_dlrm() -> dict[int, list[int]]:
    """How long instances on machines with devices lived, of those that were seen to come and go."""
    rows = [row for row in _read("dlrm2025_instances.csv") if row["role"] == "HN"]
    return {
        0: [int(row["deletion_s"]) - int(row["creation_s"]) for row in rows if row["creation_s"] and row["deletion_s"]]
    }


def read_philly() -> dict[int, list[int]]:
    """How long jobs took, by their devices."""
    found: dict[int, list[int]] = {0: []}
    for row in _read("philly_vc_jobs.csv"):
        found.setdefault(int(row["gpus"]), []).append(int(row["duration_s"]))
        found[0].append(int(row["duration_s"]))
    return found


def _read(name: str) -> list[dict[str, str]]:
    path = openb.find_folder(TRACES_VARIABLE, TRACES_FOLDER, name) / name
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _kind_of(job: TraceJob) -> str:
    return "gang" if job.devices == GANG_DEVICES else "small"


def _measure_kind(name: str, nodes: list[TraceNode], jobs: list[TraceJob]) -> None:
    longest_s = _longest_wait([job for job in jobs if not job.name.startswith("first")])
    able = group_by_nodes(nodes, [job for job in jobs if job.name.startswith("gang")]) if name.endswith("node") else {}
    policy = POLICIES["default"]
    delivered = {}
    for holds, each in (("holds", policy), ("no_holds", policy.without_holds())):
        replayed = _play(nodes, jobs, each)
        delivered[holds] = _measure_run(f"{name}.{holds}", replayed, able, longest_s)
        if holds == "holds" and able:
            tell_bounds(name, nodes, jobs, replayed, replayed.end_s - longest_s)
    share = 100 * delivered["holds"] / delivered["no_holds"]
    tell(f"{name}.small_delivered_percent", [share], "% of no_holds", bar=DELIVERED_BAR)


def _play(nodes: list[TraceNode], jobs: list[TraceJob], policy: SimulatedPolicy) -> Replayed:
    clock = Clock(step_seconds=int(os.environ.get(STEP_VARIABLE, STEP_SECONDS)))
    return run_replay(nodes, jobs, policy, clock, SEED)


def _measure_run(name: str, replayed: Replayed, able: Mapping[str, int], bar_s: int) -> int:
    """Print how long gangs waited, and give the device milli times seconds that small jobs held.

    Args:
        able: how many nodes could take each gang; nothing = gangs are not told apart by it.
    """
    judged_s = replayed.end_s - bar_s
    gangs = {run.job: run for run in replayed.runs if run.job.startswith("gang") and run.submit_s <= judged_s}
    if not gangs:
        raise ValueError(f"no gang came before second {judged_s}")
    waits = [_wait(run, replayed.end_s) for run in gangs.values()]
    by_nodes = defaultdict(list)
    for gang, run in gangs.items():
        by_nodes[able.get(gang, 0)].append(_wait(run, replayed.end_s))
    small = [run for run in replayed.runs if run.job.startswith("small")]
    held: dict[bool, int] = {True: 0, False: 0}
    for run in replayed.runs:
        held[run.asked_devices * (GANG_DEVICES if run.is_gang else 1) == GANG_DEVICES] += _hold(run, replayed.end_s)
    capacity = replayed.device_milli * replayed.end_s
    tell(
        f"{name}.gang_wait_p95_s",
        [percentile(waits, 0.95)],
        "s",
        bar=None if "no_holds" in name else f"<= {bar_s}",
        gangs=len(waits),
        started_percent=round(100 * sum(run.start_s is not None for run in gangs.values()) / len(gangs), 1),
        wait_p50_s=percentile(waits, 0.5),
        small_wait_p95_s=percentile([_wait(run, replayed.end_s) for run in small], 0.95),
        small_held_percent=round(100 * held[False] / capacity, 2),
        gang_held_percent=round(100 * held[True] / capacity, 2),
        **{f"of_{count}_nodes": _describe(each, bar_s) for count, each in sorted(by_nodes.items()) if count},
        end_s=replayed.end_s,
        decisions_cpu_s=round(replayed.seconds),
    )
    return held[False]


def _describe(waits: Sequence[int], bar_s: int) -> dict[str, float]:
    in_time = round(100 * sum(wait <= bar_s for wait in waits) / len(waits), 1)
    return {"gangs": len(waits), "in_time_percent": in_time, "p95_s": percentile(waits, 0.95)}


def _wait(run: Run, end_s: int) -> int:
    return (end_s if run.start_s is None else run.start_s) - run.submit_s


def _hold(run: Run, end_s: int) -> int:
    if run.start_s is None:
        return 0
    return run.asked_devices * run.milli * ((end_s if run.end_s is None else run.end_s) - run.start_s)
