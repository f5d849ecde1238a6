"""A process runtime in folders of its own, and short shell tasks to run in it."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from millpond_node_agent.runtimes.process import ProcessRuntime, ProcessSettings
from millpond_node_agent.runtimes.protocol import DeviceGrant, TaskSpec, TaskTerms
from tests.integration.agent_runtime.task_runs import MakeSpec


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that task users can reach; pytest's own lies below a closed one."""
    with tempfile.TemporaryDirectory(prefix="millpond-test-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def settings(place: Path) -> ProcessSettings:
    return ProcessSettings(state_dir=place / "state", work_dir=place / "work")


@pytest.fixture
async def runtime(settings: ProcessSettings) -> AsyncIterator[ProcessRuntime]:
    """A runtime that leaves nothing behind."""
    runtime = ProcessRuntime(settings)
    yield runtime
    for run in await runtime.list_runs():
        await runtime.stop(run.allocation_id, 0)
        await runtime.remove(run.allocation_id)


@pytest.fixture
def make_spec() -> MakeSpec:
    """Makes the spec of a shell script."""

    def make(
        script: str = "exit 0",
        *,
        allocation_id: str = f"alloc_{os.getpid()}",
        command: tuple[str, ...] | None = None,
        env: dict[str, str] | None = None,
        image: str | None = None,
        cpu_milli: int = 1000,
        memory_mib: int = 64,
        devices: tuple[DeviceGrant, ...] = (),
        grace: float = 1.0,
        time_limit: int | None = None,
    ) -> TaskSpec:
        terms = TaskTerms(allocation_id, "job_1", "task_1", "ten_1", 1, 7, cpu_milli, memory_mib, devices, grace)
        return TaskSpec(terms, command or ("/bin/sh", "-c", script), env or {}, image, time_limit)

    return make
