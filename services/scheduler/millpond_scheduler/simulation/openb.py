"""The published protocol: jobs arrive until 130 % of the devices were asked for; nothing waits, nothing ends.

A job that fits nowhere is dropped, one that fits somewhere must be placed. Source: Weng et al., USENIX ATC 2023.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.cycle import plan_batch
from millpond_scheduler.domain.requests import QueuedTask, RequestClass
from millpond_scheduler.domain.scarcity import Setting
from millpond_scheduler.simulation.arrivals import Arrival, draw_arrivals, permute_nodes
from millpond_scheduler.simulation.fragments import TypicalClass, find_typical, measure_fragment_ratio
from millpond_scheduler.simulation.policies import SimulatedPolicy
from millpond_scheduler.simulation.pool import Pool, build_pool, learn_mix, queue_task, request_of
from millpond_scheduler.simulation.traces import TraceJob, TraceNode

LOADS = (*range(0, 91, 10), 95, *range(100, 131, 10))
"""Arrived device demand, in percent of what there is, at which the pool is measured."""

_BATCH = 500


@dataclass(frozen=True, slots=True)
class Point:
    """The pool when so much had arrived: how much of it was allocated, and how much of what was idle is fragment."""

    load_percent: int
    allocation_percent: float
    fragment_percent: float


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one arrival; of a refused one `node` and `devices` are empty."""

    arrival: int
    job: str
    node: str
    devices: tuple[int, ...]
    milli: int
    accepted: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """One seed's run. `seconds` is what the decisions took of this machine's CPU; all else follows from the input."""

    seed: int
    points: tuple[Point, ...]
    rows: tuple[Row, ...]
    device_milli: int
    allocated_milli: int
    seconds: float

    @property
    def placed(self) -> int:
        """Arrivals that were placed."""
        return sum(row.accepted for row in self.rows)

    @property
    def unallocated_devices(self) -> float:
        """What is idle at the end, in devices."""
        return (self.device_milli - self.allocated_milli) / WHOLE_DEVICE_MILLI


class History(StrEnum):
    """From what the pool learns what usually comes: the whole list, as from jobs before, or what arrived so far."""

    JOBS = "jobs"
    ARRIVALS = "arrivals"


def run_openb(
    nodes: Sequence[TraceNode], jobs: Sequence[TraceJob], policy: SimulatedPolicy, history: History, seed: int
) -> Outcome:
    """Play one seed; the same seed and lists give the same outcome.

    Raises:
        ValueError: no job asks for a device.
    """
    pool = build_pool(permute_nodes(nodes, seed))
    arrivals = draw_arrivals(jobs, pool.device_milli, seed)
    run = _Run(pool, jobs, arrivals, policy.cache(pool.snapshot, seed))
    if policy.learns:
        run.learn_from(history, policy.setting)
    points, done = [], 0
    typical = find_typical(jobs)
    arrived = list(accumulate(jobs[arrival.job].device_milli for arrival in arrivals))
    for load in LOADS:
        end = sum(milli * 100 <= load * pool.device_milli for milli in arrived) if load else 0
        run.play(done, end)
        done = end
        points.append(run.measure(load, typical))
    return Outcome(seed, tuple(points), tuple(run.rows), pool.device_milli, run.allocated_milli, run.seconds)


class _Run:
    """A pool that fills up."""

    def __init__(
        self,
        pool: Pool,
        jobs: Sequence[TraceJob],
        arrivals: Sequence[Arrival],
        cache: CandidateCache,
    ) -> None:
        self.rows: list[Row] = []
        self.allocated_milli = 0
        self.seconds = 0.0
        self._pool = pool
        self._jobs = jobs
        self._requests = [request_of(job) for job in jobs]
        self._arrivals = arrivals
        self._cache = cache
        self._came: Counter[RequestClass] | None = None
        self._setting = Setting()

    def learn_from(self, history: History, setting: Setting) -> None:
        """Learn what usually comes, now or while it comes."""
        self._setting = setting
        if history is History.JOBS:
            learn_mix(self._pool.snapshot, Counter(self._requests), setting)
        else:
            self._came = Counter()

    def play(self, first: int, end: int) -> None:
        """Let the arrivals from `first` to before `end` come, one after another."""
        for start in range(first, end, _BATCH):
            numbers = range(start, min(start + _BATCH, end))
            # In order of their numbers: the instant in the queue is all that orders equal priorities.
            queue = [queue_task(number, self._requests[self._arrivals[number].job], number) for number in numbers]
            self.rows += self._decide(queue, numbers)
            if self._came is not None:
                self._came.update(task.request for task in queue)
                learn_mix(self._pool.snapshot, self._came, self._setting)

    def _decide(self, queue: list[QueuedTask], numbers: range) -> Iterator[Row]:
        began = time.thread_time()
        plan = plan_batch(
            self._pool.snapshot,
            queue,
            self._pool.virtual_pools,
            numbers[-1],
            max_tasks=len(queue),
            cache=self._cache,
        )
        self._pool.snapshot.keep()
        self.seconds += time.thread_time() - began
        holdings = {placement.holding.task: placement.holding for placement in plan.placements}
        for number, task in zip(numbers, queue, strict=True):
            arrival, holding = self._arrivals[number], holdings.get(task.id)
            milli = self._jobs[arrival.job].milli
            if holding is None:
                yield Row(number, arrival.name, "", (), milli, False)
                continue
            self.allocated_milli += holding.device_milli
            slots = tuple(sorted(self._pool.slots[pick.device] for pick in holding.devices))
            yield Row(number, arrival.name, self._pool.names[holding.node], slots, milli, True)

    def measure(self, load: int, typical: Sequence[TypicalClass]) -> Point:
        """The pool as it is."""
        return Point(
            load,
            100 * self.allocated_milli / self._pool.device_milli,
            100 * measure_fragment_ratio(self._pool.snapshot, typical),
        )
