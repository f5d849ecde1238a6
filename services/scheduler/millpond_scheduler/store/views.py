"""What other services published, as this one keeps it: a row changes only on a higher generation."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.bills import PriceVersionView
from millpond_contracts.bodies.nodes import CordonReason, DeviceView, NodeState, NodeView
from millpond_contracts.bodies.pools import PoolView
from millpond_contracts.bodies.scaling import ScalingPolicyView
from millpond_contracts.bodies.tenants import Limits, ProjectView, QueuePolicy, VirtualPoolView
from millpond_contracts.ids import PoolId, TenantId, VirtualPoolId
from millpond_contracts.partitions import offered_geometry
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.growth import GrowthLimit


async def write_node(unit: UnitOfWork, node: NodeView) -> bool:
    """Takes a node as the registry tells it; False = it was known as newly or newer."""
    drain = node.drain
    touched = await unit.execute(
        "INSERT INTO node_view AS v (node_id, pool_id, body, drain_generation, drain_deadline, removed, generation)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (node_id) DO UPDATE SET pool_id = excluded.pool_id,"
        " body = excluded.body, drain_generation = excluded.drain_generation, drain_deadline = excluded.drain_deadline,"
        " removed = excluded.removed, generation = excluded.generation WHERE excluded.generation > v.generation",
        node.node_id,
        node.pool_id,
        node.model_dump(mode="json"),
        None if drain is None else drain.generation,
        None if drain is None else drain.deadline,
        node.state is NodeState.REMOVED,
        node.generation,
    )
    return touched == 1


async def write_guard(unit: UnitOfWork, node: NodeView, *, is_open: bool) -> None:
    """Makes or renews a node's counters from its totals; after a change of these the caller counts anew.

    A quarantine lasts until the registry keeps it, as a cordon for health. `slot_counts` has each device's memory
    slices, 0 of one that is not in partition mode; empty where none is.
    """
    counts = [count_slices(device) for device in node.devices]
    alike = "(g.device_ids = excluded.device_ids AND g.slot_counts = excluded.slot_counts)"
    await unit.execute(
        "INSERT INTO node_guard AS g (node_id, pool_id, open, incarnation, layout, total_cpu_milli, total_memory_mib,"
        " device_count, device_ids, total_mib, free_cpu_milli, free_memory_mib, free_milli, free_mib, slot_counts,"
        " free_slots)"
        " VALUES ($1, $2, $3, $4, 1, $5, $6, $7, $8, $9, $5, $6, $10, $9, $12,"
        " ARRAY(SELECT scheduler.all_slots(c) FROM unnest($12::int[]) WITH ORDINALITY AS s(c, o) ORDER BY o))"
        " ON CONFLICT (node_id) DO UPDATE SET pool_id = excluded.pool_id,"
        " open = excluded.open AND g.quarantined_at IS NULL,"
        " quarantined_at = CASE WHEN NOT $11 THEN g.quarantined_at END,"
        " incarnation = excluded.incarnation,"
        f" layout = g.layout + (NOT {alike})::int,"
        " total_cpu_milli = excluded.total_cpu_milli, total_memory_mib = excluded.total_memory_mib,"
        " device_count = excluded.device_count, device_ids = excluded.device_ids, total_mib = excluded.total_mib,"
        " slot_counts = excluded.slot_counts,"
        # The counters of other devices, or of another mode, mean nothing; the recount that follows sets them.
        f" free_milli = CASE WHEN {alike} THEN g.free_milli ELSE excluded.free_milli END,"
        f" free_mib = CASE WHEN {alike} THEN g.free_mib ELSE excluded.free_mib END,"
        f" free_slots = CASE WHEN {alike} THEN g.free_slots ELSE excluded.free_slots END",
        node.node_id,
        node.pool_id,
        is_open,
        node.incarnation,
        node.cpu_milli,
        node.memory_mib,
        len(node.devices),
        [str(device.device_id) for device in node.devices],
        [device.memory_mib or 0 for device in node.devices],
        [1000 for _ in node.devices],
        CordonReason.HEALTH in node.cordon_reasons,
        counts if any(counts) else [],
    )


def count_slices(device: DeviceView) -> int:
    """The memory slices that a device is given out in; 0 = whole or in shares."""
    return 0 if device.partition_mode is None else offered_geometry(device.model_key, device.profiles).slices


async def find_totals(unit: UnitOfWork, node: NodeView) -> asyncpg.Record | None:
    """The guard's totals, locked; None before the node is known."""
    return await unit.fetchrow(
        "SELECT total_cpu_milli, total_memory_mib, device_ids, total_mib, slot_counts FROM node_guard"
        " WHERE node_id = $1 FOR NO KEY UPDATE",
        node.node_id,
    )


