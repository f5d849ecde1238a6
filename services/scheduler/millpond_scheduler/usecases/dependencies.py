"""Lets groups of a job start, or ends them, once the groups that they wait for have ended; says what they wait for."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.jobs import GroupView
from millpond_contracts.bodies.verdicts import DependencyView
from millpond_contracts.ids import JobId
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.dependencies import Advance, GroupOrder, advance, is_blocked, list_awaited
from millpond_scheduler.store import jobs
from millpond_scheduler.store.changes import ChangeKind, note_changes

Groups = dict[JobId, list[GroupView]]


async def advance_jobs(unit: UnitOfWork, groups: Groups, now: datetime) -> Groups:
    """Decides over the waiting groups of locked jobs; returns the groups as they are then.

    Whoever becomes ready queues from now on: what it waited for the job's own groups is no waiting for a node.
    """
    waiting = [job for job, found in groups.items() if any(is_blocked(group.by_state) for group in found)]
    if not waiting:
        return groups
    orders = await _read_orders(unit, waiting)
    changed = []
    for job in waiting:
        found = advance(orders[job], {group.name: group.by_state for group in groups[job]})
        if found.ready or found.ended:
            changed.append(job)
            await _write(unit, job, found, now)
    return groups | await jobs.count_tasks(unit, changed)


async def list_dependencies(unit: UnitOfWork, job: JobId) -> list[DependencyView]:
    """What the groups of a job wait for that have not succeeded yet, each with how far it is."""
    groups = {group.name: group for group in (await jobs.count_tasks(unit, [job]))[job]}
    if not any(is_blocked(group.by_state) for group in groups.values()):
        return []
    orders = (await _read_orders(unit, [job]))[job]
    return [
        DependencyView(
            group=order.name,
            waits_for=name,
            tasks=groups[name].count,
            succeeded=groups[name].by_state.get("succeeded", 0),
        )
        for order in orders
        if is_blocked(groups[order.name].by_state)
        for name in list_awaited(order, orders)
        if groups[name].by_state.get("succeeded", 0) < groups[name].count
    ]


def describe(dependencies: Sequence[DependencyView]) -> str:
    """In a sentence what the groups of a job wait for."""
    named: dict[str, list[str]] = {}
    for each in dependencies:
        named.setdefault(each.group, []).append(f"{each.waits_for} ({each.succeeded} of {each.tasks} tasks succeeded)")
    return "; ".join(f"group {group} waits for {' and '.join(awaited)}" for group, awaited in named.items())


async def _read_orders(unit: UnitOfWork, wanted: Sequence[JobId]) -> Mapping[JobId, list[GroupOrder]]:
    rows = await unit.fetch(
        "SELECT id, (SELECT jsonb_agg(jsonb_build_object('name', g->'name', 'after', g->'after', 'gang', g->'gang'))"
        " FROM jsonb_array_elements(spec->'groups') AS g)::text AS groups FROM job WHERE id = ANY($1)",
        wanted,
    )
    return {
        JobId.of(row["id"]): [
            GroupOrder(group["name"], tuple(group["after"] or ()), bool(group["gang"]))
            for group in json.loads(row["groups"])
        ]
        for row in rows
    }


async def _write(unit: UnitOfWork, job: JobId, found: Advance, now: datetime) -> None:
    ready = await unit.fetch(
        "UPDATE task SET state = 'pending', state_since = $3, queued_at = $3"
        " WHERE job_id = $1 AND group_name = ANY($2) AND state = 'blocked' RETURNING id",
        job,
        found.ready,
        now,
    )
    await note_changes(unit, ChangeKind.TASK, [row["id"] for row in ready])
    await unit.execute(
        "UPDATE task t SET state = 'failed', state_since = $4, reason = $5, message = x.m"
        " FROM unnest($2::text[], $3::text[]) AS x(g, m)"
        " WHERE t.job_id = $1 AND t.group_name = x.g AND t.state = 'blocked'",
        job,
        list(found.ended),
        [f"group {culprit}, which it waited for, did not succeed" for culprit in found.ended.values()],
        now,
        EndReason.DEPENDENCY_FAILED.value,
    )
