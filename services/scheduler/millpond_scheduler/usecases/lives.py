"""The life of allocations and of their tasks and jobs: every change of state after the bind goes through here.

`lock_lives` takes the rows in the order that all writers keep (jobs, then allocations), the methods of `Life` change
them in memory and collect their events, `write_lives` gives back what was released and writes everything at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.allocations import PROVIDER_ENDS, AllocationState, EndReason
from millpond_contracts.bodies.jobs import JobState, RetryReason, RetrySpec, TaskState
from millpond_contracts.events.scheduler import (
    AllocationActivated,
    AllocationEvent,
    AllocationReleased,
    AllocationStopRequested,
    JobStateChanged,
)
from millpond_contracts.ids import JobId, TaskId
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.quarantine import NODE_SUSPECT
from millpond_scheduler.domain.states import (
    IllegalTransition,
    is_final,
    job_state_from_tasks,
    transition,
)
from millpond_scheduler.store import allocations, jobs
from millpond_scheduler.store.allocations import AllocationRecord, GangEnd, allocation_record
from millpond_scheduler.store.changes import ChangeKind, note_changes
from millpond_scheduler.store.guards import NodeDelta, UsageDeltas, change_usage, demand_of, give_to_nodes
from millpond_scheduler.usecases.dependencies import advance_jobs

FINAL_STATE = {
    EndReason.COMPLETED: TaskState.SUCCEEDED,
    EndReason.EXIT_CODE: TaskState.FAILED,
    EndReason.SIGNAL: TaskState.FAILED,
    EndReason.OUT_OF_MEMORY: TaskState.FAILED,
    EndReason.TIME_LIMIT: TaskState.FAILED,
    EndReason.START_FAILED: TaskState.FAILED,
    EndReason.REFUSED: TaskState.FAILED,
    EndReason.RETRIES_EXHAUSTED: TaskState.FAILED,
    EndReason.CANCELLED: TaskState.CANCELLED,
    EndReason.DRAINED: TaskState.PREEMPTED,
    EndReason.PREEMPTED: TaskState.PREEMPTED,
    EndReason.RECLAIMED: TaskState.PREEMPTED,
    EndReason.MOVED: TaskState.PREEMPTED,
    EndReason.NODE_LOST: TaskState.LOST,
    EndReason.NODE_RESTARTED: TaskState.LOST,
    EndReason.GANG_STOPPED: TaskState.FAILED,
    EndReason.DEPENDENCY_FAILED: TaskState.FAILED,
}
_STOPPABLE = frozenset({TaskState.BOUND, TaskState.STARTING, TaskState.RUNNING})
_ONLY_AFTER_STOP = frozenset({TaskState.CANCELLED, TaskState.PREEMPTED})
_RETRIED_AS = {
    TaskState.FAILED: RetryReason.FAILED,
    TaskState.PREEMPTED: RetryReason.PREEMPTED,
    TaskState.LOST: RetryReason.NODE_LOST,
}


@dataclass(slots=True)
class JobLock:
    """A job whose row is locked: what decides over its tasks, and when the first of them ran."""

    row: asyncpg.Record
    cancel_requested: bool
    retry: RetrySpec
    first_active_at: datetime | None = None
    touched: bool = False

    def may_retry(self, reason: EndReason, attempt: int) -> bool:
        """Whether an attempt that ended so is followed by another one."""
        wants = _RETRIED_AS.get(FINAL_STATE[reason]) in self.retry.on and reason is not EndReason.TIME_LIMIT
        return wants and attempt <= self.retry.max and not self.cancel_requested


@dataclass(slots=True)
class Life:
    """One locked allocation with the state of its attempt; `retries` once its end makes the task wait again."""

    record: AllocationRecord
    job: JobLock
    task_state: TaskState
    message: str | None = None
    changed: bool = False
    task_changed: bool = False
    retries: bool = False
    released: bool = False
    stop_ordered: bool = False
    events: list[tuple[AllocationEvent, datetime]] = field(default_factory=list)

    @property
    def is_live(self) -> bool:
        return self.record.state is not AllocationState.RELEASED

    @property
    def breaks_gang(self) -> bool:
        """Whether its stop or its end has just made its gang incomplete."""
        is_lost = self.released and self.record.reason is not EndReason.COMPLETED
        return self.record.gang_end is None and (is_lost or self.record.stop_requested_at is not None)

    def start(self, at: datetime) -> None:
        """The agent took the assignment."""
        if self.task_state is TaskState.BOUND:
            self._move_task(TaskState.STARTING)

    def activate(self, at: datetime) -> None:
        """The process runs with its devices: billed from now on, even when a stop was asked for meanwhile."""
        record = self.record
        if not self.is_live or record.active_at is not None:
            return
        record.active_at = max(at, record.bound_at)
        self.job.first_active_at = min(self.job.first_active_at or record.active_at, record.active_at)
        if record.state is AllocationState.BOUND:
            record.state = transition(record.state, AllocationState.ACTIVE)
        if self.task_state in (TaskState.BOUND, TaskState.STARTING):
            self._move_task(TaskState.RUNNING)
        self._emit(AllocationActivated, record.active_at)

    def request_stop(self, reason: EndReason, at: datetime, *, is_waived: bool = False) -> None:
        """Orders the agent to stop; an assignment that it was never told of ends at once.

        Waived from now on is what the provider causes, by the reason itself or (`is_waived`) by what led to it.
        """
        record = self.record
        if not self.is_live or record.stop_requested_at is not None:
            return
        record.stop_requested_at, record.stop_reason = at, reason
        if is_waived or reason in PROVIDER_ENDS:
            record.waived_from = at
        if record.state is AllocationState.BOUND and record.order_sent_at is None and record.last_sequence == 0:
            self.release(reason, at)
            return
        record.order_sent_at = None  # the stop is a new order
        self.stop_ordered = True
        self._leave()
        self._emit(AllocationStopRequested, at)

    def leave(self, at: datetime, reason: EndReason | None = None) -> None:
        """The agent says that the process is ending; its devices are not free yet. It may have stopped it itself."""
        if not self.is_live or self.record.state is AllocationState.RELEASING:
            return
        if reason in PROVIDER_ENDS:
            self.record.stop_requested_at = self.record.waived_from = at
            self.record.stop_reason = reason
        self._leave()
        self.changed = True
        if reason in PROVIDER_ENDS:
            self._emit(AllocationStopRequested, at)

    def release(
        self, reason: EndReason, at: datetime, exit_code: int | None = None, message: str | None = None
    ) -> None:
        """The group is empty and the devices are free, or the node that held them is given up."""
        record = self.record
        if not self.is_live:
            return
        record.state = transition(record.state, AllocationState.RELEASED)
        self.released = True  # here and now: a repeated report must not give anything back twice
        record.released_at = max(at, record.active_at or record.bound_at)
        if record.waived_from is not None and record.waived_from > record.released_at:
            # It had ended when it was asked to stop, only the word of it came later.
            record.waived_from = record.released_at if reason in PROVIDER_ENDS else None
        record.reason, record.exit_code, self.message = reason, exit_code, message
        self._end_task(FINAL_STATE[reason])
        self.retries = self.job.may_retry(reason, record.attempt)
        self._emit(AllocationReleased, record.released_at)

    def _leave(self) -> None:
        if self.record.state is not AllocationState.RELEASING:  # the agent may be stopping it already, by itself
            self.record.state = transition(self.record.state, AllocationState.RELEASING)
        if self.task_state in _STOPPABLE:
            self._move_task(TaskState.STOPPING)

    def _end_task(self, wanted: TaskState) -> None:
        if wanted in _ONLY_AFTER_STOP and self.task_state in _STOPPABLE:
            self._move_task(TaskState.STOPPING)  # the agent's report of the stop was overtaken by that of the end
        self._move_task(wanted)

    def _move_task(self, wanted: TaskState) -> None:
        self.task_state = transition(self.task_state, wanted)
        self.task_changed = self.job.touched = True

    def _emit(self, event: type[AllocationEvent], at: datetime) -> None:
        self.record.generation += 1
        self.changed = True
        self.events.append((event(allocation=self.record.view()), at))


@dataclass(slots=True)
class Lives:
    """Locked allocations by id, and their locked jobs."""

    by_id: dict[UUID, Life]
    jobs: dict[JobId, JobLock]


async def lock_lives(
    unit: UnitOfWork, ids: Sequence[UUID], extra_jobs: Iterable[UUID] = (), *, with_gangs: bool = True
) -> Lives:
    """Locks allocations with their jobs; ids that are unknown are left out.

    Args:
        with_gangs: also the other live allocations of their gangs; whoever may stop or end one needs them.
    """
    locked = await jobs.lock_jobs(unit, {*await allocations.find_jobs_of(unit, ids), *extra_jobs})
    locks = {job: job_lock(row) for job, row in locked.items()}
    if with_gangs:
        ids = list({*ids, *await allocations.find_gangs_of(unit, ids)})
    lives = {}
    for row in await allocations.lock_allocations(unit, ids):
        record = allocation_record(row)
        # The attempt of an allocation that lives is its task's present one; an older one changes nothing any more.
        state = TaskState(row["task_state"]) if row["task_attempt"] == record.attempt else TaskState.LOST
        lives[row["id"]] = Life(record, locks[record.job], state)
    return Lives(lives, locks)


def job_lock(row: asyncpg.Record) -> JobLock:
    """The lock of a job's row as `lock_jobs` read it."""
    return JobLock(row, row["cancel_requested"], RetrySpec.model_validate(row["retry"]), row["started_at"])


