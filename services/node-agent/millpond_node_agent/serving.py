"""One agent at work for one machine, real or simulated: the loops towards the registry and the scheduler.

Each loop is one line in `serve`; the first that ends, or fails for good, ends the agent.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.work import PollRequest
from millpond_node_agent.assignments import Assignments
from millpond_node_agent.backoff import Backoff
from millpond_node_agent.client import Away, HttpClient, Refused
from millpond_node_agent.control_plane import ControlPlane
from millpond_node_agent.following import Follower, Tools
from millpond_node_agent.heartbeat import HardwareSource, Pulse
from millpond_node_agent.identity import Membership, NodeKey
from millpond_node_agent.lease import Lease
from millpond_node_agent.observability import log
from millpond_node_agent.partitions import NoPartitions, PartitionMaker, Partitions
from millpond_node_agent.pausing import cancel_all, wait_within
from millpond_node_agent.report import Reporter
from millpond_node_agent.runtimes.boottime import boot_id, monotonic_ms
from millpond_node_agent.runtimes.protocol import Runtime
from millpond_node_agent.settings import AgentSettings
from millpond_node_agent.spool import Spool
from millpond_node_agent.stops import StopReasons

_START_SLOTS = 4
_STOP_ALL_SECONDS = 30.0
_FAREWELL_SECONDS = 2.0
_TOLD_SECONDS = 0.5
# An answer that brings nothing new at once must not become a tight loop.
_QUICK_MS = 100
_QUICK_PAUSE_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Machine:
    """What an agent speaks for.

    `check` says what was verified before the machine takes work, by the name of the check, or raises `CheckFailed`.
    `is_durable`: what is told survives a power cut, not only the end of the agent. `maker` divides its devices.
    """

    runtime: Runtime
    hardware: HardwareSource
    check: Callable[[], Awaitable[dict[str, str]]]
    is_durable: bool = True
    maker: PartitionMaker = field(default_factory=NoPartitions)


@dataclass(slots=True)
class Ending:
    """Asks an agent to end: tasks run on, or with `stop_tasks` are stopped first."""

    asked: asyncio.Event
    stop_tasks: bool = False


async def serve(
    settings: AgentSettings, machine: Machine, membership: Membership, key: NodeKey, http: HttpClient, ending: Ending
) -> None:
    """Work as this node until `ending` asks for the end.

    Raises:
        Superseded, NotAMember: the registry knows a newer agent of this node, or not this node any more.
    """
    plane = ControlPlane(http, membership, key)
    spool = Spool(settings.state_dir / "spool", is_durable=machine.is_durable)
    reporter = Reporter(spool, plane)
    lease = Lease(machine.runtime)
    assignments = Assignments(
        Tools(
            runtime=machine.runtime,
            partitions=Partitions(settings.state_dir / "partitions", machine.maker),
            plane=plane,
            spool=spool,
            reporter=reporter,
            stops=StopReasons(settings.state_dir / "stops"),
            lease=lease,
            inventory=lambda: machine.hardware.inventory,
            start_slots=asyncio.Semaphore(_START_SLOTS),
            log_push_seconds=settings.log_push_seconds,
        )
    )
    pulse = Pulse(settings, plane, machine.hardware, machine.check, lease)
    plane.on_session = pulse.begin_session
    work = WorkLoop(plane, reporter, lease, assignments, settings.poll_seconds)
    try:
        await assignments.adopt()
        reporting = asyncio.create_task(reporter.run(), name="reports")
        intake = [work.poll(), work.fence(), pulse.watch_hardware(), pulse.report_ready()]
        async with _Loops([*intake, pulse.sample(), pulse.beat()], {reporting}) as loops:
            await loops.wait(ending.asked)
            log.info("stopping", stop_tasks=ending.stop_tasks, tasks=len(assignments.held))
            await loops.cancel()
            if ending.stop_tasks:
                await assignments.stop_all(EndReason.DRAINED, _STOP_ALL_SECONDS)
            await wait_within(reporter.wait_until_sent(), _FAREWELL_SECONDS)
    finally:
        await assignments.close()
        spool.close()


class WorkLoop:
    """The loops towards the scheduler."""

    def __init__(
        self, plane: ControlPlane, reporter: Reporter, lease: Lease, assignments: Assignments, poll_seconds: float
    ) -> None:
        self._plane = plane
        self._reporter = reporter
        self._lease = lease
        self._assignments = assignments
        self._longest_wait = poll_seconds
        self._wait_seconds = 0.0  # the first poll only asks for the lease and what waits already

    async def poll(self) -> None:
        """Ask for orders, and carry them out, one poll after the other."""
        backoff = Backoff()
        while True:
            sent_ms = monotonic_ms()
            try:
                started = await self._poll_once(sent_ms)
            except Away as away:
                await asyncio.sleep(max(backoff.next_seconds(), away.retry_after_seconds))
                continue
            except Refused as refused:
                log.warning("poll_refused", code=refused.code, detail=refused.detail)
                await asyncio.sleep(max(1.0, backoff.next_seconds()))
                continue
            backoff.reset()
            if started:
                # What is told is not given again.
                await wait_within(_all_told(started), _TOLD_SECONDS)
                await wait_within(self._reporter.wait_until_sent(), _TOLD_SECONDS)
            elif monotonic_ms() - sent_ms < _QUICK_MS:
                await asyncio.sleep(_QUICK_PAUSE_SECONDS)

    async def fence(self) -> None:
        """Stop everything each time that the lease ran out."""
        while True:
            kill_ms = await self._lease.wait_for_fence()
            log.error("lease_ran_out", tasks=len(self._assignments.held))
            self._assignments.fence(kill_ms)

    async def _poll_once(self, sent_ms: int) -> list[Follower]:
        request = PollRequest(
            boot_id=boot_id(),
            sent_monotonic_ms=sent_ms,
            held=self._assignments.held,
            wait_seconds=self._wait_seconds,
        )
        answer = await self._plane.poll_work(request)
        await self._lease.renew(sent_ms, answer.lease_seconds)
        # Two polls must fit between a sending and the fence.
        self._wait_seconds = min(self._longest_wait, answer.lease_seconds / 4)
        return await self._assignments.take(answer)


class _Loops:
    """Runs loops side by side: the first failure of any of them is the failure of all."""

    def __init__(self, loops: list[Coroutine[None, None, None]], kept: set[asyncio.Task[None]]) -> None:
        self._tasks = {asyncio.create_task(loop) for loop in loops}
        self._kept = kept

    async def __aenter__(self) -> "_Loops":
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_all(self._tasks | self._kept)

    async def wait(self, stop: asyncio.Event) -> None:
        """Returns when `stop` is set; raises what a loop raised."""
        stopping = asyncio.create_task(stop.wait())
        try:
            done, _ = await asyncio.wait([*self._tasks, *self._kept, stopping], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            stopping.cancel()

    async def cancel(self) -> None:
        """End the loops, not those that are kept."""
        await cancel_all(self._tasks)


async def _all_told(followers: list[Follower]) -> None:
    for follower in followers:
        await follower.told.wait()
