"""Nodes that fail job after job: closed in the transaction that reports it, before they eat the queue.

The registry hears of it and keeps the node cordoned for its health until a person lifts that; from then on its word
alone counts.
"""

from datetime import datetime

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.events.scheduler import NodeQuarantined
from millpond_contracts.ids import NodeId
from millpond_kernel.observability import ALARMS, log
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.quarantine import QuarantineRules, Sign
from millpond_scheduler.store import fast_failures
from millpond_scheduler.store.changes import ChangeKind, note_changes
from millpond_scheduler.usecases.lives import Lives
from millpond_scheduler.usecases.records import microseconds_of


async def judge_nodes(unit: UnitOfWork, lives: Lives, rules: QuarantineRules, now: datetime) -> None:
    """Draws from the ends that were just written what they say of their nodes, whose counters are locked by that."""
    if not rules.failures:
        return
    ended = [life.record for life in lives.by_id.values() if life.released]
    signs = [
        (record, rules.read_end(record.reason, record.active_at, record.released_at))
        for record in ended
        if record.reason is not None and record.released_at is not None
    ]
    if works := {record.node for record, sign in signs if sign is Sign.WORKS}:
        await fast_failures.forgive(unit, works)
    for record, sign in signs:
        if sign is not Sign.FAILS or record.node in works or await fast_failures.is_closed(unit, record.node):
            continue
        in_a_row = await fast_failures.note_failure(unit, record.node, record.job, now)
        if in_a_row >= rules.failures:
            assert record.reason is not None
            await _quarantine(unit, record.node, in_a_row, record.reason, rules, now)


async def _quarantine(
    unit: UnitOfWork, node: NodeId, failures: int, reason: EndReason, rules: QuarantineRules, now: datetime
) -> None:
    if not rules.may_close(*await fast_failures.count_closed(unit, node)):
        log.warning("node_not_quarantined", node=str(node), failures=failures)
        return
    await fast_failures.close_node(unit, node, now)
    await fast_failures.forgive(unit, [node])
    await note_changes(unit, ChangeKind.NODE, [node])
    log.error("node_quarantined", node=str(node), failures=failures, reason=reason.value)
    ALARMS.labels("scheduler", "node_quarantined").inc()
    event = NodeQuarantined(
        node_id=node,
        failures=failures,
        within_seconds=rules.seconds,
        last_reason=reason,
        generation=microseconds_of(now),
    )
    unit.emit(event, now)