async def write_lives(unit: UnitOfWork, lives: Lives, now: datetime) -> None:
    """Writes what changed: tasks, allocations, counters, jobs and their events, and tells the leader."""
    restarts = _settle_gangs(lives, now)
    found = list(lives.by_id.values())
    await note_changes(
        unit, ChangeKind.ALLOCATION, [life.record.id for life in found if life.stop_ordered or life.released]
    )
    changed = [life for life in found if life.changed]
    if changed:
        await allocations.update_allocations(unit, [life.record for life in changed])
    await _write_tasks(unit, [life for life in found if life.task_changed], now)
    await _restart_succeeded(unit, restarts, now)
    for life in found:
        for event, at in life.events:
            unit.emit(event, at)
    await settle_jobs(unit, {job: lock for job, lock in lives.jobs.items() if lock.touched}, now)
    # Last: whoever ends or begins anything in a virtual pool waits for these counters.
    released = [life.record for life in found if life.released]
    if released:
        await _give_back(unit, released)


def _settle_gangs(lives: Lives, now: datetime) -> list[Life]:
    """Stops what is left of a gang when a task of it is stopped or lost, and says once what follows for all its tasks.

    Returns for each gang that starts anew one of its lives.
    """
    gangs: dict[JobId, list[Life]] = {}
    for life in lives.by_id.values():
        if life.record.gang and (life.is_live or life.released):
            gangs.setdefault(life.record.job, []).append(life)
    restarts = []
    for members in gangs.values():
        cause = next((life for life in members if life.breaks_gang), None)
        if cause is not None:
            _break_gang(members, cause, now)
            if cause.record.gang_end is GangEnd.RESTART:
                restarts.append(cause)
        for life in members:
            if life.released and life.record.gang_end is not None:
                life.retries = life.record.gang_end is GangEnd.RESTART and not life.job.cancel_requested
    return restarts


