"""The counters that make over-allocation impossible: what is free on a node, what a virtual pool uses.

They change only together with the allocation rows that they count (decision record on guards). Rows are locked in the
order of their ids, nodes before usage, so that two writers never wait for one another in a circle.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import asyncpg

from millpond_contracts.bodies.allocations import DeviceShare
from millpond_contracts.ids import NodeId, TenantId, VirtualPoolId
from millpond_contracts.partitions import mask_of
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.admission import CPU, MEMORY, Resource, device


class GuardFailed(Exception):
    """A counter or a row was not as the plan expected: nothing of the transaction may stand."""


@dataclass(slots=True)
class NodeDelta:
    """What is taken from (or given back to) one node, summed over the allocations of one transaction."""

    node: NodeId
    incarnation: int = 0
    layout: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0
    milli: dict[str, int] = field(default_factory=dict)
    mib: dict[str, int] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)

    def add(self, cpu_milli: int, memory_mib: int, devices: Iterable[DeviceShare]) -> None:
        """Counts one allocation."""
        self.cpu_milli += cpu_milli
        self.memory_mib += memory_mib
        for share in devices:
            partition = share.partition
            mask = 0 if partition is None else mask_of(partition.start, partition.slices)
            self.add_device(str(share.device_id), share.milli, share.memory_mib or 0, mask)

    def add_device(self, device: str, milli: int, memory_mib: int, slots: int = 0) -> None:
        """Counts a share of a device, of a partition with the mask of its slices."""
        self.milli[device] = self.milli.get(device, 0) + milli
        self.mib[device] = self.mib.get(device, 0) + memory_mib
        if slots:
            self.slots[device] = self.slots.get(device, 0) + count_slots(slots)


def count_slots(mask: int) -> int:
    """The mask with four bits for each slice, so that one taken twice shows in a sum instead of being lost."""
    return int(f"{mask:b}", 16)


UsageDeltas: TypeAlias = dict[tuple[VirtualPoolId, Resource], int]


def demand_of(
    cpu_milli: int, memory_mib: int, flavor: str | None, devices: Iterable[DeviceShare]
) -> dict[Resource, int]:
    """What one allocation counts against its virtual pool's limits."""
    demand = {CPU: cpu_milli, MEMORY: memory_mib}
    if flavor is not None:
        demand[device(flavor)] = sum(share.milli for share in devices)
    return demand


_CHANGE_NODES = """
WITH x AS (
    SELECT n, i, l, c, m, d::text[] AS d, f::int[] AS f, b::int[] AS b, s::bigint[] AS s
    FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::text[],
         $9::text[]) AS u(n, i, l, c, m, d, f, b, s)
), locked AS (
    SELECT node_id FROM node_guard WHERE node_id = ANY($1::uuid[]) ORDER BY node_id FOR NO KEY UPDATE
)
UPDATE node_guard g SET
    free_cpu_milli = g.free_cpu_milli - x.c,
    free_memory_mib = g.free_memory_mib - x.m,
    free_milli = CASE WHEN x.d = '{}' THEN g.free_milli ELSE (
        SELECT array_agg(p.free - coalesce(t.taken, 0) ORDER BY p.slot)
        FROM unnest(g.device_ids, g.free_milli) WITH ORDINALITY AS p(id, free, slot)
        LEFT JOIN unnest(x.d, x.f) AS t(id, taken) ON t.id = p.id) END,
    free_mib = CASE WHEN x.d = '{}' THEN g.free_mib ELSE (
        SELECT array_agg(p.free - coalesce(t.taken, 0) ORDER BY p.slot)
        FROM unnest(g.device_ids, g.free_mib) WITH ORDINALITY AS p(id, free, slot)
        LEFT JOIN unnest(x.d, x.b) AS t(id, taken) ON t.id = p.id) END,
    free_slots = CASE WHEN x.s = '{}' THEN g.free_slots ELSE (
        SELECT array_agg(p.free - coalesce(t.taken, 0) ORDER BY p.slot)
        FROM unnest(g.device_ids, g.free_slots) WITH ORDINALITY AS p(id, free, slot)
        LEFT JOIN unnest(x.d, x.s) AS t(id, taken) ON t.id = p.id) END
FROM x JOIN locked ON locked.node_id = x.n
WHERE g.node_id = x.n AND {condition}
RETURNING g.node_id
"""
_TAKE_NODES = _CHANGE_NODES.replace("{condition}", "g.open AND g.incarnation = x.i AND g.layout = x.l")
_GIVE_NODES = _CHANGE_NODES.replace("{condition}", "NOT g.shrunk")

