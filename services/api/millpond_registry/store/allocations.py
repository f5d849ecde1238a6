"""SQL of the view of the scheduler's allocations: what each holds of its node."""

import json
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.allocations import AllocationState, AllocationView, DeviceShare
from millpond_contracts.ids import NodeId
from millpond_contracts.partitions import mask_of
from millpond_kernel.uow import UnitOfWork

# The consumer that keeps this view; its cursor tells how far the view has come.
CONSUMER = "allocations"

_PUT = """
INSERT INTO allocation AS a (id, node_id, cpu_milli, memory_mib, devices, released, generation)
SELECT v.id, v.node_id, v.cpu_milli, v.memory_mib, v.devices::jsonb, v.released, v.generation
FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[], $5::text[], $6::boolean[], $7::bigint[])
    AS v(id, node_id, cpu_milli, memory_mib, devices, released, generation)
ORDER BY v.id
ON CONFLICT (id) DO UPDATE SET
    node_id = excluded.node_id, cpu_milli = excluded.cpu_milli, memory_mib = excluded.memory_mib,
    devices = excluded.devices, released = excluded.released, generation = excluded.generation,
    updated_at = clock_timestamp()
WHERE excluded.generation > a.generation OR ($8 AND excluded.generation = a.generation)
RETURNING a.node_id
"""

# What an allocation holds: node, CPU, memory, shares of devices (of a partition with its mask), whether it is over.
HeldRow = tuple[UUID, int, int, list[list[Any]], bool]


def held_of(view: AllocationView) -> HeldRow:
    """What an allocation holds, in the columns of the view."""
    shares = [[str(UUID(int=share.device_id.int)), share.milli, *_mask(share)] for share in view.devices]
    return view.node_id, view.cpu_milli, view.memory_mib, shares, view.state is AllocationState.RELEASED


def _mask(share: DeviceShare) -> list[int]:
    own = share.partition
    return [] if own is None else [mask_of(own.start, own.slices)]


async def put_allocations(unit: UnitOfWork, views: Iterable[AllocationView], *, repair: bool = False) -> list[NodeId]:
    """The nodes of the rows that changed, each as often as it did.

    Only a higher generation changes a row, or the same one when a wrong row is repaired; of several views of one
    allocation the one with the highest counts.
    """
    newest: dict[UUID, AllocationView] = {}
    for view in views:
        known = newest.get(view.allocation_id)
        if known is None or view.generation > known.generation:
            newest[view.allocation_id] = view
    if not newest:
        return []
    held = [held_of(view) for view in newest.values()]
    rows = await unit.fetch(
        _PUT,
        list(newest),
        [row[0] for row in held],
        [row[1] for row in held],
        [row[2] for row in held],
        [json.dumps(row[3]) for row in held],
        [row[4] for row in held],
        [view.generation for view in newest.values()],
        repair,
    )
    return [NodeId.of(row["node_id"]) for row in rows]


async def read_held(unit: UnitOfWork, allocation_ids: Sequence[UUID]) -> dict[UUID, HeldRow]:
    """allocation id -> what the view says that it holds."""
    rows = await unit.fetch(
        "SELECT id, node_id, cpu_milli, memory_mib, devices, released FROM allocation WHERE id = ANY($1::uuid[])",
        list(allocation_ids),
    )
    return {row["id"]: tuple(row.values())[1:] for row in rows}


async def clear_allocations(unit: UnitOfWork) -> None:
    """Empties the view for a rebuild; every node that held something is counted again."""
    await unit.execute("INSERT INTO tally_mark (node_id) SELECT DISTINCT node_id FROM allocation WHERE NOT released")
    await unit.execute("DELETE FROM allocation")


async def live_allocations(unit: UnitOfWork, node_ids: Iterable[UUID]) -> list[asyncpg.Record]:
    """Rows of what is held on these nodes."""
    return await unit.fetch(
        "SELECT node_id, cpu_milli, memory_mib, devices FROM allocation"
        " WHERE node_id = ANY($1::uuid[]) AND NOT released",
        list(node_ids),
    )


async def count_live(unit: UnitOfWork, node_id: NodeId) -> int:
    """How many allocations the node holds."""
    return int(await unit.fetchval("SELECT count(*) FROM allocation WHERE node_id = $1 AND NOT released", node_id))


async def release_missing(unit: UnitOfWork, live: Sequence[UUID], before_seconds: float) -> list[NodeId]:
    """Ends rows that the scheduler no longer has and that did not change for `before_seconds`; tells their nodes."""
    rows = await unit.fetch(
        "UPDATE allocation SET released = true, updated_at = clock_timestamp() WHERE NOT released"
        " AND NOT (id = ANY($1::uuid[])) AND updated_at < clock_timestamp() - make_interval(secs => $2)"
        " RETURNING node_id",
        list(live),
        before_seconds,
    )
    return [NodeId.of(row["node_id"]) for row in rows]


async def forget_released(unit: UnitOfWork, after_hours: int) -> int:
    """Deletes rows that ended long ago, a batch at a time."""
    return await unit.execute(
        "DELETE FROM allocation WHERE id IN (SELECT id FROM allocation WHERE released"
        " AND updated_at < clock_timestamp() - make_interval(hours => $1) LIMIT 1000)",
        after_hours,
    )
