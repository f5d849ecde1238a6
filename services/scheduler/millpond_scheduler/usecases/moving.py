"""Carrying out moves: ordered by somebody, decided anew and made durable by the leader, followed to their end.

A move is a stop for a claimant, as a reclaim is, and a node that is kept for its victim: both are written in one
transaction, so whoever is stopped has its place, and a leader that takes over finds both.
"""

from collections.abc import Sequence
from datetime import datetime

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.jobs import TaskState
from millpond_contracts.bodies.moves import MoveOrderSpec, MoveOrderState, MoveOrderView, MovePlanView, MoveResult
from millpond_contracts.errors import ErrorCode
from millpond_contracts.events.scheduler import MoveEnded, MoveOrdered, MoveRefused
from millpond_contracts.ids import AllocationId, JobId, MoveOrderId, NodeId, PoolId, TaskId
from millpond_kernel.audit import audit
from millpond_kernel.leases import Lease
from millpond_kernel.observability import log
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.defragmentation import MoveOutcome, MovePlan, MoveRules
from millpond_scheduler.domain.moving import find_result
from millpond_scheduler.domain.plans import Claim, Reclaim
from millpond_scheduler.store import moves
from millpond_scheduler.store.guards import GuardFailed
from millpond_scheduler.usecases.reclaiming import commit_reclaims
from millpond_scheduler.usecases.records import microseconds_of
from millpond_scheduler.usecases.shard import Shard

POLICY = "policy"


async def order_moves(unit: UnitOfWork, caller: Principal, told: MovePlanView, wanted: MoveOrderSpec) -> MoveOrderView:
    """Stores that these very moves are wanted; the leader carries them out, or says why not.

    Raises:
        ProblemError: 409 `scheduler.moves.none`, `.stale`, `.under_way`.
    """
    if told.outcome != MoveOutcome.MOVES.value:
        raise ProblemError(ErrorCode.MOVES_NONE, f"Nothing would be moved: {told.message}.")
    if told.plan != wanted.plan:
        raise ProblemError(ErrorCode.MOVES_STALE, "Other tasks would move by now, or to other nodes. Look again.")
    key = MoveOrderId.new()
    if not await moves.insert_order(unit, key, told.job_id, told.pool_id, wanted, caller.subject):
        raise ProblemError(ErrorCode.MOVES_UNDER_WAY, f"Moves for job {told.job_id} were ordered and are not over yet.")
    (view,) = await moves.list_orders(unit, told.job_id, None, 1)
    audit(unit, caller, "job.move", str(told.job_id), after=view)
    return view


def spec_of(order: MoveOrderView) -> MoveOrderSpec:
    """What an order wants."""
    return MoveOrderSpec(plan=order.plan, max_moves=order.max_moves, cool_down_seconds=order.cool_down_seconds)


def make_order(job: JobId, pool: PoolId, plan: str, rules: MoveRules, now: datetime) -> MoveOrderView:
    """An order by a pool's policy; it is stored together with its moves."""
    return MoveOrderView(
        move_order_id=MoveOrderId.new(),
        job_id=job,
        pool_id=pool,
        plan=plan,
        max_moves=rules.max_moves,
        cool_down_seconds=rules.cool_down_seconds,
        ordered_by=POLICY,
        state=MoveOrderState.REQUESTED,
        message=None,
        requested_at=now,
        settled_at=None,
        moves=[],
    )


async def commit_moves(
    unit: UnitOfWork, lease: Lease, shard: Shard, reclaim: Reclaim, found: MovePlan, order: MoveOrderView, now: datetime
) -> set[NodeId]:
    """Keeps the targets and orders the stops, all or none; returns the nodes that have to be told.

    Raises:
        LeaseLost: another leader took over.
        GuardFailed: the order is settled, a task has changed since, or a target takes no work any more.
    """
    nodes = await commit_reclaims(unit, lease, shard, [reclaim], EndReason.MOVED)
    if order.ordered_by == POLICY:
        await moves.insert_order(unit, order.move_order_id, order.job_id, order.pool_id, spec_of(order), POLICY)
    targets = {move.after.node for move in found.moves}
    opened = await unit.fetchval("SELECT count(*) FROM node_guard WHERE node_id = ANY($1) AND open", list(targets))
    if opened != len(targets):
        raise GuardFailed(f"{len(targets) - opened} of {len(targets)} nodes take no work any more")
    if not await moves.settle_order(unit, order.move_order_id, MoveOrderState.MOVING, None, None):
        raise GuardFailed("the order is settled")
    for move in found.moves:
        key, task = shard.holders[move.before.task], move.before.task
        row = await unit.fetchrow(
            "INSERT INTO move (allocation_id, order_id, task_id, attempt, job_id, from_node_id, to_node_id,"
            " lost_seconds, ordered_at) SELECT a.id, $2, a.task_id, a.attempt, a.job_id, a.node_id, $3, $4, $5"
            " FROM allocation a WHERE a.id = $1 RETURNING job_id",
            key,
            order.move_order_id,
            move.after.node,
            move.lost_seconds,
            now,
        )
        assert row is not None, "it is locked"
        unit.emit(
            MoveOrdered(
                pool_id=order.pool_id,
                served_job_id=order.job_id,
                allocation_id=key,
                moved_job_id=JobId.of(row["job_id"]),
                moved_task_id=task,
                from_node_id=move.before.node,
                to_node_id=move.after.node,
                ordered_by=order.ordered_by,
                generation=microseconds_of(now),
            ),
            now,
        )
    return nodes


def reclaim_of(unit: Sequence[TaskId], found: MovePlan) -> Reclaim:
    """The moves as stops for whom they serve."""
    victims = tuple(move.before.task for move in found.moves)
    return Reclaim(unit[0], victims, Claim(frozenset(found.nodes)))


async def refuse_order(unit: UnitOfWork, order: MoveOrderView, message: str, now: datetime) -> None:
    """Settles an order of which nothing is carried out, and tells why."""
    await moves.settle_order(unit, order.move_order_id, MoveOrderState.REFUSED, message, now)
    unit.emit(
        MoveRefused(
            pool_id=order.pool_id,
            served_job_id=order.job_id,
            ordered_by=order.ordered_by,
            message=message,
            generation=microseconds_of(now),
        ),
        now,
    )
    log.info("moves_refused", job=str(order.job_id), message=message)


async def settle_moves(unit: UnitOfWork, now: datetime) -> list[TaskId]:
    """Notes what has become of the moves under way; returns the tasks for which nothing is kept any more."""
    over: list[tuple[AllocationId, TaskId, MoveResult]] = []
    for row in await moves.list_under_way(unit):
        node = None if row["node_id"] is None else NodeId.of(row["node_id"])
        target = NodeId.of(row["to_node_id"])
        state = None if row["task_state"] is None else TaskState(row["task_state"])
        result = find_result(row["attempt"], target, row["task_attempt"], state, row["state_since"], node, now)
        if result is None:
            continue
        key, task = AllocationId.of(row["allocation_id"]), TaskId.of(row["task_id"])
        over.append((key, task, result))
        unit.emit(
            MoveEnded(
                pool_id=PoolId.of(row["pool_id"]),
                served_job_id=JobId.of(row["served_job_id"]),
                allocation_id=key,
                moved_job_id=JobId.of(row["job_id"]),
                moved_task_id=task,
                to_node_id=target,
                result=result.value,
                generation=microseconds_of(now),
            ),
            now,
        )
    if over:
        await moves.end_moves(unit, [key for key, _, _ in over], [result for _, _, result in over], now)
        await moves.finish_orders(unit, now)
    return [task for _, task, _ in over]
