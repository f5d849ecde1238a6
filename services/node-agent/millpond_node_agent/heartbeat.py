"""What the agent tells the registry: the inventory on change, readiness once checked, signs of life with signals.

One object holds the newest inventory; three loops take it, beat and check. The registry's answers wake them.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from millpond_contracts.bodies.nodes import (
    Condition,
    Heartbeat,
    HeartbeatAnswer,
    InventoryReport,
    NodeState,
    ReadyReport,
    SessionAnswer,
)
from millpond_contracts.resources import Isolation, NodeInventory, Signal, series_of
from millpond_node_agent.backoff import Backoff
from millpond_node_agent.client import Away, Refused
from millpond_node_agent.control_plane import ControlPlane
from millpond_node_agent.hardware.cpus import HostUnreadableError
from millpond_node_agent.hardware.inventory import is_changed
from millpond_node_agent.hardware.outsiders import Outsiders
from millpond_node_agent.hardware.supervisor import HardwareSupervisor
from millpond_node_agent.health import CheckFailed
from millpond_node_agent.lease import Lease
from millpond_node_agent.observability import log
from millpond_node_agent.pausing import wait_within
from millpond_node_agent.runtimes.boottime import boot_id, monotonic_ms
from millpond_node_agent.runtimes.protocol import Runtime
from millpond_node_agent.settings import AgentSettings

_INVENTORY = "inventory.json"
_SIGNALS_KEPT = 8192
_SIGNALS_PER_BEAT = 4000  # of the longest names these stay below the largest body that a service takes
_CHECK = "node_check"


class HardwareSource(Protocol):
    """A machine's inventory and signals, however they come about."""

    @property
    def inventory(self) -> NodeInventory | None:
        """The newest one; None before the first probe."""
        ...

    async def probe(self) -> bool:
        """Take the inventory again; whether the machine is another than before."""
        ...

    async def sample(self) -> list[Signal]:
        """One sample of everything, on the clock that the heartbeat tells."""
        ...


class Hardware:
    """The machine's inventory as the registry shall see it, and its signals."""

    def __init__(self, settings: AgentSettings, runtime: Runtime) -> None:
        self._path = settings.state_dir / _INVENTORY
        self._labels = dict(settings.labels)
        self._isolation = Isolation(runtime.report().isolation)
        self._supervisor = HardwareSupervisor(data_folder=settings.work_dir, previous=_read_inventory(self._path))
        self._runtime = runtime
        self._outsiders = Outsiders()
        self.inventory: NodeInventory | None = None

    async def probe(self) -> bool:
        """Take the inventory again; whether the machine is another than before."""
        before = await self._runtime.list_runs()
        taken = await self._supervisor.take_inventory()
        runs = [*before, *await self._runtime.list_runs()]
        taken = self._outsiders.mark(taken, {grant.identity for run in runs for grant in run.terms.devices})
        complete = taken.model_copy(update={"isolation": self._isolation, "labels": self._labels})
        changed = is_changed(self.inventory, complete)
        self.inventory = complete
        if changed:
            await asyncio.to_thread(_write_inventory, self._path, complete)
        return changed

    async def sample(self) -> list[Signal]:
        """One sample of everything, on the clock that the heartbeat tells."""
        # The samples count from the start of the process; a reader needs one clock for all of a heartbeat.
        now = monotonic_ms()
        return [
            signal.model_copy(update={"at_monotonic_ms": now}) for signal in await self._supervisor.sample_signals()
        ]

    async def close(self) -> None:
        """End the children that read the hardware."""
        await self._supervisor.close()


