"""Hundreds of agents of 8 devices each, as raw requests: heartbeats with signals of every second, long polls, reports.

They join and open sessions with real keys; what they are given to run they act out for some seconds and end.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from millpond_node_agent.control_plane import HEARTBEAT, POLL, RENEW, REPORTS
from tests.benchmarks.connection import Connection, request, to_json
from tests.factories.registry import Agent, gpu, inventory

DEVICES = 8
FLAVOR = "nvidia-a100-sxm4-80gb"
HEARTBEAT_SECONDS = 10.0
POLL_SECONDS = 10.0
RENEW_SECONDS = 120.0
TASK_SECONDS = (1.0, 3.0)
JOIN_TOGETHER = 16
# Of each device, and of the node.
DEVICE_SIGNALS = ("utilization_ratio", "memory_utilization_ratio", "memory_used_mib")
NODE_SIGNALS = ("cpu_utilization_ratio", "memory_utilization_ratio", "memory_used_mib")
SAMPLES = 10
_INSTANTS = b'"@"'


@dataclass(slots=True)
class Seen:
    """What the crowd saw: answers by kind and status, and how long heartbeats took."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    heartbeat_ms: list[float] = field(default_factory=list)
    ended: int = 0

    def failures(self) -> dict[str, int]:
        """Kind and status -> how often, of what was not answered as wanted; status 0 = no answer."""
        return {f"{kind} {status}": n for (kind, status), n in self.answers.items() if not 200 <= status < 300}


