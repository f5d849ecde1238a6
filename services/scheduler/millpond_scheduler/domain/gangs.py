"""Gangs: their tasks by request, and how many equal tasks a node can take at once."""

from itertools import groupby

import numpy as np

from millpond_contracts.quantities import MAX_COUNT
from millpond_scheduler.domain import policy
from millpond_scheduler.domain.columns import IntArray
from millpond_scheduler.domain.requests import QueuedTask
from millpond_scheduler.domain.views import RowView


def list_runs(unit: tuple[QueuedTask, ...]) -> list[tuple[QueuedTask, ...]]:
    """The tasks of a unit by request, in order; of those with rules on places, by group."""
    if len(unit) == 1:
        return [unit]
    return [
        tuple(run) for _, run in groupby(unit, key=lambda task: (task.request, task.rules and (task.group, task.rules)))
    ]


def count_fitting(view: RowView) -> IntArray:
    """How many such tasks each row could take at once; 0 where a filter refuses them."""
    request, demand = view.request, view.demand
    counts: IntArray = np.full(len(view.shape), MAX_COUNT, dtype=np.int64)
    if request.cpu_milli:
        counts = np.minimum(counts, view.cpu_free // request.cpu_milli)
    if request.memory_mib:
        counts = np.minimum(counts, view.memory_free // request.memory_mib)
    if demand is not None and demand.is_whole:
        counts = np.minimum(counts, view.count_devices(view.admissible) // demand.count)
    elif demand is not None and demand.profile is not None:
        counts = np.minimum(counts, view.more_partitions().sum(axis=1))
    elif demand is not None:
        by_share = view.device_milli_free // view.slice_milli()
        memory = np.asarray(view.slice_memory())
        by_memory = np.where(memory > 0, view.device_memory_free() // np.maximum(memory, 1), MAX_COUNT)
        slices = np.where(view.admissible, np.minimum(by_share, by_memory), 0)
        counts = np.minimum(counts, slices.sum(axis=1))
    fitting: IntArray = np.where(policy.judge(view) == 0, np.maximum(counts, 0), 0)
    return fitting