_CHANGE_USAGE = """
WITH x AS (SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[]) AS u(v, r, f, a)),
locked AS (
    SELECT u.virtual_pool_id, u.resource, u.flavor FROM usage u JOIN x
        ON u.virtual_pool_id = x.v AND u.resource = x.r AND u.flavor = x.f
    ORDER BY u.virtual_pool_id, u.resource, u.flavor FOR NO KEY UPDATE OF u
)
UPDATE usage u SET used = u.used + x.a
FROM x JOIN locked l ON l.virtual_pool_id = x.v AND l.resource = x.r AND l.flavor = x.f
WHERE u.virtual_pool_id = x.v AND u.resource = x.r AND u.flavor = x.f
"""

# What each node's counters should be: its totals less the sum of its live allocations, and never below zero.
_EXPECTED_NODES = """
WITH guards AS (
    SELECT * FROM node_guard WHERE $1::uuid[] IS NULL OR node_id = ANY($1)
), live AS (
    SELECT * FROM allocation WHERE state <> 'released' AND ($1::uuid[] IS NULL OR node_id = ANY($1))
), hosts AS (
    SELECT node_id, sum(cpu_milli)::bigint AS cpu, sum(memory_mib)::bigint AS mem FROM live GROUP BY node_id
), shares AS (
    SELECT node_id, d->>'device_id' AS id, sum((d->>'milli')::int)::int AS milli,
           sum(coalesce((d->>'memory_mib')::int, 0))::int AS mib,
           sum(coalesce((((1::bigint << 4 * (d->'partition'->>'slices')::int) - 1) / 15)
               << 4 * (d->'partition'->>'start')::int, 0))::bigint AS slots
    FROM live CROSS JOIN LATERAL jsonb_array_elements(devices) AS d GROUP BY 1, 2
), devices AS (
    SELECT g.node_id, p.slot, g.slot_counts <> '{}' AS divided, p.total - coalesce(s.mib, 0) AS mib,
           1000 - coalesce(s.milli, 0) AS milli, scheduler.all_slots(p.slots) - coalesce(s.slots, 0) AS slots,
           -- Work of the other mode is still there: until it has ended, nothing of the device is free.
           NOT scheduler.is_one_mode(1000 - coalesce(s.milli, 0),
               scheduler.all_slots(p.slots) - coalesce(s.slots, 0), coalesce(p.slots, 0)) AS mixed
    FROM guards g CROSS JOIN LATERAL unnest(g.device_ids, g.total_mib, g.slot_counts) WITH ORDINALITY
         AS p(id, total, slots, slot)
    LEFT JOIN shares s ON s.node_id = g.node_id AND s.id = p.id
), slots AS (
    SELECT node_id, array_agg(CASE WHEN mixed THEN 0 ELSE greatest(0, milli) END ORDER BY slot) AS milli,
           array_agg(greatest(0, mib) ORDER BY slot) AS mib,
           coalesce(array_agg(CASE WHEN mixed THEN 0 ELSE slots END ORDER BY slot) FILTER (WHERE divided), '{}')
               AS slots,
           bool_or(milli < 0 OR mib < 0 OR mixed) AS over
    FROM devices GROUP BY node_id
)
SELECT g.node_id, g.free_cpu_milli, g.free_memory_mib, g.free_milli, g.free_mib, g.free_slots, g.shrunk,
       greatest(0, g.total_cpu_milli - coalesce(h.cpu, 0)) AS cpu,
       greatest(0, g.total_memory_mib - coalesce(h.mem, 0)) AS mem,
       coalesce(s.milli, '{}') AS milli, coalesce(s.mib, '{}') AS mib, coalesce(s.slots, '{}') AS slots,
       coalesce(h.cpu > g.total_cpu_milli, false) OR coalesce(h.mem > g.total_memory_mib, false)
           OR coalesce(s.over, false) AS over
FROM guards g LEFT JOIN hosts h USING (node_id) LEFT JOIN slots s USING (node_id)
"""

_EXPECTED_USAGE = """
WITH counters AS (
    SELECT * FROM usage WHERE $1::uuid[] IS NULL OR virtual_pool_id = ANY($1)
), live AS (
    SELECT * FROM allocation WHERE state <> 'released' AND ($1::uuid[] IS NULL OR virtual_pool_id = ANY($1))
), held AS (
    SELECT virtual_pool_id, 'cpu' AS resource, '' AS flavor, sum(cpu_milli) AS amount FROM live GROUP BY 1
    UNION ALL SELECT virtual_pool_id, 'memory', '', sum(memory_mib) FROM live GROUP BY 1
    UNION ALL SELECT virtual_pool_id, 'device', flavor, sum((d->>'milli')::bigint)
        FROM live CROSS JOIN LATERAL jsonb_array_elements(devices) AS d WHERE flavor IS NOT NULL GROUP BY 1, 3
)
SELECT u.virtual_pool_id, u.resource, u.flavor, u.used, coalesce(h.amount, 0)::bigint AS expected
FROM counters u LEFT JOIN held h USING (virtual_pool_id, resource, flavor)
"""


