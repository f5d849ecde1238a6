"""Rows of the nodes' leases: until when a node is trusted, and its last exchange, by which its clock is read."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from millpond_contracts.ids import NodeId, PoolId
from millpond_kernel.uow import UnitOfWork

_LONGEST_DELAY = timedelta(seconds=60)
# How much two clocks may drift apart: far more than real ones do (NTP bounds the rate at 500 ppm).
_DRIFT = 0.0005

MAX_MILLISECONDS = 10 * 366 * 86_400 * 1000


@dataclass(frozen=True, slots=True)
class Exchange:
    """An exchange that the agent sent at `monotonic_ms` of its boot and the server took at `at`."""

    boot_id: str
    at: datetime
    monotonic_ms: int

    def server_time(self, monotonic_ms: int) -> datetime:
        """The server's time of an instant on the machine, by this exchange; a clock that is mad stays computable."""
        milliseconds = min(max(monotonic_ms - self.monotonic_ms, -MAX_MILLISECONDS), MAX_MILLISECONDS)
        return self.at + timedelta(milliseconds=milliseconds)

    def after(self, former: "Exchange") -> "Exchange":
        """This exchange, freed of the delay that the former one of the same boot shows it to have had.

        A request may wait on its way, for a database that restarts or a busy machine, so an exchange never puts the
        machine's clock too early, only too late: the earliest reading is the best, but for the drift of both clocks.
        More than a delay can be means that the server's clock was set, and then this exchange holds.
        """
        expected = former.server_time(self.monotonic_ms)
        if not timedelta(0) < self.at - expected < _LONGEST_DELAY:
            return self
        return replace(self, at=min(self.at, expected + abs(expected - former.at) * _DRIFT))


@dataclass(frozen=True, slots=True)
class NodeLease:
    """A node's lease as it stands; the newest exchange of its present boot comes first."""

    node: NodeId
    incarnation: int
    renewed_at: datetime
    silent: bool
    exchanges: tuple[Exchange, ...]

    @property
    def boot_id(self) -> str:
        return self.exchanges[0].boot_id


def node_lease(row: asyncpg.Record) -> NodeLease:
    """The lease of a row."""
    exchanges = [Exchange(row["boot_id"], row["exchange_at"], row["exchange_monotonic_ms"])]
    if row["previous_boot_id"] is not None:
        exchanges.append(
            Exchange(row["previous_boot_id"], row["previous_exchange_at"], row["previous_exchange_monotonic_ms"])
        )
    return NodeLease(NodeId.of(row["node_id"]), row["incarnation"], row["renewed_at"], row["silent"], tuple(exchanges))


# The clock is read in the same round trip.
_SESSIONS = """
SELECT clock.now, n.asked, greatest(g.incarnation, l.incarnation, 0) AS newest, l.*
FROM (SELECT clock_timestamp() AS now) AS clock, unnest($1::uuid[]) AS n(asked)
LEFT JOIN node_guard g ON g.node_id = n.asked LEFT JOIN node_lease l ON l.node_id = n.asked
"""


async def read_sessions(
    unit: UnitOfWork, nodes: Sequence[NodeId]
) -> tuple[datetime, dict[NodeId, tuple[int, NodeLease | None]]]:
    """The present instant, and of each node the newest agent session that the scheduler has heard of (0 = none) and its
    lease (None before its first poll)."""
    rows = await unit.fetch(_SESSIONS, nodes)
    found = {
        NodeId.of(row["asked"]): (row["newest"], None if row["node_id"] is None else node_lease(row)) for row in rows
    }
    return rows[0]["now"], found


async def lock_lease(unit: UnitOfWork, node: NodeId) -> NodeLease | None:
    """The node's lease, None before its first poll; locked before jobs and allocations, so that two polls of one node
    never wait in a circle."""
    row = await unit.fetchrow("SELECT * FROM node_lease WHERE node_id = $1 FOR NO KEY UPDATE", node)
    return None if row is None else node_lease(row)


async def find_terms(unit: UnitOfWork, node: NodeId, pool: PoolId | None) -> tuple[int, int | None]:
    """The newest agent session of the node that the scheduler has heard of (0 = none), and the pool's lease seconds."""
    row = await unit.fetchrow(
        "SELECT greatest((SELECT incarnation FROM node_guard WHERE node_id = $1),"
        " (SELECT incarnation FROM node_lease WHERE node_id = $1), 0) AS newest,"
        " (SELECT (body->>'lease_seconds')::int FROM pool_view WHERE pool_id = $2) AS seconds",
        node,
        pool,
    )
    assert row is not None
    return row["newest"], row["seconds"]