async def write_pool(unit: UnitOfWork, pool: PoolView, *, deleted: bool) -> bool:
    """Takes a pool as the registry tells it; False = it was known as newly or newer."""
    touched = await unit.execute(
        "INSERT INTO pool_view AS v (pool_id, body, deleted, generation) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (pool_id) DO UPDATE SET body = excluded.body, deleted = excluded.deleted,"
        " generation = excluded.generation WHERE excluded.generation > v.generation",
        pool.pool_id,
        pool.model_dump(mode="json"),
        deleted,
        pool.generation,
    )
    return touched == 1


async def write_virtual_pool(unit: UnitOfWork, virtual_pool: VirtualPoolView) -> bool:
    """Takes a virtual pool as quota tells it; False = it was known as newly or newer."""
    touched = await unit.execute(
        "INSERT INTO virtual_pool_view AS v (id, tenant_id, pool_id, name, limits, policy, deleted, generation,"
        " reclaim_at, preemption, minimum_runtime_seconds)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (id) DO UPDATE SET name = excluded.name,"
        " limits = excluded.limits, policy = excluded.policy, deleted = excluded.deleted,"
        " generation = excluded.generation, reclaim_at = excluded.reclaim_at,"
        " preemption = excluded.preemption, minimum_runtime_seconds = excluded.minimum_runtime_seconds"
        " WHERE excluded.generation > v.generation",
        virtual_pool.virtual_pool_id,
        virtual_pool.tenant_id,
        virtual_pool.pool_id,
        virtual_pool.name,
        virtual_pool.limits.model_dump(mode="json"),
        virtual_pool.policy.value,
        virtual_pool.deleted,
        virtual_pool.generation,
        virtual_pool.reclaim_at,
        virtual_pool.preemption.value,
        virtual_pool.minimum_runtime_seconds,
    )
    return touched == 1


async def write_project(unit: UnitOfWork, project: ProjectView, *, deleted: bool) -> None:
    """Takes a project as quota tells it."""
    await unit.execute(
        "INSERT INTO project_view AS v (id, tenant_id, deleted, generation) VALUES ($1, $2, $3, $4)"
        " ON CONFLICT (id) DO UPDATE SET deleted = excluded.deleted, generation = excluded.generation"
        " WHERE excluded.generation > v.generation",
        project.project_id,
        project.tenant_id,
        deleted,
        project.generation,
    )


async def write_price(unit: UnitOfWork, price: PriceVersionView) -> bool:
    """Takes a price version as billing tells it; False = it was known as newly or newer."""
    touched = await unit.execute(
        "INSERT INTO price_view AS v"
        " (id, tenant_id, valid_from, valid_to, generation, currency, minimum_seconds, lines)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
        " ON CONFLICT (id) DO UPDATE SET valid_from = excluded.valid_from, valid_to = excluded.valid_to,"
        " generation = excluded.generation, currency = excluded.currency, minimum_seconds = excluded.minimum_seconds,"
        # A row from before prices were kept with their version is filled, though it is as new.
        " lines = excluded.lines WHERE excluded.generation > v.generation OR v.lines IS NULL",
        price.price_version_id,
        price.tenant_id,
        price.valid_from,
        price.valid_to,
        price.generation,
        price.currency,
        price.minimum_seconds,
        [line.model_dump(mode="json") for line in price.lines],
    )
    return touched == 1


