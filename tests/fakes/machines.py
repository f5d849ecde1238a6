"""Machines that come and go with the files of a folder, as a fleet of simulated nodes would: over HTTP, with real keys.

They join with their file's token, beat with signals, poll for work, run what they are given until told to end it, and
fall silent when their file is gone.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from millpond_contracts.resources import SIMULATED_TAINT, Taint
from millpond_kernel.pausing import end_task
from tests.factories.registry import Agent, gpu, inventory

PAUSE_SECONDS = 0.05
BEAT_SECONDS = 0.3


@dataclass(slots=True)
class Machine:
    """One machine: its agent, its clock, and the allocations that it runs."""

    name: str
    agent: Agent
    devices: int
    clock_ms: int = 1_000_000
    sequence: int = 0
    held: dict[str, dict[str, Any]] = field(default_factory=dict)
    beat_at: float = 0.0

    async def poll(self) -> None:
        """Takes orders: starts what is assigned, ends what is to stop."""
        self.clock_ms += 100
        held = [{"allocation_id": key, "epoch": task["epoch"]} for key, task in self.held.items()]
        body = {"boot_id": "boot-1", "sent_monotonic_ms": self.clock_ms, "held": held, "wait_seconds": 0}
        answer = await self.agent.send("POST", "/v1/work/poll", body)
        if answer.status_code != 200:
            return
        for task in answer.json()["assignments"]:
            if task["allocation_id"] not in self.held:
                self.held[task["allocation_id"]] = task
                await self.report(task, "starting", "active")
        for stop in answer.json()["stops"]:
            await self.end(stop["allocation_id"], exit_code=None, reason=stop["reason"])

    async def end(self, allocation_id: str, **facts: Any) -> None:
        """Ends a task."""
        task = self.held.pop(allocation_id, None)
        if task is not None:
            await self.report(task, "released", **{"exit_code": 0, **facts})

    async def report(self, task: dict[str, Any], *kinds: str, **facts: Any) -> None:
        """Tells facts about a task."""
        reports = []
        for kind in kinds:
            self.sequence += 1
            self.clock_ms += 10
            reports.append(
                {
                    "allocation_id": task["allocation_id"],
                    "epoch": task["epoch"],
                    "sequence": self.sequence,
                    "kind": kind,
                    "boot_id": "boot-1",
                    "at_monotonic_ms": self.clock_ms,
                    **{name: value for name, value in facts.items() if value is not None},
                }
            )
        body = {"boot_id": "boot-1", "sent_monotonic_ms": self.clock_ms, "reports": reports}
        await self.agent.send("POST", "/v1/work/reports", body)

    async def beat(self, value: float | None) -> None:
        """A sign of life with the devices' utilisation."""
        signals = [
            {
                "target": f"nvidia/GPU-{self.name}-{index}",
                "name": "utilization_ratio",
                "at_monotonic_ms": self.clock_ms,
                "value": value,
            }
            for index in range(self.devices)
        ]
        body = {
            "boot_id": "boot-1",
            "monotonic_ms": self.clock_ms,
            "inventory_sequence": self.agent.sequence,
            "signals": signals,
        }
        await self.agent.send("POST", "/v1/agent/heartbeat", body)


@dataclass(slots=True)
class Machines:
    """All machines of a folder. `is_joining` False = they boot and never come; `signal` None = unknown is told."""

    http: httpx.AsyncClient
    folder: Path
    by_order: dict[str, Machine] = field(default_factory=dict)
    is_joining: bool = True
    signal: float | None = 0.1
    taints: tuple[Taint, ...] = (Taint(key=SIMULATED_TAINT),)

    async def run(self) -> None:
        """Follows the folder until it is cancelled."""
        while True:
            files = {file.stem: file for file in self.folder.glob("norder_*.json")} if self.folder.exists() else {}
            for gone in self.by_order.keys() - files.keys():
                del self.by_order[gone]
            for order in files.keys() - self.by_order.keys():
                if self.is_joining:
                    await self._boot(order, files[order])
            loop = asyncio.get_running_loop()
            for machine in list(self.by_order.values()):
                await machine.poll()
                if loop.time() >= machine.beat_at:
                    machine.beat_at = loop.time() + BEAT_SECONDS
                    await machine.beat(self.signal)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _boot(self, order: str, file: Path) -> None:
        try:
            body = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        wanted = body["nodes"][0]
        if wanted["boot_seconds"] > 60:
            return
        name = wanted["name"]
        devices = [gpu(index, identity=f"nvidia/GPU-{name}-{index}") for index in range(wanted["devices"])]
        machine = inventory(
            devices,
            allocatable_cpu_milli=wanted["cpu_milli"],
            allocatable_memory_mib=wanted["memory_mib"],
            memory_mib=wanted["memory_mib"],
            taints=self.taints,
        )
        agent = Agent(self.http)
        await agent.become_ready(body["join_token"], machine, name=name)
        self.by_order[order] = Machine(name, agent, wanted["devices"])

    async def end_everything(self) -> int:
        """Ends every task with success; how many."""
        ended = 0
        for machine in list(self.by_order.values()):
            for allocation_id in list(machine.held):
                await machine.end(allocation_id)
                ended += 1
        return ended


@asynccontextmanager
async def run_machines(machines: Machines) -> AsyncIterator[Machines]:
    """The machines, until the block ends; what went wrong in them ends the test."""
    task = asyncio.create_task(machines.run(), name="machines")
    try:
        yield machines
    finally:
        # Asked again and again: a request that is answered in this process may swallow a cancellation.
        await end_task(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            raise error
