"""One poll of an agent: its lease is renewed, what it holds is compared with its rights, and its orders are read."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.allocations import AllocationState, DeviceShare, EndReason
from millpond_contracts.bodies.groups import SimulateSpec
from millpond_contracts.bodies.work import Assignment, HeldAllocation, PollAnswer, PollRequest, StopOrder
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import AllocationId, JobId, NodeId, PoolId, TaskId, TenantId
from millpond_kernel.problem import ProblemError
from millpond_kernel.tenancy import Principal
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store.changes import ChangeKind, note_changes
from millpond_scheduler.store.node_leases import (
    Exchange,
    NodeLease,
    find_terms,
    lock_lease,
    renew_lease,
)
from millpond_scheduler.usecases.lives import lock_lives, write_lives

DEFAULT_LEASE_SECONDS = 300
# An order is given again when the agent has not acted on it for so long: its answer may have been lost.
REPEAT_AFTER = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class NodeCall:
    """Which agent session calls: a node token names both."""

    node: NodeId
    pool: PoolId | None
    incarnation: int


def node_call(caller: Principal) -> NodeCall:
    """The node behind a node token.

    Raises:
        ProblemError: 401, a token without node or session.
    """
    if caller.node_id is None or caller.incarnation is None:
        raise ProblemError(ErrorCode.CREDENTIALS_INVALID, "The node token names no node session.")
    return NodeCall(caller.node_id, caller.pool_id, caller.incarnation)


async def check_session(unit: UnitOfWork, call: NodeCall) -> None:
    """Refuses an agent whose node has a newer session.

    Raises:
        ProblemError: 409 `registry.node.superseded`.
    """
    newest, _ = await find_terms(unit, call.node, call.pool)
    check_incarnation(call, newest)


def check_incarnation(call: NodeCall, newest: int) -> None:
    """Refuses a session that is not the node's newest.

    Raises:
        ProblemError: 409 `registry.node.superseded`.
    """
    if call.incarnation < newest:
        raise ProblemError(
            ErrorCode.NODE_SUPERSEDED,
            f"Session {call.incarnation} of {call.node} is over, session {newest} is the newest; this agent must stop.",
        )


@dataclass(frozen=True, slots=True)
class TakenPoll:
    """A poll that renewed its lease at `at`. `is_at_peace` = no orders, and a right to all that the node holds."""

    at: datetime
    lease_seconds: float
    is_at_peace: bool

    def nothing(self, waited_seconds: float = 0.0) -> PollAnswer:
        """The answer without orders."""
        return PollAnswer(server_at=self.at + timedelta(seconds=waited_seconds), lease_seconds=self.lease_seconds)


# The clock is read with the rows: after the lease was locked, and in one round trip.
_LIVE = """
SELECT clock.now, a.id, a.epoch, a.state, a.last_sequence, a.missing_since, a.order_sent_at, a.stop_requested_at
FROM (SELECT clock_timestamp() AS now) AS clock
LEFT JOIN allocation a ON a.node_id = $1 AND a.state <> 'released'
"""


async def take_poll(unit: UnitOfWork, call: NodeCall, poll: PollRequest) -> TakenPoll:
    """Renews the lease and settles what the node should hold but lost with its boot.

    Every node polls every few seconds, so the usual poll, which finds all as it should be, costs few round trips.

    Raises:
        ProblemError: 409 `registry.node.superseded`.
    """
    newest, seconds = await find_terms(unit, call.node, call.pool)
    check_incarnation(call, newest)
    before = await lock_lease(unit, call.node)
    rows = await unit.fetch(_LIVE, call.node)
    now: datetime = rows[0]["now"]
    live = [row for row in rows if row["id"] is not None]
    lease_seconds = float(DEFAULT_LEASE_SECONDS if seconds is None else seconds)
    same_boot = before is not None and before.boot_id == poll.boot_id
    held = {item.allocation_id: item.epoch for item in poll.held}
    await _end_lost(unit, live, held, None if same_boot else before, now)
    exchange = Exchange(poll.boot_id, now, poll.sent_monotonic_ms)
    if before is not None and same_boot:
        exchange = exchange.after(before.exchanges[0])
    await renew_lease(unit, call.node, call.incarnation, now, exchange, lease_seconds)
    if before is None or before.silent:
        await note_changes(unit, ChangeKind.NODE, [call.node])
    if has_news_of_missing(live, held):
        await _note_missing(unit, call.node, list(held), now)
    return TakenPoll(now, lease_seconds, is_at_peace(live, held))


def has_news_of_missing(live: Sequence[asyncpg.Record], held: Mapping[AllocationId, int]) -> bool:
    """Whether the agent no longer names what it reported, or names it again."""
    return any(row["last_sequence"] > 0 and (row["missing_since"] is None) != (row["id"] in held) for row in live)


def is_at_peace(live: Sequence[asyncpg.Record], held: Mapping[AllocationId, int]) -> bool:
    """Whether a node has no orders, and a right to all that it holds."""
    rights = {row["id"]: row["epoch"] for row in live}
    has_orders = any(row["state"] in ("bound", "releasing") for row in live)
    return not has_orders and held.items() <= rights.items()


async def _end_lost(
    unit: UnitOfWork,
    live: Sequence[asyncpg.Record],
    held: Mapping[AllocationId, int],
    former: NodeLease | None,
    now: datetime,
) -> None:
    """Ends what the agent was told of and does not have: with its former boot, or stopped before it ever began.

    A restarted machine runs nothing of its former boot: what it does not bring along ended with its last sign. And an
    agent polls again only after it took or lost the former answer, so what a later poll does not name never started.
    """

    def is_lost(row: asyncpg.Record) -> bool:
        if former is not None and row["order_sent_at"] is not None:
            return True
        asked = row["stop_requested_at"]
        never_began = row["state"] == AllocationState.RELEASING.value and row["last_sequence"] == 0
        return never_began and asked is not None and bool(asked < now - REPEAT_AFTER)

    lost = {row["id"] for row in live if row["id"] not in held and is_lost(row)}
    if not lost:
        return
    # All of the node's, not the lost alone: what this poll writes later is locked before any counter is.
    lives = await lock_lives(unit, [row["id"] for row in live])
    for life in (life for key, life in lives.by_id.items() if key in lost):
        record = life.record
        if former is not None and record.order_sent_at is not None:
            life.release(EndReason.NODE_RESTARTED, former.renewed_at, message="the machine was restarted")
        elif record.last_sequence == 0 and record.stop_reason is not None:
            life.release(record.stop_reason, now)
    await write_lives(unit, lives, now)


async def _note_missing(unit: UnitOfWork, node: NodeId, held: Sequence[AllocationId], now: datetime) -> None:
    """Notes since when the agent no longer names what it reported."""
    await unit.execute(
        "WITH found AS ("
        " SELECT id FROM allocation WHERE node_id = $1 AND state <> 'released' AND last_sequence > 0"
        " AND (missing_since IS NULL) <> (id = ANY($2)) ORDER BY id FOR NO KEY UPDATE)"
        " UPDATE allocation a SET missing_since = CASE WHEN a.missing_since IS NULL THEN $3::timestamptz END"
        " FROM found WHERE a.id = found.id",
        node,
        held,
        now,
    )


@dataclass(frozen=True, slots=True)
class OrdersAsked:
    """Whose orders are read: the node, what it holds, its lease.

    `fresh_only` = only a new order, or one that was not acted on for a while, is worth an answer.
    """

    node: NodeId
    held: Sequence[HeldAllocation]
    lease_seconds: float
    fresh_only: bool


# Locked, in the order of all writers, so that a task that is stopped before it was sent is sent to nobody.
_ORDERS = """
SELECT a.*, j.spec->'groups' AS groups FROM allocation a JOIN job j ON j.id = a.job_id
WHERE a.node_id = ANY($1::uuid[]) AND a.state IN ('bound', 'releasing')
ORDER BY a.id FOR NO KEY UPDATE OF a
"""


async def read_orders(unit: UnitOfWork, asked: Sequence[OrdersAsked]) -> list[PollAnswer | None]:
    """The orders of nodes as answers, marked as sent; None for one that wants fresh ones only and has none.

    An order is repeated in every answer until the agent's report.
    """
    now: datetime = await unit.fetchval("SELECT clock_timestamp()")
    rows: defaultdict[UUID, list[asyncpg.Record]] = defaultdict(list)
    for row in await unit.fetch(_ORDERS, list({one.node for one in asked})):
        rows[row["node_id"]].append(row)
    rights = await _read_rights(unit, {item.allocation_id for one in asked for item in one.held})
    sent: set[UUID] = set()
    answers = [_orders_for(one, rows[one.node], rights, now, sent) for one in asked]
    if sent:
        await unit.execute("UPDATE allocation SET order_sent_at = $2 WHERE id = ANY($1)", list(sent), now)
    return answers


def _orders_for(
    asked: OrdersAsked,
    rows: Sequence[asyncpg.Record],
    rights: Mapping[UUID, asyncpg.Record],
    now: datetime,
    sent: set[UUID],
) -> PollAnswer | None:
    known = {item.allocation_id: item.epoch for item in asked.held}
    assignments: list[Assignment] = []
    stops = _stops_of_unknown(asked.node, known, rights)
    fresh = bool(stops)
    mine: list[UUID] = []
    for row in rows:
        is_stop = row["state"] == AllocationState.RELEASING.value
        if is_stop and row["stop_requested_at"] is None:
            continue  # it is ending by itself
        if not is_stop and (row["id"] in known or row["last_sequence"] > 0):
            continue  # the agent has it
        fresh = fresh or row["order_sent_at"] is None or row["order_sent_at"] < now - REPEAT_AFTER
        mine.append(row["id"])
        if is_stop:
            stops.append(_stop_order(row))
        else:
            assignments.append(_assignment(row))
    if asked.fresh_only and not fresh:
        return None
    sent.update(mine)
    return PollAnswer(server_at=now, lease_seconds=asked.lease_seconds, assignments=assignments, stops=stops)


async def _read_rights(unit: UnitOfWork, known: Collection[UUID]) -> dict[UUID, asyncpg.Record]:
    if not known:
        return {}
    rows = await unit.fetch("SELECT id, epoch, node_id, state, reason FROM allocation WHERE id = ANY($1)", list(known))
    return {row["id"]: row for row in rows}


def _stops_of_unknown(
    node: NodeId, known: Mapping[AllocationId, int], rights: Mapping[UUID, asyncpg.Record]
) -> list[StopOrder]:
    """Stops for what the agent holds without a right: released, another node's, of another epoch, or never there."""
    orders = []
    for allocation, epoch in known.items():
        row = rights.get(allocation)
        if row is not None and row["node_id"] == node and row["epoch"] == epoch and row["state"] != "released":
            continue
        reason = EndReason(row["reason"]) if row is not None and row["reason"] else EndReason.NODE_LOST
        orders.append(StopOrder(allocation_id=allocation, epoch=epoch, grace_seconds=0, reason=reason))
    return orders


