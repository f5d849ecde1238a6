"""What is counted of every system: allocations in its own store a second, and the CPU time that each cost."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tests.benchmarks.processes import cpu_seconds, list_tree


@dataclass(frozen=True, slots=True)
class Rate:
    """One run of a system. `cpu_ms` = of all its processes, for each allocation; what asks for them not counted."""

    per_second: float
    cpu_ms: float


# Fills what it holds by one run more.
Run: TypeAlias = Callable[[], Rate]


def list_children() -> set[int]:
    """The processes that this one has started, and theirs."""
    return {*list_tree(os.getpid())}


def cpu_of(roots: Iterable[int]) -> float:
    """CPU seconds of processes and of what descends from them, ended ones too."""
    pids = {pid for root in roots for pid in list_tree(root)}
    return sum(cpu_seconds(sorted(pids), with_ended=True).values())
