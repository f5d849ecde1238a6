"""SQL of node orders."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from millpond_autoscaler.domain.orders import LIVE, transition
from millpond_contracts.bodies.scaling import NodeOrderState, NodeOrderView, ScalingPolicyView
from millpond_contracts.ids import NodeId, NodeOrderId, PoolId, ScalingDecisionId, ScalingPolicyId
from millpond_kernel.filters import Where
from millpond_kernel.uow import UnitOfWork

_LIVE = [state.value for state in LIVE]


def order_view(row: asyncpg.Record) -> NodeOrderView:
    """The order of a row."""
    return NodeOrderView(
        node_order_id=NodeOrderId.of(row["id"]),
        scaling_policy_id=ScalingPolicyId.of(row["policy_id"]),
        scaling_decision_id=ScalingDecisionId.of(row["decision_id"]),
        pool_id=PoolId.of(row["pool_id"]),
        flavor=row["flavor"],
        number=row["number"],
        state=NodeOrderState(row["state"]),
        state_since=row["state_since"],
        provider=row["template"]["provider"],
        node_id=None if row["node_id"] is None else NodeId.of(row["node_id"]),
        register_by=row["register_by"],
        joined_at=row["joined_at"],
        drain_deadline=row["drain_deadline"],
        attempts=row["attempts"],
        waits_for=row["waits_for"],
        created_at=row["created_at"],
        generation=row["generation"],
    )


async def insert_orders(
    unit: UnitOfWork, policy: ScalingPolicyView, decision_id: ScalingDecisionId, numbers: Iterable[int], now: datetime
) -> list[NodeOrderView]:
    """One intent for each node that was decided on; nobody outside has been asked yet."""
    found = []
    for number in numbers:
        row = await unit.fetchrow(
            "INSERT INTO node_order (id, policy_id, decision_id, pool_id, flavor, number, template, state, state_since,"
            " register_by, waits_for, generation) VALUES ($1, $2, $3, $4, $5, $6, $7, 'requested', $8, $9,"
            " 'the provider', 1) RETURNING *",
            NodeOrderId.new(),
            policy.scaling_policy_id,
            decision_id,
            policy.pool_id,
            policy.flavor,
            number,
            policy.template.model_dump(mode="json"),
            now,
            now + timedelta(seconds=policy.rules.registration_seconds),
        )
        assert row is not None, "an insert without conflict clause returns its row"
        found.append(order_view(row))
    return found


async def list_live(unit: UnitOfWork, policy_id: UUID | None = None) -> list[asyncpg.Record]:
    """Rows of orders that are not over, each with what is known of its node (`n_…`, null when nothing is)."""
    return await unit.fetch(
        "SELECT o.*, n.node_id AS n_id, n.pool_id AS n_pool_id, n.state AS n_state,"
        " n.cordon_reasons AS n_cordons, n.drain AS n_drain, n.flavors AS n_flavors"
        " FROM node_order o LEFT JOIN node_view n ON n.node_id = coalesce(o.node_id,"
        # The first node that carries the tag, and only in the pool that the token led into.
        " (SELECT v.node_id FROM node_view v WHERE v.order_id = o.id::text AND v.pool_id = o.pool_id"
        "  ORDER BY v.node_id LIMIT 1))"
        " WHERE o.state = ANY($1) AND ($2::uuid IS NULL OR o.policy_id = $2) ORDER BY o.id",
        _LIVE,
        policy_id,
    )


async def count_live(unit: UnitOfWork, policy_id: ScalingPolicyId) -> int:
    """Orders of the policy that are not over."""
    return int(
        await unit.fetchval(
            "SELECT count(*) FROM node_order WHERE policy_id = $1 AND state = ANY($2)", policy_id, _LIVE
        )
    )


async def list_orders(
    unit: UnitOfWork,
    before: UUID | None,
    limit: int,
    *,
    policy_id: ScalingPolicyId | None = None,
    pool_id: PoolId | None = None,
    state: NodeOrderState | None = None,
) -> list[asyncpg.Record]:
    """Rows of orders, the newest first."""
    where = Where()
    where.after("id", before, is_descending=True)
    where.add("policy_id = {}", policy_id)
    where.add("pool_id = {}", pool_id)
    where.among("state", () if state is None else (state,))
    return await unit.fetch(
        f"SELECT * FROM node_order{where.text()} ORDER BY id DESC LIMIT {where.value(limit)}", *where.arguments
    )


async def find_order(unit: UnitOfWork, order_id: NodeOrderId) -> asyncpg.Record | None:
    """The order's row."""
    return await unit.fetchrow("SELECT * FROM node_order WHERE id = $1", order_id)


