"""Why each pending job waits, written where `explain` reads it, and which limits hold work back."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from millpond_contracts.bodies.tenants import QueuePolicy
from millpond_contracts.bodies.verdicts import AdmissionView, Unblock
from millpond_contracts.events.scheduler import AdmissionChanged
from millpond_contracts.ids import JobId, TaskId, TenantId, VirtualPoolId
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.explain import Explanation, explain
from millpond_scheduler.domain.plans import AdmissionLine, Rejection
from millpond_scheduler.domain.verdicts import Reason
from millpond_scheduler.store.verdicts import write_positions
from millpond_scheduler.usecases.records import EPOCH
from millpond_scheduler.usecases.shard import Shard, WaitingTask

# So many places of one queue are told where only the leader knows its order; whoever is behind them is near its end.
MAX_POSITIONS = 1000


@dataclass(slots=True)
class VerdictMemory:
    """What was written last, so that only differences are written."""

    written: dict[JobId, str] = field(default_factory=dict)
    blocked: dict[tuple[VirtualPoolId, str, str], AdmissionLine] = field(default_factory=dict)
    positions: dict[JobId, int] | None = None
    is_loaded: bool = False


async def write_verdicts(
    unit: UnitOfWork,
    lease: Lease,
    shard: Shard,
    rejections: Mapping[TaskId, Rejection],
    memory: VerdictMemory,
) -> None:
    """Writes the verdict of every job that waits, where it changed, and removes those of jobs that no longer do.

    What the last plan did not come to keeps what was told of it before.

    Raises:
        LeaseLost: another leader took over.
    """
    await check_epoch(unit, lease)
    now: datetime = await unit.fetchval("SELECT clock_timestamp()")
    if not memory.is_loaded:
        await _load_memory(unit, memory)
    found = {first.facts.id: (first, body) for first, body in _explain_all(shard, rejections)}
    changed = {job: item for job, item in found.items() if memory.written.get(job) != item[1]}
    await _write(unit, changed, now)
    waiting = {task.facts.id for task in shard.waiting.values()}
    written = {job: body for job, body in memory.written.items() if job in waiting}
    gone = list(memory.written.keys() - waiting)
    if gone:
        await unit.execute("DELETE FROM verdict WHERE job_id = ANY($1)", gone)
    unseen = {task.queued.virtual_pool for key, task in shard.waiting.items() if key not in rejections}
    if not unseen:
        await unit.execute(
            "INSERT INTO shard_state (shard, decided_at) VALUES (0, $1)"
            " ON CONFLICT (shard) DO UPDATE SET decided_at = excluded.decided_at",
            now,
        )
    kept = waiting - found.keys()
    positions = {job: place for job, place in (memory.positions or {}).items() if job in kept}
    positions |= _list_positions(shard, rejections)
    if positions != memory.positions:
        await write_positions(unit, positions)
        memory.positions = positions
    blocked = {key: line for key, line in memory.blocked.items() if key[0] in unseen}
    blocked |= _blocked_lines(shard, rejections)
    await _tell_admission(unit, memory.blocked, blocked, now)
    memory.written = written | {job: body for job, (_, body) in found.items()}
    memory.blocked = blocked


async def _load_memory(unit: UnitOfWork, memory: VerdictMemory) -> None:
    """What a former leader left: its verdicts are written anew, its blocked limits are compared with ours."""
    rows = await unit.fetch("SELECT job_id FROM verdict")
    memory.written = {JobId.of(row["job_id"]): "" for row in rows}
    for row in await unit.fetch("SELECT * FROM admission WHERE blocked"):
        key = (VirtualPoolId.of(row["virtual_pool_id"]), row["resource"], row["flavor"])
        memory.blocked[key] = AdmissionLine(
            row["resource"], row["flavor"] or None, row["hard"], 0, row["used"], 0, 0, row["missing"]
        )
    memory.is_loaded = True


def _explain_all(shard: Shard, rejections: Mapping[TaskId, Rejection]) -> Iterable[tuple[WaitingTask, str]]:
    """The first waiting task of each job with its verdict as JSON; equal requests of one queue share one verdict."""
    firsts: dict[JobId, WaitingTask] = {}
    for task in shard.waiting.values():
        first = firsts.get(task.facts.id)
        if first is None or task.queued.order_key < first.queued.order_key:
            firsts[task.facts.id] = task
    shared: dict[object, str] = {}
    for first in firsts.values():
        rejection = rejections.get(first.queued.id)
        if rejection is None:
            continue  # not looked at yet: the next cycle tells
        key = (first.queued.virtual_pool, first.queued.request, id(rejection))
        body = shared.get(key)
        if body is None:
            told = explain(
                shard.snapshot,
                first.queued,
                shard.virtual_pools,
                rejection=rejection,
                cache=shard.cache,
                growth=shard.growth,
            )
            body = shared[key] = json.dumps(verdict_body(told))
        yield first, body


def _list_positions(shard: Shard, rejections: Mapping[TaskId, Rejection]) -> dict[JobId, int]:
    """The places of jobs in queues whose order depends on what runs: as they were looked at, the first thousand."""
    positions: dict[JobId, int] = {}
    counts: dict[VirtualPoolId, int] = {}
    fair = {key for key, state in shard.virtual_pools.items() if state.policy is QueuePolicy.FAIR_SHARE}
    for task in rejections if fair else ():
        waiting = shard.waiting.get(task)
        if waiting is None or waiting.facts.id in positions or waiting.queued.virtual_pool not in fair:
            continue
        counts[waiting.queued.virtual_pool] = place = counts.get(waiting.queued.virtual_pool, 0) + 1
        if place <= MAX_POSITIONS:
            positions[waiting.facts.id] = place
    return positions


def verdict_body(told: Explanation) -> dict[str, Any]:
    """A verdict as it is stored: everything but the job's own position."""
    return {
        "dominant": told.dominant.value,
        "message": told.message,
        "counts": {reason.value: count for reason, count in told.counts.items()},
        "nodes": told.nodes,
        "admission": [AdmissionView.model_validate(asdict(line)).model_dump(mode="json") for line in told.admission],
        "largest_free_block": told.largest_free_devices,
        "largest_free_profile": told.largest_free_profile,
        "fragmentation_permille": told.fragmentation_permille,
        "gang": None if told.gang is None else asdict(told.gang),
        "estimated_start": None if told.starts_us is None else _instant(told.starts_us),
        "would_unblock": [
            Unblock(action=item.action, effect=item.effect).model_dump(mode="json") for item in told.would_unblock
        ],
    }