def _break_gang(members: Sequence[Life], cause: Life, now: datetime) -> None:
    reason = cause.record.reason or cause.record.stop_reason
    assert reason is not None, "what broke the gang has a reason"
    restarts = cause.job.may_retry(reason, cause.record.attempt)
    for life in members:
        life.record.gang_end = GangEnd.RESTART if restarts else GangEnd.END
        life.changed = True
        if life is not cause:
            life.request_stop(EndReason.GANG_STOPPED, now, is_waived=reason in PROVIDER_ENDS)


async def _restart_succeeded(unit: UnitOfWork, restarts: Sequence[Life], now: datetime) -> None:
    """The tasks of a gang that had succeeded before it broke run again with the others."""
    if not restarts:
        return
    rows = await unit.fetch(
        "UPDATE task t SET state = 'pending', state_since = $3, attempt = t.attempt + 1, allocation_id = NULL,"
        " reason = NULL, message = NULL, exit_code = NULL"
        " FROM unnest($1::uuid[], $2::int[]) AS x(j, n), allocation a"
        " WHERE t.job_id = x.j AND t.attempt = x.n AND t.state = 'succeeded' AND a.id = t.allocation_id AND a.gang"
        " RETURNING t.id",
        [life.record.job for life in restarts],
        [life.record.attempt for life in restarts],
        now,
    )
    await note_changes(unit, ChangeKind.TASK, [row["id"] for row in rows])


