"""What agents report: facts about allocations, applied once each whatever is sent twice, late or out of order.

Every fact is idempotent by itself (a state is entered once), so a batch that is repeated changes nothing. What many
nodes report at nearly the same time is written together (decision 161).
"""

from collections.abc import Sequence
from datetime import datetime

from millpond_contracts.bodies.allocations import AllocationState, EndReason
from millpond_contracts.bodies.work import RejectedReport, ReportAnswer, ReportBatch, ReportKind, TaskReport
from millpond_contracts.errors import ErrorCode
from millpond_kernel.problem import ProblemError
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.domain.quarantine import QuarantineRules
from millpond_scheduler.store.node_leases import Exchange, NodeLease, read_sessions
from millpond_scheduler.usecases.lives import Life, Lives, lock_lives, write_lives
from millpond_scheduler.usecases.quarantine import judge_nodes
from millpond_scheduler.usecases.work import NodeCall, check_incarnation


async def take_reports(
    unit: UnitOfWork, told: Sequence[tuple[NodeCall, ReportBatch]], quarantine: QuarantineRules | None = None
) -> list[ReportAnswer | ProblemError]:
    """Applies batches of reports in their order; the answer to each.

    What cannot belong to a batch's node or epoch is named in its `rejected`, the rest is durable. The answer to an
    agent whose node has a newer session is the problem 409 `registry.node.superseded`.
    """
    now, sessions = await read_sessions(unit, list({call.node for call, _ in told}))
    reports = [report for _, batch in told for report in batch.reports]
    lives = await lock_lives(
        unit, [report.allocation_id for report in reports], with_gangs=any(map(_may_break_gang, reports))
    )
    answers: list[ReportAnswer | ProblemError] = []
    for call, batch in told:
        newest, lease = sessions[call.node]
        try:
            check_incarnation(call, newest)
        except ProblemError as problem:
            answers.append(problem)
            continue
        answers.append(_apply_all(lives, call, batch, lease, now))
    await write_lives(unit, lives, now)
    await judge_nodes(unit, lives, quarantine or QuarantineRules(), now)
    return answers


def _apply_all(
    lives: Lives, call: NodeCall, batch: ReportBatch, lease: NodeLease | None, now: datetime
) -> ReportAnswer:
    # The exchanges by which the machine's clock is read; this batch's own where the boot has had none.
    own = Exchange(batch.boot_id, now, batch.sent_monotonic_ms)
    exchanges = (own,) if lease is None else (*lease.exchanges, own)
    rejected = []
    for report in batch.reports:
        life = lives.by_id.get(report.allocation_id)
        problem = _find_problem(life, call, report)
        if problem is not None or life is None:
            code, detail = problem or (ErrorCode.ALLOCATION_NOT_FOUND, "")
            rejected.append(
                RejectedReport(
                    allocation_id=report.allocation_id, sequence=report.sequence, code=code.value, detail=detail
                )
            )
            continue
        _apply(life, report, _instant_of(report, life, exchanges, now))
    return ReportAnswer(server_at=now, accepted=len(batch.reports) - len(rejected), rejected=rejected)


def _may_break_gang(report: TaskReport) -> bool:
    is_end = report.kind in (ReportKind.RELEASED, ReportKind.REFUSED, ReportKind.STOPPING)
    return is_end and (report.exit_code != 0 or report.reason is not None)


def _find_problem(life: Life | None, call: NodeCall, report: TaskReport) -> tuple[ErrorCode, str] | None:
    if life is None or life.record.node != call.node:
        return ErrorCode.ALLOCATION_NOT_FOUND, f"This node holds no allocation {report.allocation_id}."
    record = life.record
    if record.epoch != report.epoch:
        return (
            ErrorCode.ALLOCATION_EPOCH_STALE,
            f"The report names epoch {report.epoch}, the allocation has epoch {record.epoch}.",
        )
    given_up = record.reason in (EndReason.NODE_LOST, EndReason.NODE_RESTARTED)
    if not life.is_live and given_up and report.sequence > record.last_sequence:
        return ErrorCode.ALLOCATION_EPOCH_STALE, f"The allocation was given up before ({record.reason})."
    return None


def _instant_of(report: TaskReport, life: Life, exchanges: Sequence[Exchange], now: datetime) -> datetime:
    """The server's time of a report: by the last exchange of its boot, from the allocation's last instant to now."""
    at = next((e.server_time(report.at_monotonic_ms) for e in exchanges if e.boot_id == report.boot_id), now)
    record = life.record
    return min(max(at, record.active_at or record.bound_at), now)


def _apply(life: Life, report: TaskReport, at: datetime) -> None:
    record = life.record
    if report.sequence > record.last_sequence:
        record.last_sequence = report.sequence
        life.changed = True
    match report.kind:
        case ReportKind.STARTING:
            life.start(at)
        case ReportKind.ACTIVE:
            life.activate(at)
        case ReportKind.STOPPING:
            life.leave(at, report.reason)
        case ReportKind.REFUSED:
            life.release(report.reason or EndReason.REFUSED, at, report.exit_code, report.message)
        case ReportKind.RELEASED:
            life.release(_end_of(life, report, at), at, report.exit_code, report.message)


def _end_of(life: Life, report: TaskReport, at: datetime) -> EndReason:
    """The end that the agent names, else what its exit code and our stop request say, if it had come before the end."""
    if report.reason is EndReason.PREEMPTED and life.record.stop_reason is EndReason.MOVED:
        return EndReason.MOVED  # as agents are told
    if report.reason is not None:
        return report.reason
    asked_at = life.record.stop_requested_at
    if life.record.state is AllocationState.RELEASING and asked_at is not None and asked_at <= at:
        assert life.record.stop_reason is not None, "who asks for a stop says why"
        return life.record.stop_reason
    if report.exit_code == 0:
        return EndReason.COMPLETED
    return EndReason.SIGNAL if (report.exit_code or 0) < 0 else EndReason.EXIT_CODE
