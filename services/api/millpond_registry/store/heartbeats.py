"""SQL of heartbeats, the hottest path: one statement, no event, apart from the node's own row."""

from collections.abc import Sequence
from datetime import datetime

import asyncpg

from millpond_contracts.bodies.nodes import Condition
from millpond_contracts.ids import NodeId
from millpond_kernel.uow import UnitOfWork

# A node and the number of its agent's session.
SessionOf = tuple[NodeId, int]

# A beat without conditions does not wait for the disk: a crash may forget the last ones, and harms nobody.
_BEAT = """
WITH durability AS (
    SELECT set_config(
        'synchronous_commit', CASE WHEN $3 THEN current_setting('synchronous_commit') ELSE 'off' END, true
    )
)
UPDATE heartbeat h SET at = clock_timestamp()
FROM durability, node n JOIN pool p ON p.id = n.pool_id
WHERE h.node_id = $1 AND n.id = $1 AND n.incarnation = $2 AND n.state <> 'removed'
RETURNING h.at, n.state, n.cordon_reasons, n.inventory_sequence, n.pool_id, p.unreachable_after_seconds
"""

# The same of many sessions, in no order that could meet another's: a row that is locked now is left to `_BEAT`.
_BEATS = """
WITH durability AS (SELECT set_config('synchronous_commit', 'off', true)),
session AS (SELECT DISTINCT node_id, incarnation FROM unnest($1::uuid[], $2::bigint[]) AS s(node_id, incarnation)),
locked AS (
    SELECT node_id FROM heartbeat WHERE node_id = ANY($1::uuid[]) FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE heartbeat h SET at = clock_timestamp()
FROM durability, locked l, session s, node n JOIN pool p ON p.id = n.pool_id
WHERE h.node_id = l.node_id AND s.node_id = l.node_id AND n.id = l.node_id
  AND n.incarnation = s.incarnation AND n.state <> 'removed'
RETURNING h.node_id, n.incarnation,
    h.at, n.state, n.cordon_reasons, n.inventory_sequence, n.pool_id, p.unreachable_after_seconds
"""

_SILENT = """
SELECT n.id FROM node n JOIN heartbeat h ON h.node_id = n.id JOIN pool p ON p.id = n.pool_id
WHERE n.state = 'ready'
  AND greatest(h.at, $1) < clock_timestamp() - make_interval(secs => p.unreachable_after_seconds)
ORDER BY n.id LIMIT $2
"""

_OPEN_CONDITION = """
INSERT INTO condition AS c (node_id, target, name, evidence, opened_at) VALUES ($1, $2, $3, $4, clock_timestamp())
ON CONFLICT (node_id, target, name) DO UPDATE SET
    evidence = excluded.evidence,
    opened_at = CASE WHEN c.closed_at IS NULL THEN c.opened_at ELSE excluded.opened_at END,
    closed_at = NULL
WHERE c.closed_at IS NOT NULL OR c.evidence <> excluded.evidence
"""

_CLOSE_CONDITION = """
UPDATE condition SET closed_at = clock_timestamp(), evidence = CASE WHEN $4 = '' THEN evidence ELSE $4 END
WHERE node_id = $1 AND target = $2 AND name = $3 AND closed_at IS NULL
"""


async def beat(unit: UnitOfWork, node_id: NodeId, incarnation: int, *, is_durable: bool) -> asyncpg.Record | None:
    """Notes the sign of life and tells what the agent must know; None when this is not the node's newest session."""
    return await unit.fetchrow(_BEAT, node_id, incarnation, is_durable)


async def beat_together(unit: UnitOfWork, sessions: Sequence[SessionOf]) -> dict[SessionOf, asyncpg.Record]:
    """`beat` of many sessions in one statement, without conditions.

    Missing in what it gives are sessions that are not their node's newest, and nodes whose row somebody else keeps now.
    """
    rows = await unit.fetch(_BEATS, [node_id for node_id, _ in sessions], [number for _, number in sessions])
    return {(NodeId.of(row["node_id"]), row["incarnation"]): row for row in rows}


async def touch(unit: UnitOfWork, node_id: NodeId) -> None:
    """Notes a sign of life of a locked node."""
    touched = await unit.execute("UPDATE heartbeat SET at = clock_timestamp() WHERE node_id = $1", node_id)
    assert touched == 1, f"node {node_id} has no heartbeat row"


async def list_silent(unit: UnitOfWork, listening_since: datetime, limit: int) -> list[NodeId]:
    """Ready nodes that were silent for longer than their pool allows, counted at most from `listening_since`."""
    return [NodeId.of(row["id"]) for row in await unit.fetch(_SILENT, listening_since, limit)]


async def put_conditions(unit: UnitOfWork, node_id: NodeId, conditions: Sequence[Condition]) -> None:
    """Opens and closes conditions; one that stays as it was is not written."""
    for is_open, statement in ((True, _OPEN_CONDITION), (False, _CLOSE_CONDITION)):
        rows = [(node_id, item.target, item.name, item.evidence) for item in conditions if item.open is is_open]
        if rows:
            await unit.connection.executemany(statement, rows)


async def list_conditions(unit: UnitOfWork, node_id: NodeId) -> list[asyncpg.Record]:
    """The conditions of a node, open ones first."""
    return await unit.fetch(
        "SELECT * FROM condition WHERE node_id = $1 ORDER BY closed_at IS NOT NULL, opened_at DESC LIMIT 200", node_id
    )
