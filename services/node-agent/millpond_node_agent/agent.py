"""The agent of one machine: makes it a node, and works as that node until it is stopped."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path

from millpond_contracts.bodies.nodes import JoinRequest
from millpond_node_agent.backoff import Backoff
from millpond_node_agent.client import Away, HttpClient, Superseded, check_url
from millpond_node_agent.control_plane import NotAMember, join
from millpond_node_agent.hardware.partition_child import NvidiaPartitions
from millpond_node_agent.health import Places, check_node
from millpond_node_agent.heartbeat import Hardware, wanted_name
from millpond_node_agent.identity import Membership, NodeKey, StateLock, read_membership, write_membership
from millpond_node_agent.observability import log
from millpond_node_agent.runtimes.process import ProcessRuntime, ProcessSettings
from millpond_node_agent.serving import Ending, Machine, serve
from millpond_node_agent.settings import AgentSettings, ExitCode


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
        self._places = Places(settings.state_dir, settings.work_dir, settings.minimum_free_mib)

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
        membership = await unless(stop, self.join())
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
        rejoined = await unless(stop, self._join_anew())
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
        http = HttpClient(settings.url)
        try:
            return await join_anew(http, request, check_url(settings.url), settings.state_dir)
        finally:
            await http.close()

    async def _serve(self, membership: Membership, stop: asyncio.Event) -> ExitCode:
        machine = Machine(
            self._runtime,
            self._hardware,
            lambda: check_node(self._runtime, self._places),
            maker=NvidiaPartitions(),
        )
        http = HttpClient(membership.url)
        try:
            await serve(self._settings, machine, membership, self._key, http, Ending(stop, self._settings.stop_tasks))
        finally:
            await http.close()
        return ExitCode.OK


async def join_anew(http: HttpClient, request: JoinRequest, url: str, state_dir: Path) -> Membership:
    """The node that the registry makes of this key, remembered in the state folder; waits for a registry that is away.

    Raises:
        Refused: the registry does not let it in.
    """
    backoff = Backoff()
    while True:
        try:
            membership = await join(http, request, url)
            break
        except Away as away:
            await asyncio.sleep(max(backoff.next_seconds(), away.retry_after_seconds))
    write_membership(state_dir, membership)
    log.info("joined", node_id=str(membership.node_id), name=membership.name, url=membership.url)
    return membership


async def unless(stop: asyncio.Event, joining: Coroutine[None, None, Membership]) -> Membership | None:
    """The result, or None when `stop` is set first."""
    task, stopping = asyncio.create_task(joining), asyncio.create_task(stop.wait())
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None
