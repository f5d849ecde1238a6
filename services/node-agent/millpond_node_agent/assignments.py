"""Everything this machine holds: takes orders from polls, adopts what an earlier agent left, answers repeated orders.

Polls repeat an order until a report answers it, and an answer may be older than a report that crossed it. So what is
over stays known for a while, and an order about it starts nothing.
"""

import asyncio
from collections import OrderedDict

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.work import Assignment, HeldAllocation, PollAnswer, ReportKind, StopOrder
from millpond_contracts.ids import AllocationId
from millpond_node_agent.following import Follower, Tools, assigned_run
from millpond_node_agent.observability import log
from millpond_node_agent.pausing import cancel_all
from millpond_node_agent.runtimes.boottime import monotonic_ms
from millpond_node_agent.runtimes.protocol import TaskState

_REMEMBERED = 10_000
_ANSWER_AGAIN_MS = 5_000
_GRACE_SHARE = 0.7  # the rest of the time is for killing, emptying and telling

_Grant = tuple[AllocationId, int]


class Assignments:
    """The tasks of this machine by allocation."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._followers: dict[AllocationId, Follower] = {}
        self._running: set[asyncio.Task[None]] = set()
        # What is over here, with the instant at which that was last reported.
        self._over: OrderedDict[_Grant, int] = OrderedDict()

    @property
    def held(self) -> list[HeldAllocation]:
        """All of it, for the next poll."""
        return [follower.held for follower in self._followers.values() if follower.is_held]

    async def adopt(self) -> None:
        """Follow what an earlier agent left; run once, before the first poll."""
        for report in self._tools.reporter.unsent():
            if report.kind in (ReportKind.RELEASED, ReportKind.REFUSED):
                self._remember(report.allocation_id, report.epoch)
        for run in await self._tools.runtime.list_runs():
            if run.status.state is TaskState.PREPARED or not _is_allocation(run.allocation_id):
                # Never launched, so never reported: it will be assigned again. Or the rest of a check of our own.
                await self._tools.runtime.stop(run.allocation_id, 0)
                await self._tools.runtime.remove(run.allocation_id)
            else:
                log.info("task_adopted", allocation_id=run.allocation_id, state=run.status.state.value)
                self._follow(Follower(self._tools, run))
        await self._tools.partitions.sweep(str(each) for each in self._followers)

    async def take(self, answer: PollAnswer) -> list[Follower]:
        """Carry out the orders of a poll; returns what was newly started."""
        stopped = {stop.allocation_id for stop in answer.stops}
        for stop in answer.stops:
            await self._take_stop(stop)
        return [
            self._follow(Follower(self._tools, assigned_run(assignment), assignment))
            for assignment in answer.assignments
            if assignment.allocation_id not in stopped and self._is_new(assignment)
        ]

    def fence(self, kill_ms: int) -> None:
        """The lease ran out without a renewal: everything must be dead at `kill_ms`."""
        for follower in self._followers.values():
            follower.fence(kill_ms)

    async def stop_all(self, reason: EndReason, timeout_seconds: float) -> None:
        """Stop every task by its own grace and wait until all are over, told and removed, or the time is up."""
        for follower in self._followers.values():
            follower.stop_by_own_grace(reason, timeout_seconds * _GRACE_SHARE)
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_seconds)

    async def close(self) -> None:
        """Stop following; tasks run on and are adopted by the next agent."""
        await cancel_all(set(self._running))

    def _is_new(self, assignment: Assignment) -> bool:
        known = self._followers.get(assignment.allocation_id)
        if known is not None:
            known.raise_epoch(assignment.epoch)
        return known is None and (assignment.allocation_id, assignment.epoch) not in self._over

    async def _take_stop(self, stop: StopOrder) -> None:
        known = self._followers.get(stop.allocation_id)
        if known is not None:
            if stop.epoch >= known.epoch:
                known.raise_epoch(stop.epoch)
                known.order_stop(stop.grace_seconds, stop.reason)
            return
        # Nothing of it is here: it never came, or is over. Say so, unless that was said just now.
        last = self._over.get((stop.allocation_id, stop.epoch))
        if last is None or monotonic_ms() - last > _ANSWER_AGAIN_MS:
            now = monotonic_ms()
            await self._tools.reporter.report(
                ReportKind.RELEASED, str(stop.allocation_id), stop.epoch, now, reason=stop.reason
            )
            self._remember(stop.allocation_id, stop.epoch)

    def _follow(self, follower: Follower) -> Follower:
        self._followers[follower.allocation_id] = follower
        task = asyncio.create_task(self._see_off(follower), name=f"follow-{follower.allocation_id}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return follower

    async def _see_off(self, follower: Follower) -> None:
        try:
            await follower.follow()
            if follower.told.is_set():
                self._remember(follower.allocation_id, follower.epoch)
        finally:
            del self._followers[follower.allocation_id]

    def _remember(self, allocation_id: AllocationId, epoch: int) -> None:
        self._over[allocation_id, epoch] = monotonic_ms()
        while len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)


def _is_allocation(name: str) -> bool:
    try:
        AllocationId.parse(name)
    except ValueError:
        return False
    return True