class Pulse:
    """The loops towards the registry."""

    def __init__(
        self,
        settings: AgentSettings,
        plane: ControlPlane,
        hardware: HardwareSource,
        check_machine: Callable[[], Awaitable[dict[str, str]]],
        lease: Lease,
    ) -> None:
        self._settings = settings
        self._plane = plane
        self._hardware = hardware
        self._check_machine = check_machine
        self._lease = lease
        self._heartbeat_seconds = 10.0
        self._sequence = 0
        self._told_sequence = 0
        self._tell_inventory = asyncio.Event()
        self._inventory_told = asyncio.Event()
        self._check = asyncio.Event()
        self._signals: deque[Signal] = deque(maxlen=_SIGNALS_KEPT)
        self._takes_series = False
        self._open_condition: Condition | None = None
        self._conditions: list[Condition] = []

    def begin_session(self, answer: SessionAnswer) -> None:
        """A session was opened: the registry wants the inventory of this incarnation, and a fresh word that we work."""
        self._heartbeat_seconds = float(answer.heartbeat_seconds)
        self._inventory_told.clear()
        self._tell_inventory.set()
        self._check.set()

    async def watch_hardware(self) -> None:
        """Probe at the period and on demand; push what changed or was asked for."""
        while True:
            try:
                changed = await self._hardware.probe()
            except HostUnreadableError as error:
                log.error("host_unreadable", reason=str(error))
            else:
                if changed or self._tell_inventory.is_set():
                    await self._push_inventory()
            await wait_within(self._tell_inventory.wait(), self._settings.inventory_seconds)

    async def sample(self) -> None:
        """One sample a second, missed ones left out."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self._signals.extend(await self._hardware.sample())
            due = max(due + self._settings.sample_seconds, loop.time())
            await asyncio.sleep(due - loop.time())

    async def beat(self) -> None:
        """A sign of life each period, the first one at a random instant within it."""
        backoff = Backoff()
        await self._open_first_session(backoff)
        pause = random.uniform(0, self._heartbeat_seconds)
        while True:
            await asyncio.sleep(pause)
            try:
                self._obey(await self._send_beat())
                backoff.reset()
                pause = 0.0 if len(self._signals) >= _SIGNALS_PER_BEAT else self._heartbeat_seconds
            except (Away, Refused) as error:
                # Whoever answers next may be of an earlier version.
                self._takes_series = False
                pause = _pause(backoff, error)

    async def _open_first_session(self, backoff: Backoff) -> None:
        """Only a session tells the period. An agent that starts while nobody answers waits, as all others do."""
        while True:
            try:
                await self._plane.session()
                return
            except Away as away:
                await asyncio.sleep(_pause(backoff, away))

    async def report_ready(self) -> None:
        """Check the node and say so, whenever that was asked for."""
        backoff = Backoff()
        while True:
            await self._check.wait()
            await self._inventory_told.wait()
            # Without a lease the launchers would stop the check itself.
            await self._lease.wait_until_valid()
            self._check.clear()
            try:
                checks = await self._check_machine()
                await self._plane.send_ready(ReadyReport(checks=checks))
                self._note_check(None)
                backoff.reset()
                log.info("node_ready", **checks)
            except CheckFailed as failed:
                self._check.set()
                self._note_check(str(failed))
                await asyncio.sleep(self._settings.ready_retry_seconds)
            except (Away, Refused) as error:
                self._check.set()
                await asyncio.sleep(_pause(backoff, error))

    async def _push_inventory(self) -> None:
        inventory = self._hardware.inventory
        assert inventory is not None
        backoff = Backoff()
        self._tell_inventory.clear()
        self._sequence += 1
        while True:
            try:
                await self._plane.send_inventory(InventoryReport(sequence=self._sequence, inventory=inventory))
            except (Away, Refused) as error:
                await asyncio.sleep(_pause(backoff, error))
            else:
                self._told_sequence = self._sequence
                self._inventory_told.set()
                return

    async def _send_beat(self) -> HeartbeatAnswer:
        signals = [signal for signal, _ in zip(self._signals, range(_SIGNALS_PER_BEAT), strict=False)]
        conditions = list(self._conditions)
        answer = await self._plane.send_heartbeat(
            Heartbeat(
                boot_id=boot_id(),
                monotonic_ms=monotonic_ms(),
                inventory_sequence=self._told_sequence,
                signals=[] if self._takes_series else signals,
                series=series_of(signals) if self._takes_series else [],
                conditions=conditions,
            )
        )
        # Samples may have pushed some of them out at the other end meanwhile.
        while signals and self._signals and self._signals[0].at_monotonic_ms <= signals[-1].at_monotonic_ms:
            self._signals.popleft()
        del self._conditions[: len(conditions)]
        return answer

    def _obey(self, answer: HeartbeatAnswer) -> None:
        self._heartbeat_seconds = float(answer.heartbeat_seconds)
        self._takes_series = answer.takes_series
        if answer.send_inventory:
            self._tell_inventory.set()
        if answer.state in (NodeState.JOINED, NodeState.CHECKING):
            self._check.set()

    def _note_check(self, failure: str | None) -> None:
        """Open or close the condition, and say so when it changed."""
        if failure is None and self._open_condition is None:
            return
        if failure is not None:
            if self._open_condition is None or self._open_condition.evidence != failure[:512]:
                log.error("node_check_failed", reason=failure)
            self._open_condition = Condition(target="node", name=_CHECK, open=True, evidence=failure[:512])
            self._conditions = [self._open_condition]
        else:
            self._open_condition = None
            self._conditions = [Condition(target="node", name=_CHECK, open=False)]


def wanted_name(hostname: str | None) -> str:
    """A node name made from the machine's own."""
    cleaned = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in (hostname or "").lower())
    return cleaned[:63].strip("._-") or "node"


def _pause(backoff: Backoff, error: Away | Refused) -> float:
    if isinstance(error, Refused):
        log.warning("registry_refused", code=error.code, detail=error.detail)
        return max(1.0, backoff.next_seconds())
    return max(backoff.next_seconds(), error.retry_after_seconds)


def _read_inventory(path: Path) -> NodeInventory | None:
    """What an earlier agent saw; a file of another version is as good as none."""
    try:
        return NodeInventory.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _write_inventory(path: Path, inventory: NodeInventory) -> None:
    scratch = path.with_suffix(".new")
    scratch.write_text(inventory.model_dump_json(exclude_defaults=True))
    scratch.replace(path)
