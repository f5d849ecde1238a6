"""Two peers in the same run, where their programs are installed: Slurm's scheduler and OpenStack's Placement.

Each counts what Millpond's figure counts: allocations that are in the system's own store, a second.
"""

import math
from collections.abc import Callable

from tests.benchmarks.figures import tell
from tests.benchmarks.peers import placement, slurm

NODES = {"slurm": 10_000, "placement": 1_000}
RUNS = 3


def measure() -> None:
    """The peers that this machine has; what is missing is said as a figure without a value."""
    for name, peer, work in (
        ("slurm", slurm, slurm.measure_rates),
        ("placement", placement, placement.measure_rates),
    ):
        missing = peer.list_missing()
        if missing:
            tell(f"peers.{name}_allocations_per_s.n{NODES[name]}", [math.nan], "1/s", missing=missing)
            continue
        _tell(name, work)


def _tell(name: str, work: Callable[[int, int], list[float]]) -> None:
    tell(f"peers.{name}_allocations_per_s.n{NODES[name]}", work(NODES[name], RUNS), "1/s")
