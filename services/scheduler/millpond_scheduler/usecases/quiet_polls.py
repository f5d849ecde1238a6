"""Polls of nodes where all is as it should be, which is most of them: the leases of many renewed in one transaction.

What any other poll may need (a new boot, a new session, a node that was silent, orders, something that the agent no
longer holds) is left to `work.take_poll`, one transaction for each.
"""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from millpond_contracts.bodies.work import PollRequest
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.store.node_leases import Exchange, lock_quiet_leases, node_lease, renew_quiet_leases
from millpond_scheduler.usecases.work import (
    DEFAULT_LEASE_SECONDS,
    NodeCall,
    TakenPoll,
    has_news_of_missing,
    is_at_peace,
)

# Read after the leases were locked, with the clock in the same round trip.
_LIVE = """
SELECT clock.now, a.node_id, a.id, a.epoch, a.state, a.last_sequence, a.missing_since
FROM (SELECT clock_timestamp() AS now) AS clock
LEFT JOIN allocation a ON a.node_id = ANY($1::uuid[]) AND a.state <> 'released'
"""


async def take_quiet_polls(unit: UnitOfWork, polls: Sequence[tuple[NodeCall, PollRequest]]) -> list[TakenPoll | None]:
    """Renews the leases of those polls that need nothing else, and tells so; None for the others."""
    # Of two polls of one node the first stands here; the second is taken alone, after it.
    first = {call.node: number for number, (call, _) in reversed(list(enumerate(polls)))}
    calls = [polls[number] for number in first.values()]
    rows = await lock_quiet_leases(
        unit, [(call.node, call.pool, call.incarnation, poll.boot_id) for call, poll in calls]
    )
    answers: list[TakenPoll | None] = [None] * len(polls)
    if not rows:
        return answers
    live, now = await _read_live(unit, [row["node_id"] for row in rows])
    renewals = []
    for row in rows:
        lease = node_lease(row)
        call, poll = polls[first[lease.node]]
        held = {item.allocation_id: item.epoch for item in poll.held}
        if has_news_of_missing(live[lease.node], held) or not is_at_peace(live[lease.node], held):
            continue
        seconds = float(DEFAULT_LEASE_SECONDS if row["lease_seconds"] is None else row["lease_seconds"])
        exchange = Exchange(poll.boot_id, now, poll.sent_monotonic_ms).after(lease.exchanges[0])
        renewals.append((call.node, call.incarnation, exchange, seconds))
        answers[first[lease.node]] = TakenPoll(now, seconds, is_at_peace=True)
    if renewals:
        await renew_quiet_leases(unit, now, renewals)
    return answers


async def _read_live(
    unit: UnitOfWork, nodes: Sequence[UUID]
) -> tuple[defaultdict[UUID, list[asyncpg.Record]], datetime]:
    """Node -> its live allocations; and the instant at which they were read."""
    rows = await unit.fetch(_LIVE, list(nodes))
    live: defaultdict[UUID, list[asyncpg.Record]] = defaultdict(list)
    for row in rows:
        if row["id"] is not None:
            live[row["node_id"]].append(row)
    return live, rows[0]["now"]
