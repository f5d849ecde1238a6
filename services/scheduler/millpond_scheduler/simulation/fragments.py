"""How fragmented a pool is by the published measure: the idle share that the typical job cannot use.

F(node) = sum over typical classes of p x (idle milli of the node that a job of that class cannot use): all of it if the
job does not fit or needs no device, else what lies on devices with less free than its share. The ratio is the sum of F
over all nodes divided by what is idle. Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 4.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from millpond_scheduler.domain.columns import BoolArray, IntArray
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.simulation.pool import flavor_of
from millpond_scheduler.simulation.traces import TraceJob

_TYPICAL_PERCENT = 95


@dataclass(frozen=True, slots=True)
class TypicalClass:
    """A class of jobs with its share of the typical ones; memory is no part of a class."""

    cpu_milli: int
    devices: int
    milli: int
    models: frozenset[str]
    share: float


def find_typical(jobs: Sequence[TraceJob]) -> list[TypicalClass]:
    """The most frequent classes that make 95 % of the jobs, their shares summing to 1."""
    counts = Counter((job.cpu_milli, job.devices, job.milli, tuple(sorted(job.models))) for job in jobs)
    chosen: list[tuple[tuple[int, int, int, tuple[str, ...]], int]] = []
    covered = 0
    for key, count in sorted(counts.items(), key=lambda each: (-each[1], each[0])):
        if covered * 100 >= _TYPICAL_PERCENT * len(jobs):
            break
        chosen.append((key, count))
        covered += count
    return [
        TypicalClass(cpu, devices, milli, frozenset(models), count / covered)
        for (cpu, devices, milli, models), count in chosen
    ]


def measure_fragment_ratio(snapshot: Snapshot, typical: Iterable[TypicalClass]) -> float:
    """The share of all idle device milli that is fragment, 0 to 1; 0 when nothing is idle."""
    columns, rows = snapshot.columns, slice(0, snapshot.columns.rows)
    free: IntArray = np.maximum(columns.device_milli_free[rows], 0)
    flavors, cpu_free = columns.device_flavor[rows], columns.cpu_free[rows]
    idle = free.sum(axis=1)
    total = int(idle.sum())
    if not total:
        return 0.0
    lost = 0.0
    for each in typical:
        allowed = _allowed(snapshot, flavors, each.models)
        roomy = allowed & (free >= each.milli)
        fits = (cpu_free >= each.cpu_milli) & (roomy.sum(axis=1) >= each.devices) & (each.devices > 0)
        unusable = np.where(fits, np.where(roomy, 0, free).sum(axis=1), idle)
        lost += each.share * int(unusable.sum())
    return lost / total


def _allowed(snapshot: Snapshot, flavors: IntArray, models: frozenset[str]) -> BoolArray:
    if not models:
        return np.ones(flavors.shape, dtype=np.bool_)
    return np.isin(flavors, [snapshot.flavors.find(flavor_of(model)) for model in models])