async def take_from_nodes(unit: UnitOfWork, deltas: Mapping[NodeId, NodeDelta]) -> None:
    """Takes room on nodes that are open and unchanged: amounts, and of partitions the very slices.

    Raises:
        GuardFailed: a node is closed, has another session or other devices.
        asyncpg.CheckViolationError: there is not so much room, or a slice is taken, or a device would be in two modes.
    """
    rows = await unit.fetch(_TAKE_NODES, *_columns(deltas, 1))
    if len(rows) != len(deltas):
        raise GuardFailed(f"{len(deltas) - len(rows)} of {len(deltas)} nodes changed since the plan")


async def give_to_nodes(unit: UnitOfWork, deltas: Mapping[NodeId, NodeDelta]) -> None:
    """Gives room back. A node that holds more than it has now is counted anew instead."""
    rows = await unit.fetch(_GIVE_NODES, *_columns(deltas, -1))
    rest = set(deltas) - {NodeId.of(row["node_id"]) for row in rows}
    if rest:
        await recount_nodes(unit, sorted(rest))


def _columns(deltas: Mapping[NodeId, NodeDelta], sign: int) -> tuple[list[object], ...]:
    ordered = list(deltas.values())  # the statement locks them in their order
    return (
        [delta.node for delta in ordered],
        [delta.incarnation for delta in ordered],
        [delta.layout for delta in ordered],
        [sign * delta.cpu_milli for delta in ordered],
        [sign * delta.memory_mib for delta in ordered],
        [f"{{{','.join(delta.milli)}}}" for delta in ordered],
        [f"{{{','.join(str(sign * amount) for amount in delta.milli.values())}}}" for delta in ordered],
        [f"{{{','.join(str(sign * amount) for amount in delta.mib.values())}}}" for delta in ordered],
        [
            f"{{{','.join(str(sign * delta.slots.get(each, 0)) for each in delta.milli if delta.slots)}}}"
            for delta in ordered
        ],
    )


async def change_usage(unit: UnitOfWork, deltas: UsageDeltas, sign: int) -> None:
    """Counts more or less against the limits of virtual pools.

    Raises:
        GuardFailed: a virtual pool has no such counter.
        asyncpg.CheckViolationError: a hard limit would be passed, or a counter would fall below zero.
    """
    ordered = sorted(deltas.items(), key=lambda item: (item[0][0].int, item[0][1].name, item[0][1].flavor or ""))
    touched = await unit.execute(
        _CHANGE_USAGE,
        [virtual_pool for (virtual_pool, _), _ in ordered],
        [resource.name for (_, resource), _ in ordered],
        [resource.flavor or "" for (_, resource), _ in ordered],
        [sign * amount for _, amount in ordered],
    )
    if touched != len(deltas):
        raise GuardFailed(f"{len(deltas) - touched} of {len(deltas)} usage counters do not exist")


async def list_expected_nodes(unit: UnitOfWork, nodes: Sequence[NodeId] | None) -> list[asyncpg.Record]:
    """Each counter of the nodes (None = all) as found and as it should be, at one instant."""
    return await unit.fetch(_EXPECTED_NODES, nodes)


async def list_free(unit: UnitOfWork) -> list[asyncpg.Record]:
    """What the counters of every node leave free, devices as their sum; but for nodes that hold more than they have."""
    return await unit.fetch(
        "SELECT node_id, free_cpu_milli AS cpu_milli, free_memory_mib AS memory_mib,"
        " coalesce((SELECT sum(f) FROM unnest(free_milli) AS f), 0)::bigint AS device_milli"
        " FROM node_guard WHERE NOT shrunk"
    )


async def lock_nodes(unit: UnitOfWork, nodes: Sequence[NodeId]) -> None:
    """Locks the counters of nodes, so that the sums read afterwards cannot move."""
    await unit.execute(
        "SELECT node_id FROM node_guard WHERE node_id = ANY($1) ORDER BY node_id FOR NO KEY UPDATE", nodes
    )


