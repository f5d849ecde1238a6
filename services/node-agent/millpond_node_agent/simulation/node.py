"""One simulated node from its description to its end: it boots, joins, works, and leaves when no longer wanted."""

import asyncio
import hashlib
import random
import shutil
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from pydantic import ValidationError

from millpond_contracts.bodies.nodes import JoinRequest
from millpond_contracts.fleets import NodeEntry
from millpond_node_agent.agent import join_anew, unless
from millpond_node_agent.client import HttpClient, Refused, Superseded
from millpond_node_agent.control_plane import NotAMember
from millpond_node_agent.identity import Membership, NodeKey, read_membership
from millpond_node_agent.observability import log
from millpond_node_agent.pausing import wait_within
from millpond_node_agent.runtimes import runfolder
from millpond_node_agent.runtimes.boottime import boot_id, monotonic_ms
from millpond_node_agent.serving import Ending, Machine, serve
from millpond_node_agent.settings import AgentSettings
from millpond_node_agent.simulation.descriptions import NodeDescription
from millpond_node_agent.simulation.machines import SimulatedHardware
from millpond_node_agent.simulation.partitions import SimulatedPartitions
from millpond_node_agent.simulation.runtime import SimulatedRuntime

_DESCRIPTION = "description.json"
_JOIN_AGAIN_SECONDS = (2.0, 5.0, 15.0, 60.0)
_FAILED_SECONDS = 5.0


class Fate(Enum):
    """What becomes of a node when it is told to end."""

    STAY = "stay"
    PAUSE = "pause"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class Site:
    """What all simulated nodes of a process share. `joining` bounds the joins at one time.

    `folder` has a folder for each node; `settings` are those of every node but for its folders.
    """

    folder: Path
    url: str
    token: str | None
    settings: AgentSettings
    http: HttpClient
    joining: asyncio.Semaphore


class SimulatedNode:
    """One node; `live` runs until it was told to leave or to pause."""

    def __init__(self, site: Site, description: NodeDescription) -> None:
        """Take the node's folder, where an earlier process may have left it."""
        self.description = description
        self._site = site
        self._folder = site.folder / description.key
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._http = site.http.sibling()
        self._ending = Ending(asyncio.Event())
        self._fate = Fate.STAY

    def leave(self) -> None:
        """Stop all work and fall silent for good; what is left of the node here is removed."""
        self._fate = Fate.LEAVE
        self._end(stop_tasks=True)

    def pause(self, *, stop_tasks: bool) -> None:
        """End with the process; tasks go on unless told otherwise, and the next process is the same node."""
        self._fate = Fate.PAUSE
        self._end(stop_tasks=stop_tasks)

    def change(self, description: NodeDescription) -> None:
        """Boot again as the same node with other hardware; its work is stopped first."""
        self.description = description
        self._end(stop_tasks=True)

    async def live(self, delay_seconds: float = 0.0) -> None:
        """Boot, join and work, again after each change, until told to leave or to pause."""
        try:
            await wait_within(self._ending.asked.wait(), delay_seconds)
            await self._live_on()
        finally:
            await self._http.close()

    async def _live_on(self) -> None:
        while True:
            name = self.description.entry.name
            try:
                await self._live_once(self.description.entry)
            except (NotAMember, Superseded) as over:
                # Removed by an operator, or the identity runs elsewhere: nothing but a new description helps.
                log.warning("simulated_node_unknown", node=name, reason=str(over))
                await self._ending.asked.wait()
            except Exception as error:
                log.error("simulated_node_failed", node=name, exc_info=error)
                await wait_within(self._ending.asked.wait(), _FAILED_SECONDS)
            if self._fate is Fate.LEAVE:
                await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)
                log.info("simulated_node_left", node=name)
            if self._fate is not Fate.STAY:
                return
            self._ending = Ending(asyncio.Event())

    def _end(self, *, stop_tasks: bool) -> None:
        self._ending.stop_tasks = stop_tasks
        self._ending.asked.set()

    async def _live_once(self, entry: NodeEntry) -> None:
        booted = self._begin_boot(entry)
        await wait_within(self._ending.asked.wait(), max(0.0, (booted - monotonic_ms()) / 1000))
        known = read_membership(self._folder)
        if known is None and self._ending.asked.is_set():
            return
        key = NodeKey.load(self._folder)
        runtime = SimulatedRuntime(self._folder / "runtime")
        tag = hashlib.sha256(key.public_text.encode()).hexdigest()[:12]
        hardware = SimulatedHardware(entry, entry.name, tag, runtime.running)
        membership = await self._join(entry, key, hardware) if known is None else known
        if membership is None:
            return
        here = replace(membership, url=self._site.url)  # the control plane may have moved since
        maker = SimulatedPartitions(self._folder / "partitions.json", hardware.geometries())
        machine = Machine(runtime, hardware, _check, is_durable=False, maker=maker)
        settings = replace(self._site.settings, state_dir=self._folder, work_dir=self._folder)
        await serve(settings, machine, here, key, self._http, self._ending)

    def _begin_boot(self, entry: NodeEntry) -> int:
        """The instant at which the node has booted; the same one after a restart of this process."""
        path = str(self._folder / _DESCRIPTION)
        told = {"entry": entry.model_dump(mode="json"), "boot_id": boot_id()}
        known = runfolder.read_document(path)
        if known is not None and {name: known.get(name) for name in told} == told:
            return int(known["booted_ms"])
        booted = monotonic_ms() + round(entry.boot_seconds * 1000)
        runfolder.write_document(path, told | {"booted_ms": booted})
        return booted

    async def _join(self, entry: NodeEntry, key: NodeKey, hardware: SimulatedHardware) -> Membership | None:
        """The node's membership; None when it was told to end first. A refusal is tried again: pools may come."""
        token = self.description.join_token or self._site.token
        if token is None:
            log.error(
                "simulated_join_refused", node=entry.name, reason="neither its file nor the process has a join token"
            )
            await self._ending.asked.wait()
            return None
        await hardware.probe()
        assert hardware.inventory is not None
        request = JoinRequest(
            token=token,
            public_key=key.public_text,
            name=entry.name,
            inventory=hardware.inventory,
            labels={**self._site.settings.labels, **entry.labels},
        )
        pauses, pause = iter(_JOIN_AGAIN_SECONDS), 0.0
        while not self._ending.asked.is_set():
            try:
                async with self._site.joining:
                    return await unless(
                        self._ending.asked, join_anew(self._http, request, self._site.url, self._folder)
                    )
            except Refused as refused:
                log.error("simulated_join_refused", node=entry.name, code=refused.code, reason=refused.detail)
                pause = next(pauses, pause)
                await wait_within(self._ending.asked.wait(), pause * random.uniform(0.75, 1.25))
        return None


def read_left_behind(folder: Path, key: str) -> NodeDescription | None:
    """What an earlier process knew of a node that nobody describes any more; None when it can be no node."""
    document = runfolder.read_document(str(folder / key / _DESCRIPTION))
    try:
        return None if document is None else NodeDescription(key, NodeEntry.model_validate(document["entry"]))
    except ValidationError:
        return None


async def _check() -> dict[str, str]:
    return {"simulated": "nothing to check"}