async def _write_tasks(unit: UnitOfWork, lives: Sequence[Life], now: datetime) -> None:
    if not lives:
        return
    touched = await unit.execute(
        "UPDATE task t SET state = CASE WHEN x.again THEN 'pending' ELSE x.s END, state_since = $8,"
        " attempt = t.attempt + x.again::int, allocation_id = CASE WHEN x.again THEN NULL ELSE t.allocation_id END,"
        " reason = CASE WHEN x.again THEN NULL ELSE x.r END, message = CASE WHEN x.again THEN NULL ELSE x.m END,"
        " exit_code = CASE WHEN x.again THEN NULL ELSE x.e END, failed_on = CASE WHEN x.again THEN x.f END"
        " FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::int[], $6::bool[], $7::int[], $9::uuid[])"
        " AS x(id, s, r, m, e, again, n, f) WHERE t.id = x.id AND t.attempt = x.n",
        [life.record.task for life in lives],
        [life.task_state.value for life in lives],
        [None if life.record.reason is None else life.record.reason.value for life in lives],
        [life.message for life in lives],
        [life.record.exit_code for life in lives],
        [life.retries for life in lives],
        [life.record.attempt for life in lives],
        now,
        [life.record.node if life.record.reason in NODE_SUSPECT else None for life in lives],
    )
    if touched != len(lives):
        raise IllegalTransition(lives[0].task_state, lives[0].task_state)
    await note_changes(unit, ChangeKind.TASK, [life.record.task for life in lives if life.retries])


async def _give_back(unit: UnitOfWork, records: Sequence[AllocationRecord]) -> None:
    deltas: dict[object, NodeDelta] = {}
    for record in records:
        delta = deltas.setdefault(record.node, NodeDelta(record.node))
        delta.add(record.cpu_milli, record.memory_mib, record.devices)
    await give_to_nodes(unit, {delta.node: delta for delta in deltas.values()})
    usage: UsageDeltas = {}
    for record in records:
        for resource, amount in demand_of(record.cpu_milli, record.memory_mib, record.flavor, record.devices).items():
            key = (record.virtual_pool, resource)
            usage[key] = usage.get(key, 0) + amount
    await change_usage(unit, usage, -1)


async def settle_jobs(unit: UnitOfWork, locks: dict[JobId, JobLock], now: datetime) -> None:
    """Derives the state of locked jobs from their tasks, as they stand now, and writes and tells what changed."""
    if not locks:
        return
    groups = await advance_jobs(unit, await jobs.count_tasks(unit, list(locks)), now)
    turned = []
    for job, lock in locks.items():
        states = [TaskState(state) for group in groups[job] for state in group.by_state]
        before = JobState(lock.row["state"])
        after = job_state_from_tasks(states, has_run=before is JobState.RUNNING, cancel_requested=lock.cancel_requested)
        if after is before:
            continue
        transition(before, after)
        reason, message = await _job_end(unit, job, lock, after)
        ended_at = now if is_final(after) else None
        turned.append(jobs.JobTurn(job, after, reason, message, lock.first_active_at, ended_at))
    for row in await jobs.turn_jobs(unit, turned, now):
        unit.emit(JobStateChanged(job=jobs.job_view(row, groups[JobId.of(row["id"])])), now)


async def _job_end(unit: UnitOfWork, job: JobId, lock: JobLock, state: JobState) -> tuple[EndReason | None, str | None]:
    """Why a job ended: the first task, by place, that did not succeed; retries that did not help are named as such."""
    if state is JobState.SUCCEEDED:
        return EndReason.COMPLETED, None
    if state is JobState.CANCELLED:
        return EndReason.CANCELLED, None
    if not is_final(state):
        return None, None
    row = await unit.fetchrow(
        "SELECT id, group_name, index, attempt, reason, message FROM task WHERE job_id = $1 AND state <> 'succeeded'"
        " ORDER BY coalesce(reason IN ('gang_stopped', 'dependency_failed'), false), group_name, index LIMIT 1",
        job,
    )
    if row is None or row["reason"] is None:
        return None, None
    reason = EndReason(row["reason"])
    text = f"task {row['group_name']}/{row['index']} ({TaskId.of(row['id'])}): {reason.value}"
    if row["message"]:
        text = f"{text}: {row['message']}"
    if lock.retry.max and row["attempt"] > lock.retry.max:
        return EndReason.RETRIES_EXHAUSTED, f"{text} in attempt {row['attempt']}"
    return reason, text
