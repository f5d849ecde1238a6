"""Starting tasks in a runtime and waiting for what becomes of them."""

import asyncio
import os
import signal
import time
from collections.abc import Callable

from millpond_node_agent.runtimes.process import ProcessRuntime
from millpond_node_agent.runtimes.protocol import TaskSpec, TaskState, TaskStatus

MakeSpec = Callable[..., TaskSpec]


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
