"""Which setting packs a pool best: resampled histories of its jobs are replayed under each, and the best is taken.

Nothing is tuned by hand and nothing is learnt from the seeds that are simulated afterwards: the histories are drawn
from the list with replacement, by seeds that no user can name.
"""

import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from millpond_scheduler.domain.fragmentation import QUANTUM_MILLI
from millpond_scheduler.domain.scarcity import Scarcity, Setting
from millpond_scheduler.simulation.filling import Filling
from millpond_scheduler.simulation.parallel import run_seeds
from millpond_scheduler.simulation.policies import SimulatedPolicy
from millpond_scheduler.simulation.pool import build_pool, find_mix, find_packing, request_of
from millpond_scheduler.simulation.traces import TraceJob, TraceNode

# What a quantum hides depends on the mix, what prices are worth on what is scarce: measured, none is best everywhere.
SETTINGS = (
    *(
        Setting(quantum, Scarcity(core, device))
        for quantum in (QUANTUM_MILLI, 125)
        for core in (0, 3_000, 6_000)
        for device in (0, 200_000)
    ),
    *(Setting(QUANTUM_MILLI, Scarcity(device=200_000, shadow_permille=part)) for part in (50, 300, 1_000)),
)
JUDGED_LOADS = (95, 100, 110, 130)
"""The loaded part of the curve: a setting can look fine at its end and lose before it."""

LEFT = (6, 3, 3)
"""How many settings are played on the second history, the third, and the fourth: the best of those before it."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The setting chosen, and by setting its score: percent allocated, the mean over the loads that are judged.

    Only the best of the first history, and the policy's own, were played on the next ones; a score is the mean of those
    that were played. `settings` are all of them.
    """

    setting: Setting
    scores: dict[str, float]
    settings: tuple[Setting, ...]


def tune(nodes: Sequence[TraceNode], jobs: Sequence[TraceJob], policy: SimulatedPolicy, processes: int) -> Tuned:
    """Choose the setting of a policy for these nodes and jobs; the same lists give the same choice."""
    settings = _list_different(nodes, jobs, policy.setting)
    left, scores = settings, dict[Setting, list[float]]()
    for number, most in enumerate((len(settings), *LEFT), start=1):
        means = _average(scores)
        # The first of equal ones, and beside them what the others are compared with, which is played as often.
        ahead = sorted(left, key=lambda setting: -means.get(setting, 0))[:most]
        left = tuple(each for each in left if each in ahead or each == policy.setting)
        for setting, score in _play_all(nodes, _resample(jobs, number), policy, left, number, processes).items():
            scores.setdefault(setting, []).append(score)
    means = _average(scores)
    best = max(left, key=lambda setting: (means[setting], setting == policy.setting))
    return Tuned(best, {setting.name: round(score, 4) for setting, score in means.items()}, settings)


def _list_different(nodes: Sequence[TraceNode], jobs: Sequence[TraceJob], own: Setting) -> tuple[Setting, ...]:
    """The policy's own setting and those that differ for these nodes and jobs; of equal prices the first."""
    snapshot = build_pool(nodes).snapshot
    mix = find_mix(snapshot, Counter(request_of(job) for job in jobs if job.devices))
    found: dict[tuple[object, ...], Setting] = {}
    for setting in (own, *SETTINGS):
        packing = find_packing(snapshot, mix, setting)
        found.setdefault((packing.quantum_milli, *sorted(packing.prices.items(), key=str)), setting)
    return tuple(found.values())


def _resample(jobs: Sequence[TraceJob], number: int) -> list[TraceJob]:
    return random.Random(f"history {number}").choices(jobs, k=len(jobs))


def _average(scores: Mapping[Setting, Sequence[float]]) -> dict[Setting, float]:
    return {setting: statistics.fmean(each) for setting, each in scores.items()}


def _play_all(
    nodes: Sequence[TraceNode],
    jobs: Sequence[TraceJob],
    policy: SimulatedPolicy,
    settings: Sequence[Setting],
    number: int,
    processes: int,
) -> dict[Setting, float]:
    """The score of each setting on one history; the settings of one process share what it prepares."""
    parts = [settings[first::processes] for first in range(min(processes, len(settings)))]
    played = run_seeds(partial(_play, nodes, jobs, policy, parts, number), range(len(parts)), processes)
    found = dict(zip(chain(*parts), chain(*played), strict=True))
    return {setting: found[setting] for setting in settings}


def _play(
    nodes: Sequence[TraceNode],
    jobs: Sequence[TraceJob],
    policy: SimulatedPolicy,
    parts: Sequence[Sequence[Setting]],
    number: int,
    index: int,
) -> list[float]:
    filling = Filling(nodes, jobs, policy, -number)
    return [statistics.fmean(filling.play(setting, JUDGED_LOADS).values()) for setting in parts[index]]
