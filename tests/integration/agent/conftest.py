"""A control plane that is a stand-in, and agents on folders of their own, in this process or as one of their own."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from millpond_node_agent.agent import Agent
from millpond_node_agent.observability import configure_logging
from millpond_node_agent.runtimes.process import ProcessRuntime, ProcessSettings
from millpond_node_agent.settings import AgentSettings, ExitCode
from tests.fakes.control_plane import JOIN_TOKEN, FakeControlPlane, serving
from tests.integration.agent.waters import Waters
from tests.integration.databases import MigratedDatabase
from tests.integration.services import run_services


@dataclass(slots=True)
class Bench:
    """A stand-in control plane at `url`, and a place for one agent."""

    plane: FakeControlPlane
    url: str
    place: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def state_dir(self) -> Path:
        return self.place / "state"

    @property
    def runs(self) -> Path:
        """The run folders."""
        return self.state_dir / "runtime" / "runs"

    def settings(self, **changes: Any) -> AgentSettings:
        values: dict[str, Any] = {
            "state_dir": self.state_dir,
            "work_dir": self.place / "tasks",
            "url": self.url,
            "token": JOIN_TOKEN,
            "sample_seconds": 0.2,
            "log_push_seconds": 0.1,
            **changes,
        }
        return AgentSettings(**values)

    @asynccontextmanager
    async def agent(self, **changes: object) -> AsyncIterator[asyncio.Task[ExitCode]]:
        """An agent in this process; stopped at the end."""
        agent, stop = Agent(self.settings(**changes)), asyncio.Event()
        running = asyncio.create_task(agent.run(stop))
        try:
            yield running
        finally:
            stop.set()
            await asyncio.wait([running])
            await agent.close()

    def spawn(self, *options: str) -> subprocess.Popen[bytes]:
        """An agent as a process of its own."""
        command = [sys.executable, "-P", "-m", "millpond_node_agent.main", "run", "--url", self.url]
        command += ["--state-dir", str(self.state_dir), "--work-dir", str(self.place / "tasks"), *options]
        environment = {**os.environ, "MILLPOND_JOIN_TOKEN": JOIN_TOKEN}
        with (self.place / "agent.log").open("ab") as output:
            process = subprocess.Popen(command, env=environment, stderr=output, start_new_session=True)
        self.processes.append(process)
        return process

    def log_text(self) -> str:
        """What the agents that were spawned wrote."""
        return (self.place / "agent.log").read_text()


async def wait_for_exit(process: subprocess.Popen[bytes], seconds: float = 15) -> int:
    """The exit code, while this event loop goes on."""
    return await asyncio.to_thread(process.wait, seconds)


@pytest.fixture(autouse=True)
def short_logs() -> None:
    """JSON lines: the default of a test run renders tracebacks with all locals, for seconds each."""
    configure_logging("warning")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that task users can reach; pytest's own lies below a closed one."""
    with tempfile.TemporaryDirectory(prefix="millpond-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
async def bench(place: Path) -> AsyncIterator[Bench]:
    """Leaves no process behind."""
    plane = FakeControlPlane()
    async with serving(plane.app) as url:
        bench = Bench(plane, url, place)
        yield bench
        plane.close()
        for process in bench.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        await _remove_tasks(bench)


async def _remove_tasks(bench: Bench) -> None:
    runtime = ProcessRuntime(ProcessSettings(state_dir=bench.state_dir / "runtime", work_dir=bench.place / "tasks"))
    for run in await runtime.list_runs():
        await runtime.stop(run.allocation_id, 0)
        await runtime.remove(run.allocation_id)


@pytest.fixture
async def waters(migrated: MigratedDatabase, place: Path) -> AsyncIterator[Waters]:
    (place / "orders").mkdir()
    overrides: dict[str, Any] = {
        "log_folder": place / "logs",
        "heartbeat_seconds": 2,
        "replenish_interval_seconds": 0.5,
        "database_pool_size": 12,
    }
    async with run_services(migrated, ("quota", "registry", "scheduler"), **overrides) as services:
        assert isinstance(services.transport, httpx.ASGITransport)
        async with serving(services.transport.app) as url:
            operator = services.as_key()
            pool = (await operator("POST", "/v1/pools", {"name": "main"}, expect=201)).json()["pool_id"]
            token = (await operator("POST", "/v1/join-tokens", {"pool_id": pool}, expect=201)).json()["token"]
            yield Waters(services, operator, url, token, pool, place)