async def recount_nodes(unit: UnitOfWork, nodes: Sequence[NodeId]) -> None:
    """Sets the counters of the nodes to what their live allocations leave."""
    await lock_nodes(unit, nodes)
    await write_node_counters(unit, await list_expected_nodes(unit, nodes))


async def write_node_counters(unit: UnitOfWork, rows: Sequence[asyncpg.Record]) -> None:
    """Writes what `list_expected_nodes` told."""
    await unit.execute(
        "UPDATE node_guard g SET free_cpu_milli = x.c, free_memory_mib = x.m, free_milli = x.f::int[],"
        " free_mib = x.b::int[], shrunk = x.s, free_slots = x.p::bigint[]"
        " FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bool[], $7::text[])"
        " AS x(n, c, m, f, b, s, p) WHERE g.node_id = x.n",
        [row["node_id"] for row in rows],
        [row["cpu"] for row in rows],
        [row["mem"] for row in rows],
        [f"{{{','.join(map(str, row['milli']))}}}" for row in rows],
        [f"{{{','.join(map(str, row['mib']))}}}" for row in rows],
        [row["over"] for row in rows],
        [f"{{{','.join(map(str, row['slots']))}}}" for row in rows],
    )


async def list_expected_usage(unit: UnitOfWork, virtual_pools: Sequence[VirtualPoolId] | None) -> list[asyncpg.Record]:
    """Each counter of the virtual pools (None = all) as found and as it should be, at one instant."""
    return await unit.fetch(_EXPECTED_USAGE, virtual_pools)


async def lock_usage(unit: UnitOfWork, virtual_pools: Sequence[VirtualPoolId]) -> None:
    """Locks the counters of virtual pools, so that the sums read afterwards cannot move."""
    await unit.execute(
        "SELECT used FROM usage WHERE virtual_pool_id = ANY($1) ORDER BY virtual_pool_id, resource, flavor"
        " FOR NO KEY UPDATE",
        virtual_pools,
    )


async def write_usage(unit: UnitOfWork, rows: Sequence[asyncpg.Record]) -> None:
    """Writes what `list_expected_usage` told. What is held is held: the hard limit is not asked, and stays."""
    keys = (
        [row["virtual_pool_id"] for row in rows],
        [row["resource"] for row in rows],
        [row["flavor"] for row in rows],
    )
    where = "u.virtual_pool_id = x.v AND u.resource = x.r AND u.flavor = x.f"
    limits = await unit.fetch(
        "SELECT u.hard FROM unnest($1::uuid[], $2::text[], $3::text[]) WITH ORDINALITY AS x(v, r, f, o)"
        f" JOIN usage u ON {where} ORDER BY x.o",
        *keys,
    )
    await unit.execute(
        "UPDATE usage u SET used = x.e, hard = greatest(u.hard, x.e)"
        f" FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[]) AS x(v, r, f, e) WHERE {where}",
        *keys,
        [row["expected"] for row in rows],
    )
    await unit.execute(
        "UPDATE usage u SET hard = x.h"
        f" FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[]) AS x(v, r, f, h) WHERE {where}",
        *keys,
        [row["hard"] for row in limits],
    )


async def set_limits(
    unit: UnitOfWork,
    virtual_pool: VirtualPoolId,
    tenant: TenantId,
    limits: Mapping[Resource, tuple[int, int]],
    generation: int,
) -> None:
    """Takes a virtual pool's limits as (guaranteed, hard) per resource; what is no longer named keeps its use at 0."""
    ordered = sorted(limits.items(), key=lambda item: (item[0].name, item[0].flavor or ""))
    await unit.execute(
        "INSERT INTO usage (virtual_pool_id, tenant_id, resource, flavor, guaranteed, hard, limit_generation)"
        " SELECT $1, $2, r, f, g, h, $3"
        " FROM unnest($4::text[], $5::text[], $6::bigint[], $7::bigint[]) AS x(r, f, g, h)"
        " ON CONFLICT (virtual_pool_id, resource, flavor) DO UPDATE SET guaranteed = excluded.guaranteed,"
        " hard = excluded.hard, limit_generation = excluded.limit_generation",
        virtual_pool,
        tenant,
        generation,
        [resource.name for resource, _ in ordered],
        [resource.flavor or "" for resource, _ in ordered],
        [guaranteed for _, (guaranteed, _) in ordered],
        [hard for _, (_, hard) in ordered],
    )
    await unit.execute(
        "UPDATE usage SET guaranteed = 0, hard = 0, limit_generation = $2"
        " WHERE virtual_pool_id = $1 AND limit_generation < $2",
        virtual_pool,
        generation,
    )
