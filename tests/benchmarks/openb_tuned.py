"""The same as `openb` with quantum and prices tuned for each workload by replays of its resampled jobs (`--tune`)."""

import os

from millpond_scheduler.simulation.policies import POLICIES, SimulatedPolicy
from millpond_scheduler.simulation.traces import TraceJob, TraceNode
from millpond_scheduler.simulation.tuning import tune
from tests.benchmarks.openb import measure_folder

MEAN_BARS, WORST_BARS = {100: ">= 0.6", 130: ">= 0.4"}, {100: ">= -0.2", 130: ">= -0.2"}


def measure() -> None:
    """Every workload of the folder, then their mean and the worst of them.

    Raises:
        FileNotFoundError: the folder is not there.
    """
    measure_folder("openb_tuned", _tune, MEAN_BARS, WORST_BARS)


def _tune(nodes: list[TraceNode], jobs: list[TraceJob]) -> SimulatedPolicy:
    policy = POLICIES["default"]
    return policy.tuned(tune(nodes, jobs, policy, os.cpu_count() or 1).setting)
