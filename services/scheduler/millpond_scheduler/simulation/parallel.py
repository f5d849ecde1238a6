"""Several seeds at a time, each in a process of its own."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def run_seeds(run: Callable[[int], Result], seeds: Sequence[int], processes: int) -> list[Result]:
    """Every seed's outcome in the order of the seeds, so many of them at a time."""
    workers = max(1, min(processes, len(seeds)))
    if workers == 1:
        return [run(seed) for seed in seeds]
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as executor:
        return list(executor.map(run, seeds))