def _instant(microseconds: int) -> str:
    """Up to the next second: by then, not at it."""
    return (EPOCH + timedelta(seconds=-(-microseconds // 1_000_000))).isoformat()


async def _write(unit: UnitOfWork, changed: Mapping[JobId, tuple[WaitingTask, str]], now: datetime) -> None:
    if not changed:
        return
    bodies = {job: json.loads(body) for job, (_, body) in changed.items()}
    # A job that left the queue meanwhile is not written again.
    await unit.execute(
        "INSERT INTO verdict (job_id, tenant_id, dominant, message, body, as_of)"
        " SELECT x.j, x.t, x.d, x.m, x.b::jsonb, $6"
        " FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[]) AS x(j, t, d, m, b)"
        " JOIN job ON job.id = x.j AND job.ended_at IS NULL"
        " ON CONFLICT (job_id) DO UPDATE SET dominant = excluded.dominant, message = excluded.message,"
        " body = excluded.body, as_of = excluded.as_of",
        list(changed),
        [first.queued.request.tenant for first, _ in changed.values()],
        [body["dominant"] for body in bodies.values()],
        [body["message"] for body in bodies.values()],
        [body for _, body in changed.values()],
        now,
    )


def _blocked_lines(
    shard: Shard, rejections: Mapping[TaskId, Rejection]
) -> dict[tuple[VirtualPoolId, str, str], AdmissionLine]:
    """The virtual pools' own limits that hold work back now; of several tasks at one, what the first would need."""
    blocked: dict[tuple[VirtualPoolId, str, str], AdmissionLine] = {}
    for task, rejection in rejections.items():
        waiting = shard.waiting.get(task)
        if waiting is None or rejection.reason is not Reason.LIMIT_REACHED:
            continue
        for line in rejection.admission:
            if line.missing and line.used + line.requested > line.limit:
                blocked.setdefault((waiting.queued.virtual_pool, line.resource, line.flavor or ""), line)
    return blocked


async def _tell_admission(
    unit: UnitOfWork,
    before: Mapping[tuple[VirtualPoolId, str, str], AdmissionLine],
    after: Mapping[tuple[VirtualPoolId, str, str], AdmissionLine],
    now: datetime,
) -> None:
    """One event per crossing: a limit began or ceased to hold work back."""
    for key in sorted(before.keys() ^ after.keys()):
        virtual_pool, resource, flavor = key
        is_blocked = key in after
        line = after[key] if is_blocked else before[key]
        row = await unit.fetchrow(
            "INSERT INTO admission AS a (virtual_pool_id, resource, flavor, tenant_id, blocked, used, hard, missing,"
            " changed_at, generation)"
            " SELECT $1, $2, $3, v.tenant_id, $4, coalesce(u.used, $5), $6, $7, $8, 1 FROM virtual_pool_view v"
            " LEFT JOIN usage u ON u.virtual_pool_id = v.id AND u.resource = $2 AND u.flavor = $3 WHERE v.id = $1"
            " ON CONFLICT (virtual_pool_id, resource, flavor) DO UPDATE SET blocked = excluded.blocked,"
            " used = excluded.used, hard = excluded.hard, missing = excluded.missing, changed_at = excluded.changed_at,"
            " generation = a.generation + 1 WHERE a.blocked <> excluded.blocked RETURNING a.*",
            virtual_pool,
            resource,
            flavor,
            is_blocked,
            line.used,
            line.limit,
            line.missing if is_blocked else 0,
            now,
        )
        if row is not None:
            unit.emit(
                AdmissionChanged(
                    virtual_pool_id=virtual_pool,
                    tenant_id=TenantId.of(row["tenant_id"]),
                    resource=resource,
                    flavor=flavor or None,
                    blocked=is_blocked,
                    used=row["used"],
                    hard=row["hard"],
                    missing=row["missing"],
                    generation=row["generation"],
                ),
                now,
            )
