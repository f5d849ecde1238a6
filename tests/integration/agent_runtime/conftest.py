"""A process runtime in folders of its own, and short shell tasks to run in it."""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from millpond_node_agent.runtimes.process import ProcessRuntime, ProcessSettings
from millpond_node_agent.runtimes.protocol import DeviceGrant, TaskSpec, TaskState, TaskStatus

MakeSpec = Callable[..., TaskSpec]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that task users can reach; pytest's own lies below a closed one."""
    with tempfile.TemporaryDirectory(prefix="millpond-test-") as name:
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
        return TaskSpec(
            allocation_id=allocation_id,
            job_id="job_1",
            task_id="task_1",
            tenant_id="ten_1",
            attempt=1,
            epoch=7,
            command=command or ("/bin/sh", "-c", script),
            env=env or {},
            image=image,
            cpu_milli=cpu_milli,
            memory_mib=memory_mib,
            devices=devices,
            stop_grace_seconds=grace,
            time_limit_seconds=time_limit,
        )

    return make


async def launch(runtime: ProcessRuntime, spec: TaskSpec) -> TaskStatus:
    """Prepare and start."""
    await runtime.prepare(spec)
    return await runtime.start(spec)


async def wait_until_over(runtime: ProcessRuntime, allocation_id: str, seconds: float = 10) -> TaskStatus:
    """The status once the run is neither starting nor running."""
    give_up = time.monotonic() + seconds
    while True:
        status = await runtime.status(allocation_id)
        if status.state not in (TaskState.STARTING, TaskState.RUNNING):
            return status
        if time.monotonic() > give_up:
            raise AssertionError(f"still {status}")
        await asyncio.sleep(0.01)


async def run_to_end(runtime: ProcessRuntime, spec: TaskSpec) -> tuple[TaskStatus, str]:
    """Run a task; returns how it ended and what it printed."""
    await launch(runtime, spec)
    status = await wait_until_over(runtime, spec.allocation_id)
    return status, await log_text(runtime, spec.allocation_id)


async def log_text(runtime: ProcessRuntime, allocation_id: str) -> str:
    return (await runtime.read_log(allocation_id, 0, 1 << 20)).data.decode()


async def wait_for_text(runtime: ProcessRuntime, allocation_id: str, text: str) -> str:
    """The log once `text` stands in it."""
    give_up = time.monotonic() + 10
    while text not in (log := await log_text(runtime, allocation_id)):
        if time.monotonic() > give_up:
            raise AssertionError(f"{text!r} not in {log!r}")
        await asyncio.sleep(0.01)
    return log


def is_running(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def kill_hard(pid: int) -> None:
    """End one process and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    while is_running(pid):
        time.sleep(0.005)
