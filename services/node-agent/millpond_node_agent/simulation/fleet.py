"""All simulated nodes of one process: compares what is described with what runs, once a second, and follows."""

import asyncio
import shutil
from dataclasses import dataclass

from millpond_node_agent.client import HttpClient, check_url
from millpond_node_agent.identity import StateLock
from millpond_node_agent.observability import log
from millpond_node_agent.pausing import wait_within
from millpond_node_agent.settings import AgentSettings, ExitCode
from millpond_node_agent.simulation.descriptions import Descriptions
from millpond_node_agent.simulation.node import SimulatedNode, Site, read_left_behind

_LOOK_SECONDS = 1.0
_JOINS_AT_ONCE = 8
# So many nodes a second wake up, so that a start is no stampede.
_WAKING_PER_SECOND = 50
_SAMPLE_SECONDS = 5.0
_LOG_PUSH_SECONDS = 10.0
_INVENTORY_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class _Running:
    node: SimulatedNode
    life: "asyncio.Task[None]"


class Fleet:
    """Simulated nodes as described at `paths`, kept in one state folder."""

    def __init__(self, settings: AgentSettings, paths: list[str], url: str) -> None:
        """Read the description and take the folder.

        Raises:
            DescriptionRefused: the description cannot be used.
            FolderInUse: another process runs on the folder.
            BadAddress: the URL cannot be used.
        """
        self._descriptions = Descriptions(paths)
        self._lock = StateLock(settings.state_dir)
        self._stop_tasks = settings.stop_tasks
        self._site = Site(
            folder=settings.state_dir / "nodes",
            url=check_url(url),
            token=settings.token,
            settings=_quiet(settings),
            http=HttpClient(url),
            joining=asyncio.Semaphore(_JOINS_AT_ONCE),
        )
        self._site.folder.mkdir(mode=0o700, exist_ok=True)
        self._nodes: dict[str, _Running] = {}

    async def run(self, stop: asyncio.Event) -> ExitCode:
        """Follow the description until `stop` is set; the nodes' tasks go on, unless the settings stop them."""
        self._see_off_forgotten()
        while not stop.is_set():
            self.reconcile()
            await wait_within(stop.wait(), _LOOK_SECONDS)
        log.info("fleet_stopping", nodes=len(self._nodes))
        for running in self._nodes.values():
            running.node.pause(stop_tasks=self._stop_tasks)
        if self._nodes:
            await asyncio.wait([running.life for running in self._nodes.values()])
        return ExitCode.OK

    def reconcile(self) -> None:
        """One comparison: who is described and does not run starts, who runs and is not described leaves."""
        self._nodes = {key: running for key, running in self._nodes.items() if not running.life.done()}
        described = self._descriptions.read()
        for key, running in self._nodes.items():
            wanted = described.get(key)
            if wanted is None:
                running.node.leave()
            elif wanted is not running.node.description and wanted.entry != running.node.description.entry:
                running.node.change(wanted)
        for place, key in enumerate([key for key in described if key not in self._nodes]):
            self._start(SimulatedNode(self._site, described[key]), place / _WAKING_PER_SECOND)

    async def close(self) -> None:
        """Give everything back."""
        for running in self._nodes.values():
            running.life.cancel()
        await asyncio.gather(*(running.life for running in self._nodes.values()), return_exceptions=True)
        await self._site.http.close()
        self._lock.release()

    def _start(self, node: SimulatedNode, delay_seconds: float = 0.0) -> None:
        life = asyncio.create_task(node.live(delay_seconds), name=node.description.key)
        self._nodes[node.description.key] = _Running(node, life)

    def _see_off_forgotten(self) -> None:
        """Nodes whose description went away while no process ran: they end as they would have then."""
        described = self._descriptions.read()
        for folder in self._site.folder.iterdir():
            if folder.name in described:
                continue
            left = read_left_behind(self._site.folder, folder.name)
            if left is None:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                self._start(SimulatedNode(self._site, left))


def _quiet(settings: AgentSettings) -> AgentSettings:
    """Periods that hundreds of nodes in one process can keep."""
    return AgentSettings(
        state_dir=settings.state_dir,
        work_dir=settings.state_dir,
        labels=settings.labels,
        sample_seconds=_SAMPLE_SECONDS,
        log_push_seconds=_LOG_PUSH_SECONDS,
        inventory_seconds=_INVENTORY_SECONDS,
        minimum_free_mib=0,
    )
