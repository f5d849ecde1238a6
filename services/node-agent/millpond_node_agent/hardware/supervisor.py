"""The agent's side of the hardware: takes inventories and samples without ever loading a vendor's library.

Everything that can hang runs in a child or a thread with a deadline, so the caller's heartbeat keeps its beat.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path

from millpond_contracts.resources import NodeInventory, Reading, Signal
from millpond_node_agent.hardware.children import ProbeRunner, SignalReader
from millpond_node_agent.hardware.host import read_host
from millpond_node_agent.hardware.inventory import build_inventory
from millpond_node_agent.hardware.pci import PciCard, is_present, read_cards
from millpond_node_agent.hardware.report import ProbeOutcome, ProbeReport
from millpond_node_agent.hardware.signals import NodeSampler, device_signals

# The vendors with an adapter in this version.
_VENDORS = ("nvidia",)


class HardwareSupervisor:
    """One machine's hardware over time; it remembers the last inventory, so that a silent device keeps its name.

    Args:
        root: the folder under which /proc, /sys, /etc and /dev lie.
        data_folder: reported with its free space.
        environment: the children's; None means this process's own.
        previous: the inventory that an earlier run of the agent saved; used only within the same boot.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        data_folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        previous: NodeInventory | None = None,
    ) -> None:
        children = dict(os.environ if environment is None else environment)
        self._root = root
        self._data_folder = data_folder
        self._last = previous
        self._probes = {vendor: ProbeRunner(vendor, children) for vendor in _VENDORS}
        self._readers = {vendor: SignalReader(vendor, children) for vendor in _VENDORS}
        self._absent: set[str] = set()
        self._node = NodeSampler(root)
        self._started = time.monotonic()
        self._inventory_lock = asyncio.Lock()
        self._signal_lock = asyncio.Lock()

    async def take_inventory(self, deadline_seconds: float = 20.0) -> NodeInventory:
        """The whole inventory, complete or with its gaps named, within the deadline and half a second.

        Raises:
            HostUnreadableError: the machine's own /proc and /sys cannot be read.
        """
        async with self._inventory_lock:
            cards = await asyncio.to_thread(read_cards, self._root)
            reports = {vendor: await self._probe(vendor, cards, deadline_seconds) for vendor in _VENDORS}
            self._last = await asyncio.to_thread(self._assemble, cards, reports)
            return self._last

    async def sample_signals(self, deadline_seconds: float = 0.8) -> list[Signal]:
        """One sample of the node and of every device of the last inventory; null is what is not known."""
        async with self._signal_lock:
            devices = self._last.devices if self._last is not None else ()
            samples: dict[str, Mapping[str, Reading]] = {}
            for vendor in _VENDORS:
                if any(device.vendor == vendor for device in devices):
                    report = await asyncio.to_thread(self._readers[vendor].sample, deadline_seconds)
                    samples |= {sample.identity: sample.readings for sample in report.samples}
            now = int((time.monotonic() - self._started) * 1000)
            return [*self._node.sample(now), *device_signals(devices, samples, now)]

    async def release_devices(self) -> None:
        """Ends the children that hold vendors' libraries open; sampling starts them again.

        A reset of a device and a driver's unloading need this first.
        """
        async with self._signal_lock:
            for reader in self._readers.values():
                await asyncio.to_thread(reader.close)

    async def close(self) -> None:
        """Ends all children, a probe that hangs included."""
        for probe in self._probes.values():
            await asyncio.to_thread(probe.stop)
        await self.release_devices()

    async def _probe(self, vendor: str, cards: tuple[PciCard, ...], seconds: float) -> ProbeReport:
        # A machine that has neither the devices nor the driver is asked once, not every minute.
        if vendor in self._absent and not is_present(self._root, vendor, cards):
            return ProbeReport(vendor=vendor, source="none", outcome=ProbeOutcome.NO_LIBRARY)
        report = await asyncio.to_thread(self._probes[vendor].run, seconds)
        if report.outcome in (ProbeOutcome.NO_LIBRARY, ProbeOutcome.NO_DRIVER):
            self._absent.add(vendor)
        return report

    def _assemble(self, cards: tuple[PciCard, ...], reports: Mapping[str, ProbeReport]) -> NodeInventory:
        coherent = any(card.vendor == "nvidia" for card in cards)
        host = read_host(self._root, data_folder=self._data_folder, coherent_accelerator=coherent)
        return build_inventory(self._root, host, cards, reports, self._last)