async def find_known(unit: UnitOfWork, order_ids: Sequence[UUID]) -> dict[NodeOrderId, bool]:
    """Those of the orders that were ever made, and whether a node of theirs is still in the registry."""
    rows = await unit.fetch(
        "SELECT o.id, EXISTS (SELECT 1 FROM node_view n WHERE n.state <> 'removed'"
        " AND (n.node_id = o.node_id OR n.order_id = o.id::text)) AS has_node FROM node_order o WHERE o.id = ANY($1)",
        order_ids,
    )
    return {NodeOrderId.of(row["id"]): row["has_node"] for row in rows}


async def enter_state(
    unit: UnitOfWork,
    row: asyncpg.Record,
    state: NodeOrderState,
    now: datetime,
    *,
    waits_for: str | None = None,
    node_id: UUID | None = None,
    drain_seconds: int | None = None,
) -> NodeOrderView:
    """The order in its next state; the row is the one that was read, and must not have changed since.

    A node that is named stays the order's. Entering `releasing` begins a new drain, `joined` ends the old one.

    Raises:
        IllegalTransition: the state machine has no such edge.
        OrderMoved: somebody changed the order meanwhile.
    """
    transition(NodeOrderState(row["state"]), state)
    changed = await unit.fetchrow(
        "UPDATE node_order SET state = $3, state_since = $4, waits_for = $5, node_id = coalesce($6, node_id),"
        " joined_at = CASE WHEN $3 = 'joined' THEN coalesce(joined_at, $4) ELSE joined_at END,"
        " drain_seconds = CASE WHEN $3 IN ('joined', 'releasing') THEN $7 ELSE drain_seconds END,"
        " drain_generation = CASE WHEN $3 IN ('joined', 'releasing') THEN NULL ELSE drain_generation END,"
        " drain_deadline = CASE WHEN $3 IN ('joined', 'releasing') THEN NULL ELSE drain_deadline END,"
        " attempts = 0, retry_at = NULL, generation = generation + 1 WHERE id = $1 AND generation = $2 RETURNING *",
        row["id"],
        row["generation"],
        state.value,
        now,
        waits_for,
        node_id,
        drain_seconds,
    )
    if changed is None:
        raise OrderMoved(str(row["id"]))
    return order_view(changed)


class OrderMoved(Exception):
    """The order is not as it was read."""


async def note_drain(unit: UnitOfWork, row: asyncpg.Record, generation: int, deadline: datetime) -> None:
    """Keeps which drain the registry answered with; it names the handshake."""
    await unit.execute(
        "UPDATE node_order SET drain_generation = $2, drain_deadline = $3, attempts = 0, retry_at = NULL,"
        " waits_for = 'the scheduler: work has to leave the node' WHERE id = $1 AND state = 'releasing'",
        row["id"],
        generation,
        deadline,
    )


async def note_attempt(unit: UnitOfWork, row: asyncpg.Record, retry_at: datetime, waits_for: str) -> None:
    """Keeps that an outside call did not succeed, and when it is tried again."""
    await unit.execute(
        "UPDATE node_order SET attempts = attempts + 1, retry_at = $2, waits_for = $3 WHERE id = $1",
        row["id"],
        retry_at,
        waits_for,
    )
