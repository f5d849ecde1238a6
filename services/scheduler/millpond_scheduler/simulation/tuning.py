"""Which setting packs a pool best: resampled histories of its jobs are replayed under each, and the best is taken.

Nothing is tuned by hand and nothing is learnt from the seeds that are simulated afterwards: the histories are drawn
from the list with replacement, by seeds that no user can name.
"""

import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from millpond_scheduler.domain.fragmentation import QUANTUM_MILLI
from millpond_scheduler.domain.scarcity import Scarcity, Setting
from millpond_scheduler.simulation.openb import History, Outcome, run_openb
from millpond_scheduler.simulation.parallel import run_seeds
from millpond_scheduler.simulation.policies import SimulatedPolicy
from millpond_scheduler.simulation.pool import pack_nodes, request_of
from millpond_scheduler.simulation.traces import TraceJob, TraceNode

# What a quantum hides depends on the mix, what prices are worth on what is scarce: measured, none is best everywhere.
SETTINGS = tuple(
    Setting(quantum, Scarcity(core, device))
    for quantum in (40, QUANTUM_MILLI)
    for core in (0, 2_000, 4_000, 8_000)
    for device in (0, 200_000)
)
JUDGED_LOADS = (95, 100, 110, 130)
"""The loaded part of the curve: a setting can look fine at its end and lose before it."""

_FINALISTS = 4


@dataclass(frozen=True, slots=True)
class Tuned:
    """The setting chosen, and by setting its score: percent allocated, the mean over the loads that are judged.

    Only the best of the first history, and the policy's own, were played on the second; the score of these is the mean
    of both. `settings` are all of them.
    """

    setting: Setting
    scores: dict[str, float]
    settings: tuple[Setting, ...]


def tune(nodes: Sequence[TraceNode], jobs: Sequence[TraceJob], policy: SimulatedPolicy, processes: int) -> Tuned:
    """Choose the setting of a policy for these nodes and jobs; the same lists give the same choice."""
    settings = _list_different(nodes, jobs)
    first = _score(nodes, _resample(jobs, 1), policy, settings, 1, processes)
    finalists = sorted(settings, key=lambda setting: (-first[setting], settings.index(setting)))[:_FINALISTS]
    if policy.setting in first and policy.setting not in finalists:
        finalists.append(policy.setting)  # what the others are compared with is played as often
    second = _score(nodes, _resample(jobs, 2), policy, finalists, 2, processes)
    both = {setting: (first[setting] + second[setting]) / 2 for setting in finalists}
    best = max(finalists, key=lambda setting: both[setting])
    return Tuned(best, {setting.name: round(score, 4) for setting, score in (first | both).items()}, settings)


def _list_different(nodes: Sequence[TraceNode], jobs: Sequence[TraceJob]) -> tuple[Setting, ...]:
    """The settings that differ for these nodes and jobs; of those that come to the same prices the first."""
    requests = Counter(request_of(job) for job in jobs if job.devices)
    found: dict[tuple[object, ...], Setting] = {}
    for setting in SETTINGS:
        packing = pack_nodes(nodes, requests, setting)
        found.setdefault((packing.quantum_milli, *sorted(packing.prices.items(), key=str)), setting)
    return tuple(found.values())


def _resample(jobs: Sequence[TraceJob], number: int) -> list[TraceJob]:
    return random.Random(f"history {number}").choices(jobs, k=len(jobs))


def _score(
    nodes: Sequence[TraceNode],
    jobs: Sequence[TraceJob],
    policy: SimulatedPolicy,
    settings: Sequence[Setting],
    number: int,
    processes: int,
) -> dict[Setting, float]:
    run = partial(_play, nodes, jobs, policy, settings, number)
    return dict(zip(settings, run_seeds(run, range(len(settings)), processes), strict=True))


def _play(
    nodes: Sequence[TraceNode],
    jobs: Sequence[TraceJob],
    policy: SimulatedPolicy,
    settings: Sequence[Setting],
    number: int,
    index: int,
) -> float:
    return judge(run_openb(nodes, jobs, policy.tuned(settings[index]), History.JOBS, -number))


def judge(outcome: Outcome) -> float:
    """The score of a run."""
    return statistics.fmean(point.allocation_percent for point in outcome.points if point.load_percent in JUDGED_LOADS)