def _stop_order(row: asyncpg.Record) -> StopOrder:
    return StopOrder(
        allocation_id=AllocationId.of(row["id"]),
        epoch=row["epoch"],
        grace_seconds=row["stop_grace_seconds"],
        # Agents of the version before know no moves; `_end_of` knows what was meant.
        reason=EndReason.PREEMPTED if row["stop_reason"] == EndReason.MOVED else EndReason(row["stop_reason"]),
    )


def _assignment(row: asyncpg.Record) -> Assignment:
    group: dict[str, Any] = next(group for group in row["groups"] if group["name"] == row["group_name"])
    simulate = group["run"].get("simulate")
    return Assignment(
        allocation_id=AllocationId.of(row["id"]),
        epoch=row["epoch"],
        job_id=JobId.of(row["job_id"]),
        task_id=TaskId.of(row["task_id"]),
        tenant_id=TenantId.of(row["tenant_id"]),
        group=row["group_name"],
        index=row["index"],
        attempt=row["attempt"],
        command=tuple(group["run"]["command"]),
        image=group["run"]["image"],
        env=group["run"]["env"],
        cpu_milli=row["cpu_milli"],
        memory_mib=row["memory_mib"],
        devices=tuple(DeviceShare.model_validate(share) for share in row["devices"]),
        stop_grace_seconds=row["stop_grace_seconds"],
        time_limit_seconds=row["time_limit_seconds"],
        simulate=None if simulate is None else SimulateSpec.model_validate(simulate),
    )


async def list_ordered_nodes(unit: UnitOfWork) -> list[NodeId]:
    """The nodes that have an order which was never sent, or not acted on for a while."""
    rows = await unit.fetch(
        "SELECT DISTINCT node_id FROM allocation WHERE state IN ('bound', 'releasing')"
        " AND (order_sent_at IS NULL OR order_sent_at < clock_timestamp() - $1::interval)"
        " AND (state = 'bound' OR stop_requested_at IS NOT NULL)",
        REPEAT_AFTER,
    )
    return [NodeId.of(row["node_id"]) for row in rows]
