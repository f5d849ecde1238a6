"""The agent of one machine: joins, keeps a session, tells the registry, works for the scheduler, until it is stopped.

Each loop is one line in `_serve`; the first that ends, or fails for good, ends the agent.
"""

import asyncio
from collections.abc import Coroutine

from millpond_contracts.bodies.jobs import EndReason
from millpond_contracts.bodies.nodes import JoinRequest
from millpond_contracts.bodies.work import PollRequest
from millpond_node_agent.assignments import Assignments
from millpond_node_agent.backoff import Backoff
from millpond_node_agent.client import Away, HttpClient, Refused, Superseded, check_url
from millpond_node_agent.control_plane import ControlPlane, NotAMember, join
from millpond_node_agent.following import Follower, Tools
from millpond_node_agent.heartbeat import Hardware, Pulse, wanted_name
from millpond_node_agent.identity import Membership, NodeKey, StateLock, read_membership, write_membership
from millpond_node_agent.lease import Lease
from millpond_node_agent.observability import log
from millpond_node_agent.pausing import cancel_all, wait_within
from millpond_node_agent.report import Reporter
from millpond_node_agent.runtimes.boottime import boot_id, monotonic_ms
from millpond_node_agent.runtimes.process import ProcessRuntime, ProcessSettings
from millpond_node_agent.settings import AgentSettings, ExitCode
from millpond_node_agent.spool import Spool
from millpond_node_agent.stops import StopReasons

_START_SLOTS = 4
_STOP_ALL_SECONDS = 30.0
_FAREWELL_SECONDS = 2.0
_TOLD_SECONDS = 0.5
# An answer that brings nothing new at once must not become a tight loop.
_QUICK_MS = 100
_QUICK_PAUSE_SECONDS = 0.3


class NotJoined(Exception):
    """This state folder is no node yet, and there is no token to join with."""


class Agent:
    """One machine's agent on one state folder."""

    def __init__(self, settings: AgentSettings) -> None:
        """Take the folder, and set up what survives from earlier agents.

        Raises:
            FolderInUse: another agent runs on the folder.
            UnreachableWorkFolder: tasks could not reach their folders.
        """
        self._settings = settings
        self._lock = StateLock(settings.state_dir)
        self._key = NodeKey.load(settings.state_dir)
        self._runtime = ProcessRuntime(
            ProcessSettings(
                state_dir=settings.state_dir / "runtime",
                work_dir=settings.work_dir,
                minimum_free_mib=settings.minimum_free_mib,
            )
        )
        for warning in self._runtime.report().warnings:
            log.warning("runtime_limited", reason=warning)
        self._hardware = Hardware(settings, self._runtime)

    async def join(self) -> Membership:
        """This machine as a node: the one it already is, or a new one by the token.

        Raises:
            NotJoined: there is neither.
            Refused: the registry does not let it in.
            BadAddress: the URL cannot be used.
        """
        known = read_membership(self._settings.state_dir)
        if known is None:
            return await self._join_anew()
        if self._settings.url is not None and check_url(self._settings.url) != known.url:
            known = Membership(known.node_id, known.name, check_url(self._settings.url))
            write_membership(self._settings.state_dir, known)
        return known

    async def run(self, stop: asyncio.Event) -> ExitCode:
        """Work until `stop` is set or nothing can be done any more.

        Raises:
            NotJoined, Refused, BadAddress: as `join`.
        """
        membership = await _unless(stop, self.join())
        if membership is None:
            return ExitCode.OK
        try:
            return await self._serve(membership, stop)
        except Superseded as superseded:
            # Tasks are left to the lease: the newer agent may be this machine's own, and has adopted them.
            log.error("superseded", reason=str(superseded), node_id=str(membership.node_id))
            return ExitCode.SUPERSEDED
        except NotAMember as unknown:
            if self._settings.token is None:
                log.error("node_unknown", reason=str(unknown), remedy="join again with a new token")
                return ExitCode.REFUSED
        log.warning("node_unknown_joining_again", node_id=str(membership.node_id))
        rejoined = await _unless(stop, self._join_anew())
        return ExitCode.OK if rejoined is None else await self._serve(rejoined, stop)

    async def close(self) -> None:
        """Give everything back; tasks run on."""
        await self._hardware.close()
        self._lock.release()

    async def _join_anew(self) -> Membership:
        settings = self._settings
        if settings.url is None or settings.token is None:
            raise NotJoined(f"{settings.state_dir} is no node yet: give --url and a join token, or use `join` first")
        await self._hardware.probe()
        inventory = self._hardware.inventory
        assert inventory is not None
        request = JoinRequest(
            token=settings.token,
            public_key=self._key.public_text,
            name=settings.name or wanted_name(inventory.hostname),
            inventory=inventory,
            labels=dict(settings.labels),
        )
        http, backoff = HttpClient(settings.url), Backoff()
        try:
            while True:
                try:
                    membership = await join(http, request, check_url(settings.url))
                    break
                except Away as away:
                    await asyncio.sleep(max(backoff.next_seconds(), away.retry_after_seconds))
        finally:
            await http.close()
        write_membership(settings.state_dir, membership)
        log.info("joined", node_id=str(membership.node_id), name=membership.name, url=membership.url)
        return membership

    async def _serve(self, membership: Membership, stop: asyncio.Event) -> ExitCode:
        http = HttpClient(membership.url)
        plane = ControlPlane(http, membership, self._key)
        spool = Spool(self._settings.state_dir / "spool")
        reporter = Reporter(spool, plane)
        lease = Lease(self._runtime)
        assignments = Assignments(
            Tools(
                runtime=self._runtime,
                plane=plane,
                spool=spool,
                reporter=reporter,
                stops=StopReasons(self._settings.state_dir / "stops"),
                lease=lease,
                start_slots=asyncio.Semaphore(_START_SLOTS),
                log_push_seconds=self._settings.log_push_seconds,
            )
        )
        pulse = Pulse(self._settings, plane, self._hardware, self._runtime, lease)
        plane.on_session = pulse.begin_session
        work = WorkLoop(plane, reporter, lease, assignments, self._settings.poll_seconds)
        try:
            await assignments.adopt()
            reporting = asyncio.create_task(reporter.run(), name="reports")
            intake = [work.poll(), work.fence(), pulse.watch_hardware(), pulse.report_ready()]
            async with _Loops([*intake, pulse.sample(), pulse.beat()], {reporting}) as loops:
                await loops.wait(stop)
                log.info("stopping", stop_tasks=self._settings.stop_tasks, tasks=len(assignments.held))
                await loops.cancel()
                if self._settings.stop_tasks:
                    await assignments.stop_all(EndReason.DRAINED, _STOP_ALL_SECONDS)
                await wait_within(reporter.wait_until_sent(), _FAREWELL_SECONDS)
        finally:
            await assignments.close()
            await http.close()
            spool.close()
        return ExitCode.OK


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


async def _unless(stop: asyncio.Event, joining: Coroutine[None, None, Membership]) -> Membership | None:
    """The result, or None when `stop` is set first."""
    task, stopping = asyncio.create_task(joining), asyncio.create_task(stop.wait())
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None


async def _all_told(followers: list[Follower]) -> None:
    for follower in followers:
        await follower.told.wait()
