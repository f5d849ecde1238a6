"""Allocations as the scheduler told them last, and the timelines they make."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_billing.domain.facts import Activated, Bound, Fact, Holding, Parties, ProviderStopRequested, Released
from millpond_billing.domain.timeline import Timeline, find_timeline, instant_of
from millpond_contracts.bodies.allocations import PROVIDER_ENDS, AllocationView
from millpond_contracts.ids import AllocationId, NodeId, TenantId
from millpond_contracts.prices import Resource, Sku, Term
from millpond_kernel.uow import UnitOfWork

# What is read at a time of what was held long ago: the rest of the process gets its turn between two batches.
HELD_BATCH = 200

_SAVE = """
INSERT INTO allocation_view AS v
    (allocation_id, tenant_id, node_id, body, bound_at, active_at, released_at, generation)
SELECT i, t, n, b::jsonb, h, a, r, g FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::timestamptz[],
    $6::timestamptz[], $7::timestamptz[], $8::bigint[]) AS x(i, t, n, b, h, a, r, g) ORDER BY i
ON CONFLICT (allocation_id) DO UPDATE SET body = excluded.body, bound_at = excluded.bound_at,
    active_at = excluded.active_at, released_at = excluded.released_at, generation = excluded.generation, unrated = NULL
WHERE excluded.generation > v.generation
RETURNING allocation_id
"""


async def save_allocations(unit: UnitOfWork, allocations: Sequence[AllocationView]) -> list[AllocationView]:
    """Keeps the newest state of each allocation; those that were news, once each, their rows locked."""
    newest: dict[AllocationId, AllocationView] = {}
    for one in allocations:
        known = newest.get(one.allocation_id)
        if known is None or known.generation < one.generation:
            newest[one.allocation_id] = one
    states = list(newest.values())
    rows = await unit.fetch(
        _SAVE,
        [one.allocation_id for one in states],
        [one.tenant_id for one in states],
        [one.node_id for one in states],
        [one.model_dump_json() for one in states],
        [one.bound_at for one in states],
        [one.active_at for one in states],
        [one.released_at for one in states],
        [one.generation for one in states],
    )
    return [newest[AllocationId.of(row["allocation_id"])] for row in rows]


async def mark_unrated(unit: UnitOfWork, reasons: Sequence[tuple[AllocationId, str]]) -> None:
    """Keeps why released allocations could not be rated yet."""
    if not reasons:
        return
    changed = await unit.execute(
        "UPDATE allocation_view v SET unrated = x.reason FROM unnest($1::uuid[], $2::text[]) AS x(id, reason)"
        " WHERE v.allocation_id = x.id",
        [key for key, _ in reasons],
        [reason for _, reason in reasons],
    )
    assert changed == len(reasons), "they were saved before"


async def clear_unrated(unit: UnitOfWork, allocation_ids: Sequence[AllocationId]) -> None:
    """Tells that these are rated now."""
    await unit.execute(
        "UPDATE allocation_view SET unrated = NULL WHERE allocation_id = ANY($1::uuid[])", list(allocation_ids)
    )


async def lock_unrated(unit: UnitOfWork, limit: int) -> list[AllocationView]:
    """Released allocations that are not rated yet, locked: any of them, so that none always stands behind others."""
    rows = await unit.fetch(
        "SELECT body FROM allocation_view WHERE unrated IS NOT NULL ORDER BY random() LIMIT $1 FOR UPDATE SKIP LOCKED",
        limit,
    )
    return [allocation_of(row) for row in rows]


async def has_unrated(unit: UnitOfWork, tenant_id: TenantId) -> bool:
    """Whether a released allocation of the tenant is not rated yet."""
    row = await unit.fetchrow(
        "SELECT 1 FROM allocation_view WHERE tenant_id = $1 AND unrated IS NOT NULL LIMIT 1", tenant_id
    )
    return row is not None


def allocation_of(row: asyncpg.Record) -> AllocationView:
    """The allocation of a row."""
    return AllocationView.model_validate(row["body"])


async def list_running(unit: UnitOfWork, tenant_id: TenantId, until: datetime) -> list[AllocationView]:
    """Allocations that became active before `until` and are not released, by id."""
    rows = await unit.fetch(
        "SELECT body FROM allocation_view WHERE released_at IS NULL AND active_at < $2 AND tenant_id = $1"
        " ORDER BY allocation_id",
        tenant_id,
        until,
    )
    return [allocation_of(row) for row in rows]


async def list_all_running(unit: UnitOfWork, tenant_id: TenantId | None, until: datetime) -> list[AllocationView]:
    """As `list_running`, of one tenant or (null) of all."""
    if tenant_id is not None:
        return await list_running(unit, tenant_id, until)
    rows = await unit.fetch(
        "SELECT body FROM allocation_view WHERE released_at IS NULL AND active_at < $1 ORDER BY allocation_id", until
    )
    return [allocation_of(row) for row in rows]


async def list_running_ids(unit: UnitOfWork, tenant_id: TenantId, until: datetime) -> list[AllocationId]:
    """The ids of `list_running`."""
    rows = await unit.fetch(
        "SELECT allocation_id FROM allocation_view WHERE released_at IS NULL AND active_at < $2 AND tenant_id = $1",
        tenant_id,
        until,
    )
    return [AllocationId.of(row["allocation_id"]) for row in rows]


async def list_allocations(unit: UnitOfWork, allocation_ids: Sequence[AllocationId]) -> list[AllocationView]:
    """These allocations as they are now, by id."""
    rows = await unit.fetch(
        "SELECT body FROM allocation_view WHERE allocation_id = ANY($1::uuid[]) ORDER BY allocation_id",
        list(allocation_ids),
    )
    return [allocation_of(row) for row in rows]


async def list_held_on(
    unit: UnitOfWork, node_ids: Sequence[NodeId], start_at: datetime, end_at: datetime
) -> dict[NodeId, list[AllocationView]]:
    """Node -> the allocations that held something of it at some time in `[start_at, end_at)`, by id."""
    rows = await unit.fetch(
        "SELECT body FROM allocation_view WHERE node_id = ANY($1::uuid[]) AND bound_at < $3"
        " AND (released_at IS NULL OR released_at > $2) ORDER BY allocation_id",
        list(node_ids),
        start_at,
        end_at,
    )
    found: dict[NodeId, list[AllocationView]] = {node_id: [] for node_id in node_ids}
    for allocation in map(allocation_of, rows):
        found[allocation.node_id].append(allocation)
    return found


async def list_held_between(
    unit: UnitOfWork, tenant_id: TenantId | None, start_at: datetime, end_at: datetime
) -> AsyncIterator[AllocationView]:
    """Allocations, by id, that held something at some time in `[start_at, end_at)`: a batch in memory at a time."""
    after: UUID | None = None
    while True:
        rows = await unit.fetch(
            "SELECT allocation_id, body FROM allocation_view WHERE bound_at < $3"
            " AND (released_at IS NULL OR released_at > $2) AND ($1::uuid IS NULL OR tenant_id = $1)"
            " AND ($4::uuid IS NULL OR allocation_id > $4) ORDER BY allocation_id LIMIT $5",
            tenant_id,
            start_at,
            end_at,
            after,
            HELD_BATCH,
        )
        for row in rows:
            yield allocation_of(row)
        if len(rows) < HELD_BATCH:
            return
        after = rows[-1]["allocation_id"]


async def list_generations(unit: UnitOfWork, allocation_ids: Sequence[AllocationId]) -> dict[AllocationId, int]:
    """Allocation -> the generation that is known, of those that are known."""
    rows = await unit.fetch(
        "SELECT allocation_id, generation FROM allocation_view WHERE allocation_id = ANY($1::uuid[])",
        list(allocation_ids),
    )
    return {AllocationId.of(row["allocation_id"]): int(row["generation"]) for row in rows}


async def list_held_ids(unit: UnitOfWork) -> list[AllocationId]:
    """Everything held as far as billing knows."""
    rows = await unit.fetch("SELECT allocation_id FROM allocation_view WHERE released_at IS NULL")
    return [AllocationId.of(row["allocation_id"]) for row in rows]


def holding_of(allocation: AllocationView) -> Holding:
    """What an allocation holds, by SKU."""
    term = Term(allocation.term)
    amounts: dict[Sku, int] = {
        Sku(Resource.CPU, term=term): allocation.cpu_milli,
        Sku(Resource.MEMORY, term=term): allocation.memory_mib,
    }
    for share in allocation.devices:
        sku = Sku(Resource.DEVICE, share.flavor, term)
        amounts[sku] = amounts.get(sku, 0) + share.milli
    return Holding.of(amounts)


def timeline_of(allocation: AllocationView) -> Timeline:
    """The timeline of an allocation; its newest state holds every fact that earlier ones told."""
    timeline = find_timeline(_facts(allocation))
    assert timeline is not None, "an allocation is always bound"
    return timeline


def _facts(allocation: AllocationView) -> list[Fact]:
    key, generation = allocation.allocation_id, allocation.generation
    parties = Parties(
        tenant_id=allocation.tenant_id,
        project_id=allocation.project_id,
        job_id=allocation.job_id,
        task_id=allocation.task_id,
        virtual_pool_id=allocation.virtual_pool_id,
        pool_id=allocation.pool_id,
        node_id=allocation.node_id,
    )
    facts: list[Fact] = [Bound(key, generation, instant_of(allocation.bound_at), parties, holding_of(allocation))]
    if allocation.active_at is not None:
        facts.append(Activated(key, generation, instant_of(allocation.active_at)))
    if allocation.waived_from is not None:
        facts.append(ProviderStopRequested(key, generation, instant_of(allocation.waived_from)))
    if allocation.released_at is not None:
        reason = allocation.reason
        told = "unknown" if reason is None else reason.value
        facts.append(Released(key, generation, instant_of(allocation.released_at), told, reason in PROVIDER_ENDS))
    return facts