class CrowdAgent:
    """One machine after its join: two connections, one of them for the long poll."""

    def __init__(self, port: int, agent: Agent, index: int, seen: Seen) -> None:
        self._port = port
        self._agent = agent
        self._seen = seen
        self._series = _series_of(index)
        self._sequence = 0
        self._held: dict[str, int] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._talking = asyncio.Lock()
        self._talk: Connection | None = None

    async def run(self) -> None:
        """Connects at a random instant of the first period and goes on until it is cancelled."""
        await asyncio.sleep(random.uniform(0, HEARTBEAT_SECONDS))
        try:
            async with asyncio.TaskGroup() as loops:
                for loop in (self._beat, self._poll, self._renew):
                    loops.create_task(loop())
        finally:
            if self._talk is not None:
                self._talk.close()

    async def _beat(self) -> None:
        while True:
            began = time.monotonic()
            status, _ = await self._say("heartbeat", HEARTBEAT, self.heartbeat_body())
            if status == 200:
                self._seen.heartbeat_ms.append((time.monotonic() - began) * 1000)
            await asyncio.sleep(max(0.0, HEARTBEAT_SECONDS - (time.monotonic() - began)))

    def heartbeat_body(self) -> bytes:
        """A heartbeat with ten seconds of samples, as the node agent writes it."""
        now = _now_ms()
        beat = {"boot_id": "boot-1", "monotonic_ms": now, "inventory_sequence": self._agent.sequence}
        instants = to_json([now - 1000 * back for back in reversed(range(SAMPLES))])
        return to_json(beat)[:-1] + b',"series":[' + self._series.replace(_INSTANTS, instants) + b"]}"

    def poll_body(self, wait_seconds: float) -> bytes:
        """A poll that names what is held."""
        held = [{"allocation_id": key, "epoch": epoch} for key, epoch in self._held.items()]
        return to_json(
            {"boot_id": "boot-1", "sent_monotonic_ms": _now_ms(), "held": held, "wait_seconds": wait_seconds}
        )

    @property
    def token(self) -> str:
        """The present node token."""
        return self._agent.token

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS * random.uniform(0.7, 1.0))
            status, answer = await self._say("renew", RENEW, b"{}")
            if status == 200:
                self._agent.token = httpx.Response(200, content=answer).json()["token"]

    async def _poll(self) -> None:
        connection: Connection | None = None
        wait = 0.0
        try:
            while True:
                try:
                    connection = connection or await Connection.open(self._port)
                    asked = request("POST", POLL, self.token, self.poll_body(wait))
                    status, answer = await connection.exchange(asked)
                except OSError:
                    connection, status = None, 0
                self._seen.answers["poll", status] += 1
                if status == 200:
                    wait = POLL_SECONDS
                    await self._obey(httpx.Response(200, content=answer).json())
                else:
                    await asyncio.sleep(1.0)
        finally:
            if connection is not None:
                connection.close()

    async def _obey(self, answer: dict[str, Any]) -> None:
        started = [task for task in answer["assignments"] if task["allocation_id"] not in self._held]
        for task in started:
            self._held[task["allocation_id"]] = task["epoch"]
        if started:
            facts = [(task["allocation_id"], kind) for task in started for kind in ("starting", "active")]
            await self._report(facts)
        for task in started:
            self._end_later(task["allocation_id"], random.uniform(*TASK_SECONDS), exit_code=0)
        for stop in answer["stops"]:
            if stop["allocation_id"] in self._held:
                self._end_later(stop["allocation_id"], 0.0, reason=stop["reason"])

    def _end_later(self, allocation_id: str, seconds: float, **facts: Any) -> None:
        async def end() -> None:
            await asyncio.sleep(seconds)
            if allocation_id in self._held and await self._report([(allocation_id, "released")], **facts):
                self._held.pop(allocation_id, None)
                self._seen.ended += 1

        task = asyncio.create_task(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _report(self, facts: list[tuple[str, str]], **more: Any) -> bool:
        reports = []
        for allocation_id, kind in facts:
            self._sequence += 1
            reports.append(
                {
                    "allocation_id": allocation_id,
                    "epoch": self._held[allocation_id],
                    "sequence": self._sequence,
                    "kind": kind,
                    "boot_id": "boot-1",
                    "at_monotonic_ms": _now_ms(),
                    **more,
                }
            )
        body = to_json({"boot_id": "boot-1", "sent_monotonic_ms": _now_ms(), "reports": reports})
        while True:
            status, _ = await self._say("report", REPORTS, body)
            if status != 0 and status < 500:
                return status == 200
            await asyncio.sleep(1.0)

    async def _say(self, kind: str, path: str, body: bytes) -> tuple[int, bytes]:
        """One request on the connection that heartbeats and reports share; status 0 = no answer."""
        async with self._talking:
            try:
                self._talk = self._talk or await Connection.open(self._port)
                status, answer = await self._talk.exchange(request("POST", path, self._agent.token, body))
            except OSError:
                self._talk, status, answer = None, 0, b""
        self._seen.answers[kind, status] += 1
        return status, answer


async def join_crowd(url: str, token: str, numbers: range) -> list[Agent]:
    """Machines of these numbers, joined, with open sessions, their inventories told, ready for work."""
    gate = asyncio.Semaphore(JOIN_TOGETHER)

    async def join(http: httpx.AsyncClient, index: int) -> Agent:
        async with gate:
            agent = Agent(http)
            await agent.become_ready(token, _machine(index), name=f"crowd-{index:05}")
            return agent

    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=JOIN_TOGETHER)) as http:
        return list(await asyncio.gather(*(join(http, index) for index in numbers)))


async def run_agents(crowd: list[CrowdAgent], on_failure: Callable[[], None]) -> None:
    """Runs them until cancelled; `on_failure` is called when one of them breaks."""
    try:
        async with asyncio.TaskGroup() as running:
            for agent in crowd:
                running.create_task(agent.run())
    except* Exception:
        on_failure()
        raise


def _machine(index: int) -> Any:
    devices = [gpu(number, identity=_identity(index, number)) for number in range(DEVICES)]
    return inventory(devices, hostname=f"crowd-{index:05}")


def _identity(index: int, number: int) -> str:
    return f"nvidia/GPU-{index:06}-{number}"


def _series_of(index: int) -> bytes:
    targets = [(_identity(index, number), DEVICE_SIGNALS) for number in range(DEVICES)] + [("node", NODE_SIGNALS)]
    series = [
        {
            "target": target,
            "name": name,
            "at_monotonic_ms": "@",
            "values": [round(random.random(), 3) for _ in range(SAMPLES)],
        }
        for target, names in targets
        for name in names
    ]
    return to_json(series)[1:-1]


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
