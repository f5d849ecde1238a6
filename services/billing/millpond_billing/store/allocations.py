"""Allocations as the scheduler told them last, and the timelines they make."""

from collections.abc import AsyncIterator
from datetime import datetime

import asyncpg

from millpond_billing.domain.facts import Activated, Bound, Fact, Holding, Parties, ProviderStopRequested, Released
from millpond_billing.domain.timeline import Timeline, find_timeline, instant_of
from millpond_contracts.bodies.jobs import PROVIDER_ENDS, AllocationView
from millpond_contracts.ids import TenantId
from millpond_contracts.prices import Resource, Sku, Term
from millpond_kernel.uow import UnitOfWork


async def save_allocation(unit: UnitOfWork, allocation: AllocationView) -> bool:
    """Keeps the newest state of an allocation; False when a newer one is known."""
    changed = await unit.execute(
        "INSERT INTO allocation_view AS v"
        " (allocation_id, tenant_id, body, bound_at, active_at, released_at, generation)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (allocation_id) DO UPDATE SET body = excluded.body,"
        " active_at = excluded.active_at, released_at = excluded.released_at, generation = excluded.generation"
        " WHERE excluded.generation > v.generation",
        allocation.allocation_id,
        allocation.tenant_id,
        allocation.model_dump(mode="json"),
        allocation.bound_at,
        allocation.active_at,
        allocation.released_at,
        allocation.generation,
    )
    return changed == 1


def allocation_of(row: asyncpg.Record) -> AllocationView:
    """The allocation of a row."""
    return AllocationView.model_validate(row["body"])


async def list_open_allocations(unit: UnitOfWork, tenant_id: TenantId | None) -> list[AllocationView]:
    """Allocations that are active and not released, by id."""
    rows = await unit.fetch(
        "SELECT body FROM allocation_view WHERE released_at IS NULL AND active_at IS NOT NULL"
        " AND ($1::uuid IS NULL OR tenant_id = $1) ORDER BY allocation_id",
        tenant_id,
    )
    return [allocation_of(row) for row in rows]


async def list_live_generations(unit: UnitOfWork) -> dict[str, int]:
    """Allocation id -> generation, of everything held as far as billing knows."""
    rows = await unit.fetch(
        "SELECT body->>'allocation_id' AS id, generation FROM allocation_view WHERE released_at IS NULL"
    )
    return {row["id"]: row["generation"] for row in rows}


async def each_allocation(unit: UnitOfWork, node_id: object, until: object) -> AsyncIterator[AllocationView]:
    """Allocations of a node that were bound before `until`."""
    rows = await unit.fetch(
        "SELECT body FROM allocation_view WHERE body->>'node_id' = $1 AND bound_at < $2", str(node_id), until
    )
    for row in rows:
        yield allocation_of(row)


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
        fault = reason in PROVIDER_ENDS
        facts.append(
            Released(key, generation, instant_of(allocation.released_at), reason.value if reason else "unknown", fault)
        )
    return facts


async def list_active_between(
    unit: UnitOfWork, tenant_id: TenantId, start_at: datetime, end_at: datetime
) -> list[AllocationView]:
    """Allocations of a tenant that were active at some time in `[start_at, end_at)`."""
    rows = await unit.fetch(
        "SELECT body FROM allocation_view WHERE tenant_id = $1 AND active_at < $3"
        " AND (released_at IS NULL OR released_at > $2) ORDER BY allocation_id",
        tenant_id,
        start_at,
        end_at,
    )
    return [allocation_of(row) for row in rows]