async def write_scaling_policy(unit: UnitOfWork, policy: ScalingPolicyView, *, deleted: bool) -> bool:
    """Takes a scaling policy as the autoscaler tells it; False = it was known as newly or newer."""
    touched = await unit.execute(
        "INSERT INTO scaling_policy_view AS v (id, name, pool_id, flavor, max_nodes, enabled, deleted, generation)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (id) DO UPDATE SET name = excluded.name,"
        " max_nodes = excluded.max_nodes, enabled = excluded.enabled, deleted = excluded.deleted,"
        " generation = excluded.generation WHERE excluded.generation > v.generation",
        policy.scaling_policy_id,
        policy.name,
        policy.pool_id,
        policy.flavor,
        policy.rules.max_nodes,
        policy.enabled,
        deleted,
        policy.generation,
    )
    return touched == 1


async def list_growth(unit: UnitOfWork) -> list[GrowthLimit]:
    """How large the scaling policies in force let their pools grow."""
    rows = await unit.fetch(
        "SELECT name, pool_id, flavor, max_nodes FROM scaling_policy_view WHERE enabled AND NOT deleted ORDER BY id"
    )
    return [GrowthLimit(row["name"], PoolId.of(row["pool_id"]), row["flavor"], row["max_nodes"]) for row in rows]


async def list_nodes(unit: UnitOfWork, nodes: Sequence[UUID] | None) -> list[asyncpg.Record]:
    """Node views (None = all that are not removed), as JSON, with their counters' layout and whether they poll."""
    return await unit.fetch(
        "SELECT v.node_id, v.body::text AS body, v.removed, g.layout, coalesce(l.silent, true) AS silent,"
        " g.quarantined_at IS NOT NULL AS quarantined"
        " FROM node_view v JOIN node_guard g USING (node_id) LEFT JOIN node_lease l USING (node_id)"
        " WHERE CASE WHEN $1::uuid[] IS NULL THEN NOT v.removed ELSE v.node_id = ANY($1) END",
        nodes,
    )


async def list_pools(unit: UnitOfWork) -> list[PoolView]:
    """The pools that exist."""
    rows = await unit.fetch("SELECT body FROM pool_view WHERE NOT deleted")
    return [PoolView.model_validate(row["body"]) for row in rows]


async def find_pool(unit: UnitOfWork, pool: PoolId) -> PoolView | None:
    """The pool, None while it is not known here."""
    body = await unit.fetchval("SELECT body FROM pool_view WHERE pool_id = $1", pool)
    return None if body is None else PoolView.model_validate(body)


async def find_virtual_pool(unit: UnitOfWork, virtual_pool: VirtualPoolId) -> asyncpg.Record | None:
    """The virtual pool's row as the caller's scope may see it; None when there is none, or it was deleted."""
    return await unit.fetchrow("SELECT * FROM virtual_pool_view WHERE id = $1 AND NOT deleted", virtual_pool)


async def list_virtual_pools(unit: UnitOfWork) -> list[asyncpg.Record]:
    """The virtual pools that exist; what runs in a deleted one is only released."""
    return await unit.fetch("SELECT * FROM virtual_pool_view WHERE NOT deleted")


async def list_prices(unit: UnitOfWork, now: datetime) -> list[asyncpg.Record]:
    """Price versions that are or will be in force, newest first."""
    return await unit.fetch(
        "SELECT * FROM price_view WHERE valid_to IS NULL OR valid_to > $1 ORDER BY valid_from DESC, id DESC", now
    )


async def list_node_versions(unit: UnitOfWork) -> list[asyncpg.Record]:
    """Every node that is not removed: what tells whether it is as it was."""
    return await unit.fetch(
        "SELECT v.node_id, v.generation, coalesce(l.silent, true) AS silent, g.quarantined_at"
        " FROM node_view v JOIN node_guard g USING (node_id) LEFT JOIN node_lease l USING (node_id) WHERE NOT v.removed"
    )


def limits_of(row: asyncpg.Record) -> Limits:
    """The limits of a virtual pool's row."""
    return Limits.model_validate(row["limits"])


def policy_of(row: asyncpg.Record) -> QueuePolicy:
    """The queue policy of a virtual pool's row."""
    return QueuePolicy(row["policy"])


def tenant_of(row: asyncpg.Record) -> TenantId:
    """The tenant of a row."""
    return TenantId.of(row["tenant_id"])
