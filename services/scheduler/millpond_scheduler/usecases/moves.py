"""Which running tasks would have to move so that a waiting job starts. Computed in memory; nothing is changed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from millpond_contracts.bodies.moves import MovePlanView, MoveView
from millpond_contracts.bodies.tenants import QueuePolicy
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import AllocationId, JobId, PoolId, TaskId
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.defragmentation import Movable, Move, MoveOutcome, MovePlan, MoveRules, plan_moves
from millpond_scheduler.domain.explain import largest_free
from millpond_scheduler.domain.moving import name_plan
from millpond_scheduler.domain.requests import QueuedTask
from millpond_scheduler.store import jobs
from millpond_scheduler.store.allocations import list_restartable
from millpond_scheduler.usecases.loading import load_waiting, read_groups
from millpond_scheduler.usecases.mirror import Mirror
from millpond_scheduler.usecases.records import microseconds_of
from millpond_scheduler.usecases.shard import GroupFacts, Shard

MESSAGES: Mapping[MoveOutcome, str] = {
    MoveOutcome.STARTS_NOW: "there is room now; nothing has to move",
    MoveOutcome.BELOW_THRESHOLD: "too little of what is free is fragmented for moves to be considered",
    MoveOutcome.NO_WAY: (
        "no moves within the budget would make room; only tasks that may be tried again (retries), belong to no gang"
        " and have run for the cool-down are moved"
    ),
    MoveOutcome.NOT_WORTH: "moves would make room, but the moved tasks would lose more than the job gains",
    MoveOutcome.MOVES: "these moves would make room; the job's places are taken before anything moves",
}


@dataclass(frozen=True, slots=True)
class Restartable:
    """A running task that may be restarted elsewhere, beside what the mirror knows of it."""

    job: JobId
    job_name: str
    group: str
    index: int
    active_us: int
    asks: GroupFacts


@dataclass(frozen=True, slots=True)
class MoveQuestion:
    """A waiting job's next task or gang, and what of its pool may be restarted elsewhere with what it asked for."""

    job: JobId
    pool: PoolId
    unit: tuple[QueuedTask, ...]
    restartable: Mapping[AllocationId, Restartable]
    rules: MoveRules


async def read_question(unit: UnitOfWork, job: JobId, rules: MoveRules, spared: Collection[UUID] = ()) -> MoveQuestion:
    """What has to be known of a waiting job and of running ones beside what is in memory.

    Args:
        spared: jobs of which nothing is moved.

    Raises:
        ProblemError: 404 `scheduler.job.not_found`, 409 `scheduler.job.not_waiting`.
    """
    row = await jobs.get_job(unit, job)
    pool = PoolId.of(row["pool_id"])
    waiting = Shard()
    rows = await unit.fetch("SELECT id FROM task WHERE job_id = $1 AND state = 'pending'", job)
    await load_waiting(unit, waiting, [each["id"] for each in rows])
    first = next(waiting.queue().read_units(lambda _: QueuePolicy.PRIORITY), None)
    if first is None:
        raise ProblemError(ErrorCode.JOB_NOT_WAITING, f"No task of job {job} waits for a node.")
    restartable = await list_restartable(unit, pool, rules.cool_down_seconds)
    groups = await read_groups(unit, sorted({each["job_id"] for each in restartable}))
    return MoveQuestion(
        job,
        pool,
        first,
        {
            AllocationId.of(each["id"]): Restartable(
                JobId.of(each["job_id"]),
                each["job_name"],
                each["group_name"],
                each["index"],
                microseconds_of(each["active_at"]),
                groups[each["job_id"], each["group_name"]],
            )
            for each in restartable
            if (each["job_id"], each["group_name"]) in groups and each["job_id"] not in spared
        },
        rules,
    )


async def find_question(
    unit: UnitOfWork, job: JobId, rules: MoveRules, spared: Collection[UUID]
) -> MoveQuestion | None:
    """The same, None for a job that waits no longer."""
    try:
        return await read_question(unit, job, rules, spared)
    except ProblemError:
        return None


def find_moves(mirror: Mirror, asked: MoveQuestion) -> MovePlanView:
    """The moves on the mirror as it is now; computes only."""
    assert mirror.as_of is not None, "the mirror was refreshed"
    found = plan_on(mirror.shard, asked, microseconds_of(mirror.as_of))
    candidates = mirror.shard.cache.get(asked.unit[0].request)
    return _view(mirror, asked, found, largest_free(mirror.shard.snapshot, candidates)[0])


def plan_on(shard: Shard, asked: MoveQuestion, now_us: int) -> MovePlan:
    """The moves on what is in memory, which is as it was afterwards."""
    movable: dict[TaskId, Movable] = {}
    for key, each in asked.restartable.items():
        running = shard.live.get(key)
        if running is not None:
            movable[running.id] = Movable(
                replace(running, started_us=each.active_us), each.asks.request, each.asks.rules
            )
    claims = shard.list_claims()
    kept = {row for claim in claims.values() for row in map(shard.snapshot.find_row, claim.nodes)}
    first = asked.unit[0]
    candidates = shard.cache.get(first.request)
    room = shard.horizon.find_room((first.id, ""), candidates, len(asked.unit), now_us)
    waits_us = None if room is None or room.starts_us is None else room.starts_us - now_us
    return plan_moves(
        shard.snapshot,
        shard.cache,
        asked.unit,
        movable,
        now_us,
        waits_us,
        asked.rules,
        {row for row in kept if row is not None},
    )


def _view(mirror: Mirror, asked: MoveQuestion, found: MovePlan, largest: int | None) -> MovePlanView:
    assert mirror.as_of is not None, "the mirror was refreshed"
    snapshot = mirror.shard.snapshot
    return MovePlanView(
        as_of=mirror.as_of,
        job_id=asked.job,
        pool_id=asked.pool,
        tasks=len(asked.unit),
        outcome=found.outcome.value,
        message=MESSAGES[found.outcome],
        largest_free_block=largest,
        fragmentation_permille=found.fragmentation_permille,
        threshold_permille=asked.rules.threshold_permille,
        max_moves=asked.rules.max_moves,
        moves=_moves(mirror.shard, asked, found.moves),
        nodes=[snapshot.get_node(node).name for node in found.nodes],
        gain=found.gain,
        cost=found.cost,
        plan=name_plan(asked.job, found, mirror.shard.holders) if found.outcome is MoveOutcome.MOVES else None,
    )


def _moves(shard: Shard, asked: MoveQuestion, moves: Sequence[Move]) -> list[MoveView]:
    views = []
    for move in moves:
        key = shard.holders[move.before.task]
        moved = asked.restartable[key]
        views.append(
            MoveView(
                allocation_id=key,
                job_id=moved.job,
                job=moved.job_name,
                group=moved.group,
                index=moved.index,
                from_node_id=move.before.node,
                from_node=shard.snapshot.get_node(move.before.node).name,
                to_node_id=move.after.node,
                to_node=shard.snapshot.get_node(move.after.node).name,
                device_milli=move.before.device_milli,
                lost_seconds=move.lost_seconds,
            )
        )
    return views