async def renew_lease(
    unit: UnitOfWork, node: NodeId, incarnation: int, now: datetime, exchange: Exchange, lease_seconds: float
) -> None:
    """Renews a lease from now on with an exchange; that of an earlier boot is kept for its late reports."""
    await unit.execute(
        "INSERT INTO node_lease AS l (node_id, incarnation, renewed_at, leased_until, boot_id, exchange_at,"
        " exchange_monotonic_ms) VALUES ($1, $2, $3, $3::timestamptz + make_interval(secs => $7), $4, $5, $6)"
        " ON CONFLICT (node_id) DO UPDATE SET incarnation = excluded.incarnation, renewed_at = excluded.renewed_at,"
        " leased_until = greatest(l.leased_until, excluded.leased_until), silent = false, boot_id = excluded.boot_id,"
        " exchange_at = excluded.exchange_at, exchange_monotonic_ms = excluded.exchange_monotonic_ms,"
        " previous_boot_id = CASE WHEN l.boot_id = excluded.boot_id THEN l.previous_boot_id ELSE l.boot_id END,"
        " previous_exchange_at ="
        "  CASE WHEN l.boot_id = excluded.boot_id THEN l.previous_exchange_at ELSE l.exchange_at END,"
        " previous_exchange_monotonic_ms = CASE WHEN l.boot_id = excluded.boot_id"
        "  THEN l.previous_exchange_monotonic_ms ELSE l.exchange_monotonic_ms END",
        node,
        incarnation,
        now,
        exchange.boot_id,
        exchange.at,
        exchange.monotonic_ms,
        float(lease_seconds),
    )


async def lock_quiet_leases(
    unit: UnitOfWork, asked: Sequence[tuple[NodeId, PoolId | None, int, str]]
) -> list[asyncpg.Record]:
    """Locked leases with `lease_seconds` of their pool, of those nodes whose poll changes nothing but the lease.

    That is: the same boot, the newest session, not silent before. A lease that is locked by others is left out.

    Args:
        asked: node, pool, session and boot of each poll; a node at most once.
    """
    return await unit.fetch(
        "SELECT l.*, (p.body->>'lease_seconds')::int AS lease_seconds"
        " FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[]) AS a(node_id, pool_id, incarnation, boot_id)"
        " JOIN node_lease l ON l.node_id = a.node_id"
        " LEFT JOIN node_guard g ON g.node_id = a.node_id LEFT JOIN pool_view p ON p.pool_id = a.pool_id"
        " WHERE l.boot_id = a.boot_id AND NOT l.silent"
        " AND a.incarnation >= greatest(l.incarnation, g.incarnation)"
        " FOR NO KEY UPDATE OF l SKIP LOCKED",
        *([row[column] for row in asked] for column in range(4)),
    )


async def renew_quiet_leases(
    unit: UnitOfWork, now: datetime, renewals: Sequence[tuple[NodeId, int, Exchange, float]]
) -> None:
    """Renews locked leases from now on: node, session, exchange, seconds of each."""
    await unit.execute(
        "UPDATE node_lease l SET incarnation = r.incarnation, renewed_at = $1,"
        " leased_until = greatest(l.leased_until, $1::timestamptz + make_interval(secs => r.seconds)),"
        " exchange_at = r.exchange_at, exchange_monotonic_ms = r.exchange_monotonic_ms"
        " FROM unnest($2::uuid[], $3::bigint[], $4::timestamptz[], $5::bigint[], $6::float8[])"
        " AS r(node_id, incarnation, exchange_at, exchange_monotonic_ms, seconds) WHERE l.node_id = r.node_id",
        now,
        [node for node, *_ in renewals],
        [incarnation for _, incarnation, *_ in renewals],
        [exchange.at for _, _, exchange, _ in renewals],
        [exchange.monotonic_ms for _, _, exchange, _ in renewals],
        [seconds for *_, seconds in renewals],
    )


async def extend_leases(unit: UnitOfWork, now: datetime, default_seconds: int) -> int:
    """Gives every node its whole lease from now on, so that an outage of ours ends nobody's work."""
    return await unit.execute(
        "UPDATE node_lease l SET leased_until ="
        " greatest(l.leased_until, $1::timestamptz + make_interval(secs => x.seconds))"
        " FROM (SELECT v.node_id, coalesce((p.body->>'lease_seconds')::float8, $2) AS seconds FROM node_view v"
        " LEFT JOIN pool_view p USING (pool_id)) AS x WHERE x.node_id = l.node_id",
        now,
        float(default_seconds),
    )


