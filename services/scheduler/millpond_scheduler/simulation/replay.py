"""Recorded jobs at their own times: they arrive, wait, run and end under a virtual clock.

The clock moves in steps; in each step what has ended is released, what has arrived is queued, and the waiting tasks are
planned as the leader plans them, with what its policy keeps free for those that waited too long, which it knows from
the time limits of what runs. A job that asks for more devices than the largest node has is a gang of equal tasks. The
replay ends with the last arrival; what waits then has waited until then.
"""

import heapq
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from millpond_contracts.ids import TaskId
from millpond_scheduler.domain.cycle import plan_batch
from millpond_scheduler.domain.horizon import Horizon
from millpond_scheduler.domain.plans import Holding, Placement
from millpond_scheduler.domain.queues import Queues
from millpond_scheduler.domain.requests import Gang, QueuedTask, RequestClass
from millpond_scheduler.simulation.arrivals import permute_nodes
from millpond_scheduler.simulation.policies import SimulatedPolicy
from millpond_scheduler.simulation.pool import Pool, build_pool, learn_mix, queue_task, request_of
from millpond_scheduler.simulation.traces import TraceError, TraceJob, TraceNode

SECOND_US = 1_000_000
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Clock:
    """How time passes: the step, and the load to which arrivals are stretched or pressed, None = as recorded.

    A load of 1 offers as many device-seconds between the first and the last arrival as there are.
    """

    step_seconds: int = 10
    load: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One task of a job: seconds from the beginning; None = it has not started or not ended by the end."""

    arrival: int
    job: str
    node: str
    devices: tuple[int, ...]
    milli: int
    asked_devices: int
    is_gang: bool
    submit_s: int
    start_s: int | None
    end_s: int | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """One seed's replay; `seconds` is what the decisions took of this machine's CPU, all else follows from the input.

    `held_milli_s` is device milli times seconds of all jobs until the end, `offered_milli_s` what they asked for.
    """

    seed: int
    runs: tuple[Run, ...]
    end_s: int
    device_milli: int
    held_milli_s: int
    offered_milli_s: int
    decisions: int
    seconds: float


@dataclass(slots=True)
class _Task:
    queued: QueuedTask
    arrival: int
    job: TraceJob
    submit_s: int
    start_s: int | None = None
    end_s: int | None = None
    holding: Holding | None = None

    @property
    def runs_s(self) -> int | None:
        """How long it runs once it has started; None = beyond the end of the replay."""
        known = [each for each in (self.job.duration_s, self.job.time_limit_s) if each is not None]
        return max(min(known), 1) if known else None


def run_replay(
    nodes: Sequence[TraceNode], jobs: Sequence[TraceJob], policy: SimulatedPolicy, clock: Clock, seed: int
) -> Replayed:
    """Play the jobs at their times; the seed decides between nodes that rank equal.

    Raises:
        TraceError: the list tells no arrivals, or has a job that the largest node cannot take a part of.
    """
    pool = build_pool(permute_nodes(nodes, seed))
    replay = _Replay(pool, policy, clock, seed)
    arrivals = time_arrivals(jobs, pool.device_milli, clock.load)
    largest = max(node.devices for node in nodes)
    for number, (submit_s, job) in enumerate(arrivals):
        replay.add(number, submit_s, job, largest)
    if policy.learns:
        learn_mix(pool.snapshot, replay.count_requests(), policy.setting)
    replay.run()
    return replay.finish(seed)


def time_arrivals(jobs: Sequence[TraceJob], capacity_milli: int, load: float | None) -> list[tuple[int, TraceJob]]:
    """The jobs with the seconds at which they come from the first one on, in order; equal instants as in the list.

    A job without an instant was there at the beginning.

    Raises:
        TraceError: the list tells no instants, or no durations although a load is wanted.
    """
    if all(job.submit_s is None for job in jobs):
        raise TraceError("the jobs have no arrivals: there is nothing in submit_s, creation_s or creation_time")
    first = min(job.submit_s for job in jobs if job.submit_s is not None)
    timed = sorted(((job.submit_s or first) - first, index, job) for index, job in enumerate(jobs))
    if load is None:
        return [(at, job) for at, _, job in timed]
    span = timed[-1][0]
    offered = sum(job.device_milli * (job.duration_s or 0) for job in jobs)
    if not offered or not span:
        raise TraceError("no load can be set: the jobs have no durations, or all arrive at once")
    # In integers, so that every machine rounds alike.
    wanted = round(load * 1000)
    return [(at * offered * 1000 // (wanted * capacity_milli * span), job) for at, _, job in timed]


def limit_times(jobs: Sequence[TraceJob], factor: float) -> list[TraceJob]:
    """The jobs with a time limit of so many times what they take, rounded up, where they have none.

    Raises:
        TraceError: the factor is not from 1 to 1000.
    """
    if not 1 <= factor <= 1000:
        raise TraceError(f"expected time limits from 1 to 1000 times the duration, found {factor}")
    permille = round(factor * 1000)
    return [
        job
        if job.time_limit_s is not None or job.duration_s is None
        else replace(job, time_limit_s=max(-(-job.duration_s * permille // 1000), 1))
        for job in jobs
    ]


class _Replay:
    """A pool with what waits and what runs."""

    def __init__(self, pool: Pool, policy: SimulatedPolicy, clock: Clock, seed: int) -> None:
        self._pool = pool
        self._cache = policy.cache(pool.snapshot, seed)
        self._policy = policy.placement
        self._horizon = Horizon(pool.snapshot, self._find_end)
        self._step = max(clock.step_seconds, 1)
        self._tasks: dict[TaskId, _Task] = {}
        self._coming: list[_Task] = []
        self._waiting = Queues()
        self._ends: list[tuple[int, int, TaskId]] = []
        self._decisions = 0
        self._seconds = 0.0

    def add(self, arrival: int, submit_s: int, job: TraceJob, largest: int) -> None:
        """Let a job come, as one task or as the fewest equal ones that fit on nodes."""
        counts = range(job.tasks, job.devices + 1, job.tasks)
        tasks = next((n for n in counts if job.devices <= n * largest and not job.devices % n), job.tasks)
        limit_us = None if job.time_limit_s is None else job.time_limit_s * SECOND_US
        part = replace(
            job,
            devices=job.devices // tasks,
            cpu_milli=job.cpu_milli // tasks,
            memory_mib=job.memory_mib // tasks,
        )
        request, first = request_of(part), len(self._tasks)
        for number in range(first, first + tasks):
            queued = replace(queue_task(number, request, submit_s * SECOND_US), lasts_us=limit_us)
            if tasks > 1:
                gang = Gang(queue_task(first, request, 0).job, (("main", tasks),))
                queued = replace(queued, job=gang.job, gang=gang)
            task = self._tasks[queued.id] = _Task(queued, arrival, part, submit_s)
            self._coming.append(task)

    def count_requests(self) -> Counter[RequestClass]:
        """How many tasks ask for what."""
        return Counter(task.queued.request for task in self._tasks.values())

    def run(self) -> None:
        """Let time pass until the last job has come."""
        self._coming.reverse()
        while self._coming:
            events = [self._coming[-1].submit_s, *(end for end, _, _ in self._ends[:1])]
            now = -(-min(events) // self._step) * self._step
            self._release(now)
            while self._coming and self._coming[-1].submit_s <= now:
                task = self._coming.pop()
                self._waiting.add(task.queued)
            self._plan(now)

    def _release(self, now: int) -> None:
        while self._ends and self._ends[0][0] <= now:
            end, _, task_id = heapq.heappop(self._ends)
            self._pool.snapshot.release_allocation(task_id)
            self._tasks[task_id].end_s = end

    def _plan(self, now: int) -> None:
        began, placed = time.thread_time(), _BATCH
        while placed >= _BATCH:
            plan = plan_batch(
                self._pool.snapshot,
                self._waiting,
                self._pool.virtual_pools,
                now * SECOND_US,
                self._policy,
                max_tasks=_BATCH,
                cache=self._cache,
                horizon=self._horizon,
            )
            self._pool.snapshot.keep()
            for placement in plan.placements:
                self._start(placement, now)
            placed = len(plan.placements)
            self._decisions += placed
        self._seconds += time.thread_time() - began

    def _start(self, placement: Placement, now: int) -> None:
        task = self._tasks[placement.holding.task]
        self._waiting.remove(task.queued.id)
        task.start_s, task.holding = now, placement.holding
        if task.runs_s is not None:
            heapq.heappush(self._ends, (now + task.runs_s, task.arrival, task.queued.id))

    def _find_end(self, task_id: TaskId) -> int | None:
        task = self._tasks[task_id]
        if task.start_s is None or task.queued.lasts_us is None:
            return None
        return task.start_s * SECOND_US + task.queued.lasts_us

    def finish(self, seed: int) -> Replayed:
        """What became of all."""
        end_s = max(task.submit_s for task in self._tasks.values())
        self._release(end_s)
        held = offered = 0
        for task in self._tasks.values():
            offered += task.job.device_milli * (task.job.duration_s or 0)
            if task.start_s is not None:
                last = end_s if task.end_s is None else task.end_s
                held += task.job.device_milli * max(last - task.start_s, 0)
        runs = tuple(self._tell())
        return Replayed(seed, runs, end_s, self._pool.device_milli, held, offered, self._decisions, self._seconds)

    def _tell(self) -> Iterator[Run]:
        for task in self._tasks.values():
            node = ""
            slots: tuple[int, ...] = ()
            if task.holding is not None:
                node = self._pool.names[task.holding.node]
                slots = tuple(sorted(self._pool.slots[pick.device] for pick in task.holding.devices))
            yield Run(
                arrival=task.arrival,
                job=task.job.name,
                node=node,
                devices=slots,
                milli=task.job.milli,
                asked_devices=task.job.devices,
                is_gang=task.queued.gang is not None,
                submit_s=task.submit_s,
                start_s=task.start_s,
                end_s=task.end_s,
            )
