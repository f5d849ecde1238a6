"""Which setting packs a pool best: resampled histories of its jobs are replayed under each, and the best is taken.

Nothing is tuned by hand and nothing is learnt from the seeds that are simulated afterwards: the histories are drawn
from the list with replacement, by seeds that no user can name.
"""

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from millpond_scheduler.domain.fragmentation import QUANTUM_MILLI
from millpond_scheduler.domain.scarcity import Scarcity
from millpond_scheduler.simulation.openb import History, Outcome, run_openb
from millpond_scheduler.simulation.parallel import run_seeds
from millpond_scheduler.simulation.policies import Setting, SimulatedPolicy
from millpond_scheduler.simulation.traces import TraceJob, TraceNode

# What a quantum hides depends on the mix, what prices are worth on what is scarce: measured, none is best everywhere.
SETTINGS = tuple(
    Setting(quantum, Scarcity(core, device))
    for quantum in (40, QUANTUM_MILLI)
    for core in (0, 2_000, 10_000)
    for device in (0, 200_000)
)
JUDGED_LOADS = (95, 100, 110, 130)
"""The loaded part of the curve: a setting can look fine at its end and lose before it."""

_FINALISTS = 4


@dataclass(frozen=True, slots=True)
class Tuned:
    """The setting chosen, and by setting its score: percent allocated, the mean over the loads that are judged.

    Only the best of the first history were played on the second; the score of these is the mean of both.
    """

    setting: Setting
    scores: dict[str, float]


def tune(nodes: Sequence[TraceNode], jobs: Sequence[TraceJob], policy: SimulatedPolicy, processes: int) -> Tuned:
    """Choose the setting of a policy for these nodes and jobs; the same lists give the same choice."""
    first = _score(nodes, _resample(jobs, 1), policy, SETTINGS, 1, processes)
    finalists = sorted(SETTINGS, key=lambda setting: (-first[setting], SETTINGS.index(setting)))[:_FINALISTS]
    second = _score(nodes, _resample(jobs, 2), policy, finalists, 2, processes)
    both = {setting: (first[setting] + second[setting]) / 2 for setting in finalists}
    best = max(finalists, key=lambda setting: both[setting])
    return Tuned(best, {setting.name: round(score, 4) for setting, score in (first | both).items()})


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