async def mark_silent(unit: UnitOfWork, now: datetime, default_seconds: int) -> list[UUID]:
    """Marks nodes that have not polled for their pool's `unreachable_after_seconds`; returns the new ones."""
    rows = await unit.fetch(
        "WITH patience AS MATERIALIZED ("
        "  SELECT pool_id, (body->>'unreachable_after_seconds')::float8 AS seconds FROM pool_view),"
        # Mostly nobody is late for any pool, which one look at the leases tells.
        " late AS MATERIALIZED (SELECT node_id FROM node_lease WHERE NOT silent AND renewed_at < $1::timestamptz"
        "  - make_interval(secs => least($2, (SELECT min(seconds) FROM patience))))"
        " UPDATE node_lease l SET silent = true FROM late JOIN node_view v USING (node_id)"
        " LEFT JOIN patience p USING (pool_id) WHERE l.node_id = late.node_id"
        " AND l.renewed_at < $1::timestamptz - make_interval(secs => coalesce(p.seconds, $2)) RETURNING l.node_id",
        now,
        float(default_seconds),
    )
    return [row["node_id"] for row in rows]


async def list_expired(
    unit: UnitOfWork, now: datetime, default_grace_seconds: int, frozen: Sequence[UUID] = (), freeze_seconds: int = 0
) -> list[asyncpg.Record]:
    """Live allocations of nodes whose lease and stop grace are over, with the node's last renewal.

    In frozen pools only what was told to stop anyhow, and what a node holds whose lease ended `freeze_seconds` ago.
    """
    lapsed = await unit.fetch("SELECT node_id FROM node_lease WHERE leased_until < $1", now)
    if not lapsed:
        return []
    return await unit.fetch(
        "SELECT a.id, l.renewed_at FROM node_lease l JOIN allocation a USING (node_id)"
        " LEFT JOIN node_view v USING (node_id) LEFT JOIN pool_view p ON p.pool_id = v.pool_id"
        " WHERE l.node_id = ANY($5::uuid[]) AND a.state <> 'released' AND l.leased_until < $1::timestamptz"
        "  - make_interval(secs => coalesce((p.body->>'stop_grace_seconds')::float8, $2))"
        " AND (v.pool_id = ANY($3) IS NOT TRUE OR v.removed OR a.stop_requested_at IS NOT NULL"
        "  OR l.leased_until < $1::timestamptz - make_interval(secs => $4)) ORDER BY a.id LIMIT 500",
        now,
        float(default_grace_seconds),
        list(frozen),
        float(freeze_seconds),
        [row["node_id"] for row in lapsed],
    )


async def count_silent(unit: UnitOfWork, now: datetime, freeze_seconds: int) -> list[asyncpg.Record]:
    """Silent nodes and all nodes of each pool with silent ones, but those whose lease ended `freeze_seconds` ago."""
    silent = await unit.fetch("SELECT node_id FROM node_lease WHERE silent")
    if not silent:
        return []
    return await unit.fetch(
        "SELECT v.pool_id, count(*) FILTER (WHERE l.silent) AS silent, count(*) AS nodes"
        " FROM node_lease l JOIN node_view v USING (node_id) WHERE NOT v.removed"
        " AND v.pool_id = ANY(ARRAY(SELECT DISTINCT pool_id FROM node_view WHERE node_id = ANY($3::uuid[])))"
        " AND (NOT l.silent OR l.leased_until >= $1::timestamptz - make_interval(secs => $2)) GROUP BY v.pool_id",
        now,
        float(freeze_seconds),
        [row["node_id"] for row in silent],
    )


async def list_freezes(unit: UnitOfWork) -> dict[UUID, asyncpg.Record]:
    """The pools whose silent nodes keep their work for now."""
    return {row["pool_id"]: row for row in await unit.fetch("SELECT * FROM evacuation_freeze")}


async def begin_freeze(unit: UnitOfWork, pool: UUID, silent: int, nodes: int, now: datetime) -> None:
    """Keeps that a pool's silent nodes are not given up."""
    await unit.execute(
        "INSERT INTO evacuation_freeze (pool_id, silent, nodes, since) VALUES ($1, $2, $3, $4)",
        pool,
        silent,
        nodes,
        now,
    )


async def end_freeze(unit: UnitOfWork, pool: UUID) -> None:
    """Forgets a freeze."""
    await unit.execute("DELETE FROM evacuation_freeze WHERE pool_id = $1", pool)
