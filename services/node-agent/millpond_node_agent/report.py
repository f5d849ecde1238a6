"""Reports: facts about tasks, durable here until they are durable at the scheduler, sent in order and at once.

What a run's status means in the closed list of end reasons is decided here too.
"""

import asyncio

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.work import ReportBatch, ReportKind, TaskReport
from millpond_node_agent.backoff import Backoff
from millpond_node_agent.client import Away, Refused
from millpond_node_agent.control_plane import ControlPlane
from millpond_node_agent.observability import log
from millpond_node_agent.runtimes.boottime import boot_id, monotonic_ms
from millpond_node_agent.runtimes.protocol import StopReason, TaskStatus
from millpond_node_agent.spool import Spool, SpooledReport, SpoolFull

_BATCH = 200
_MESSAGE_CHARACTERS = 500
_DISK_RETRY_SECONDS = 1.0
_UNPROCESSABLE = (400, 413, 422)


class Reporter:
    """Takes reports from tasks, keeps them in the spool, and sends them."""

    def __init__(self, spool: Spool, plane: ControlPlane) -> None:
        self._spool = spool
        self._plane = plane
        self._new = asyncio.Event()
        self._moved = asyncio.Condition()
        self._acknowledged = 0
        self._doubtful = 0  # up to this number reports are sent one by one
        self._new.set()

    def unsent(self) -> list[TaskReport]:
        """Everything that waits, oldest first; for finding out at the start what an earlier agent knew."""
        return [_parse(spooled) for spooled in self._spool.pending(1 << 30)]

    async def report(
        self,
        kind: ReportKind,
        allocation_id: str,
        epoch: int,
        at_monotonic_ms: int,
        *,
        at_boot_id: str | None = None,
        exit_code: int | None = None,
        reason: EndReason | None = None,
        message: str | None = None,
    ) -> int:
        """Keep the report; it is on disk when this returns. A full disk or spool is waited for.

        Returns:
            Its sequence number, for `wait_until_acknowledged`.
        """
        report: dict[str, object] = {
            "allocation_id": allocation_id,
            "epoch": epoch,
            "kind": kind.value,
            "boot_id": at_boot_id or boot_id(),
            "at_monotonic_ms": at_monotonic_ms,
            "exit_code": exit_code,
            "reason": None if reason is None else reason.value,
            "message": None if message is None else message[:_MESSAGE_CHARACTERS],
        }
        said = False
        while True:
            try:
                sequence = await asyncio.to_thread(self._spool.append, report)
            except (SpoolFull, OSError) as error:
                if not said:
                    log.error("report_waits_for_disk", allocation_id=allocation_id, kind=kind.value, reason=str(error))
                said = True
                await asyncio.sleep(_DISK_RETRY_SECONDS)
            else:
                self._new.set()
                return sequence

    async def wait_until_acknowledged(self, sequence: int) -> None:
        """Returns when the scheduler has made this report durable, or decided against it."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._acknowledged >= sequence)

    async def wait_until_sent(self) -> None:
        """Returns when nothing waits."""
        async with self._moved:
            await self._moved.wait_for(lambda: not self._spool.pending(1))

    async def run(self) -> None:
        """Send for ever."""
        backoff = Backoff()
        while True:
            await self._new.wait()
            self._new.clear()
            try:
                while batch := self._next_batch():
                    await self._send(batch)
                    backoff.reset()
            except Away as away:
                self._new.set()
                await asyncio.sleep(max(backoff.next_seconds(), away.retry_after_seconds))

    def _next_batch(self) -> list[SpooledReport]:
        first = self._spool.pending(1)
        return first if first and first[0].sequence <= self._doubtful else self._spool.pending(_BATCH)

    async def _send(self, batch: list[SpooledReport]) -> None:
        reports = [_parse(spooled) for spooled in batch]
        try:
            answer = await self._plane.send_reports(
                ReportBatch(boot_id=boot_id(), sent_monotonic_ms=monotonic_ms(), reports=reports)
            )
        except Refused as refused:
            if refused.status not in _UNPROCESSABLE:
                raise Away(f"reports are not taken now: {refused}") from refused
            if len(batch) > 1:
                # One of them is at fault; the others must not wait for it.
                self._doubtful = batch[-1].sequence
                return
            log.error("report_dropped", sequence=batch[0].sequence, code=refused.code, detail=refused.detail)
        else:
            for rejected in answer.rejected:
                log.warning(
                    "report_rejected",
                    allocation_id=str(rejected.allocation_id),
                    sequence=rejected.sequence,
                    code=rejected.code,
                    detail=rejected.detail,
                )
        await asyncio.to_thread(self._spool.acknowledge, batch[-1].sequence)
        async with self._moved:
            self._acknowledged = batch[-1].sequence
            self._moved.notify_all()


def end_reason(status: TaskStatus, ordered: EndReason | None) -> EndReason:
    """Why the run ended.

    Args:
        status: of a run that exited.
        ordered: the reason that came with the order to stop it, if there was one.
    """
    if status.stop_reason is StopReason.TIME_LIMIT:
        return EndReason.TIME_LIMIT
    if status.stop_reason is StopReason.LEASE_EXPIRED:
        return EndReason.NODE_LOST
    if status.stop_reason is StopReason.REQUESTED and ordered is not None:
        return ordered
    if status.active_monotonic_ms is None:
        return EndReason.START_FAILED
    if status.oom_killed:
        return EndReason.OUT_OF_MEMORY
    if status.exit_code is None:
        return EndReason.SIGNAL  # also when nobody saw the end: something killed the supervisor
    return EndReason.COMPLETED if status.exit_code == 0 else EndReason.EXIT_CODE


def exit_number(status: TaskStatus) -> int | None:
    """The exit code, or minus the signal's number; None when nobody saw it."""
    return status.exit_code if status.signal is None else -status.signal


def _parse(spooled: SpooledReport) -> TaskReport:
    return TaskReport.model_validate({**spooled.report, "sequence": spooled.sequence})
