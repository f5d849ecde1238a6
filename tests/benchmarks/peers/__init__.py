"""Two peers in the same run, where their programs are installed: Slurm's scheduler and OpenStack's Placement.

Each counts what Millpond's figure beside it counts: allocations that are in the system's own store, a second. Ours runs
first and is ended, so that each has the machine for itself.
"""

import math
from contextlib import AbstractContextManager
from statistics import median
from typing import NamedTuple, Protocol

from millpond_contracts.bodies.groups import DeviceRequest
from tests.benchmarks.demand import DemandClass
from tests.benchmarks.figures import shorten, tell
from tests.benchmarks.peers import own, placement, slurm
from tests.benchmarks.peers.measured import Rate, Run

RUNS = 3


class Starter(Protocol):
    """Starts a system over so many nodes or providers of 8 devices."""

    def __call__(self, nodes: int, /) -> AbstractContextManager[Run]: ...


class Peer(NamedTuple):
    """A peer, on how many nodes, and what a task asks for there."""

    name: str
    nodes: int
    wanted: DemandClass
    missing: list[str]
    running: Starter


def measure() -> None:
    """The peers that this machine has; what is missing is said as a figure without a value."""
    for peer in (
        Peer("slurm", 10_000, (1, 4_000, 1_024, DeviceRequest()), slurm.list_missing(), slurm.running),
        Peer("placement", 1_000, (1, 8_000, 32_768, DeviceRequest()), placement.list_missing(), placement.running),
    ):
        if peer.missing:
            tell(f"peers.{peer.name}_allocations_per_s.n{peer.nodes}", [math.nan], "1/s", missing=peer.missing)
            continue
        _compare(peer)


def _compare(peer: Peer) -> None:
    with own.leading(peer.nodes, peer.wanted) as run:
        ours = [run() for _ in range(RUNS)]
    _tell(f"peers.millpond_allocations_per_s.n{peer.nodes}", ours)
    with peer.running(peer.nodes) as run:
        theirs = [run() for _ in range(RUNS)]
    _tell(f"peers.{peer.name}_allocations_per_s.n{peer.nodes}", theirs)
    ratio = median(one.per_second for one in ours) / median(one.per_second for one in theirs)
    tell(f"peers.{peer.name}_ratio.n{peer.nodes}", [ratio], "times", bar=">= 300")
    ratio_of_cpu = median(one.cpu_ms for one in theirs) / median(one.cpu_ms for one in ours)
    tell(f"peers.{peer.name}_cpu_ratio.n{peer.nodes}", [ratio_of_cpu], "times")


def _tell(name: str, rates: list[Rate]) -> None:
    tell(name, [one.per_second for one in rates], "1/s", cpu_ms_each=[shorten(one.cpu_ms) for one in rates])
