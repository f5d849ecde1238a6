"""One document from three witnesses: the host's files, the PCI bus and the vendors' answers.

PCI says which devices there are. A device that its vendor's library does not name is kept and marked, under the
identity that it had while it answered, so that the work that it runs stays bound to it. One silent device never hides
another.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millpond_contracts.ecosystem import Ecosystem
from millpond_contracts.resources import (
    Device,
    DeviceHealth,
    FieldState,
    NodeInventory,
    Reading,
    Slot,
)
from millpond_node_agent.hardware.host import HostFacts
from millpond_node_agent.hardware.nvidia_device import SIGNAL_READINGS
from millpond_node_agent.hardware.pci import PciCard, is_given_away
from millpond_node_agent.hardware.report import DeviceFailure, ProbeOutcome, ProbeReport, absent, clip
from millpond_node_agent.hardware.sysfiles import read_text

_MAX_DEVICES = 64
# Readings that move while the machine stays the same.
_MOVING = frozenset((*SIGNAL_READINGS, "memory_used_mib", "pcie_width"))


@dataclass(frozen=True, slots=True)
class _Silence:
    """Why a device that is plugged in has no record of its vendor's."""

    health: DeviceHealth
    reason: str


def build_inventory(
    root: Path,
    host: HostFacts,
    cards: Sequence[PciCard],
    reports: Mapping[str, ProbeReport],
    previous: NodeInventory | None = None,
) -> NodeInventory:
    """The whole truth about the machine.

    Args:
        reports: vendor -> its probe's answer; a vendor without one has no adapter.
        previous: an earlier inventory; it lends identities to devices that fell silent since, within the same boot.
    """
    known = previous.devices if previous is not None and previous.boot_id == host.boot_id else ()
    devices: list[Device] = []
    for vendor in sorted({card.vendor for card in cards} | set(reports)):
        of_vendor = [card for card in cards if card.vendor == vendor]
        devices += merge_devices(root, of_vendor, reports.get(vendor), [d for d in known if d.vendor == vendor])
    shared = [_with_host_memory(device, host.allocatable_memory_mib) for device in devices[:_MAX_DEVICES]]
    errors = [
        clip(f"{vendor}: {report.outcome}: {report.error}")
        for vendor, report in reports.items()
        if report.outcome is not ProbeOutcome.OK and not _is_plainly_absent(report, devices)
    ]
    if len(devices) > _MAX_DEVICES:
        errors.append(f"{len(devices)} devices found, {_MAX_DEVICES} reported")
    return NodeInventory(
        boot_id=host.boot_id,
        hostname=host.hostname,
        os=host.os,
        kernel=host.kernel,
        cpu=host.cpu,
        memory_mib=host.memory_mib,
        allocatable_cpu_milli=host.allocatable_cpu_milli,
        allocatable_memory_mib=host.allocatable_memory_mib,
        devices=tuple(shared),
        storage=host.storage,
        network=host.network,
        ecosystem=_node_ecosystem(root, devices),
        probe_errors=tuple(errors[:32]),
    )


def merge_devices(
    root: Path, cards: Sequence[PciCard], report: ProbeReport | None, known: Sequence[Device] = ()
) -> list[Device]:
    """One vendor's devices: those that answered, then those that are plugged in, or counted, and did not.

    Args:
        cards: the vendor's cards on the PCI bus.
        report: the answer of the vendor's probe; None where this version has no adapter.
        known: the vendor's devices of an earlier inventory of this boot.
    """
    answered = report.devices if report is not None else ()
    addresses = {card.address: card for card in cards}
    named = {device.slot.pci for device in answered}
    silent = [card for card in cards if card.address not in named and not is_given_away(root, card)]
    slotless: list[Device | DeviceFailure] = [device for device in answered if device.slot.pci is None]
    slotless += report.failures if report is not None else ()
    slotless.sort(key=lambda found: found.index)
    # The library counts in the order of the bus: as many nameless ones as silent cards are the same devices.
    paired = dict(zip(silent, slotless, strict=True)) if len(slotless) == len(silent) else {}

    devices = [_placed(device, addresses.get(device.slot.pci)) for device in answered if device.slot.pci]
    for card in silent:
        found = paired.get(card)
        if isinstance(found, Device):
            devices.append(_placed(found, card))
        else:
            devices.append(_silent_device(card, _silence(report, card, found), known, devices))
    if not silent and report is not None:
        devices += [_unplaced(found, report.vendor, known, devices) for found in slotless]
    return devices


def is_changed(previous: NodeInventory | None, current: NodeInventory) -> bool:
    """Whether a machine is another than before, readings that move from second to second left aside."""
    return previous is None or _still(previous) != _still(current)


def _placed(device: Device, card: PciCard | None) -> Device:
    if card is None:
        return device
    return device.model_copy(update={"slot": Slot(pci=card.address, numa=card.numa), "kind": card.kind})


def _silence(report: ProbeReport | None, card: PciCard, failure: DeviceFailure | None) -> _Silence:
    if card.driver == "vfio-pci":
        return _Silence(DeviceHealth.UNKNOWN, "passed through to a virtual machine (vfio-pci)")
    if report is None:
        return _Silence(DeviceHealth.UNKNOWN, f"no adapter for {card.vendor}: seen on the PCI bus only")
    if report.outcome is ProbeOutcome.MISMATCH:
        return _Silence(DeviceHealth.UNKNOWN, clip(f"{report.outcome}: reboot needed; {report.error}"))
    if report.outcome is not ProbeOutcome.OK:
        # Nobody was asked, so nothing is known about this device: what runs on it goes on.
        return _Silence(DeviceHealth.UNKNOWN, clip(f"{report.outcome}: {report.error}"))
    if failure is None:
        return _Silence(DeviceHealth.LOST, f"on the PCI bus and not in the answer of {report.source}")
    if failure.state is FieldState.LOST:
        return _Silence(DeviceHealth.LOST, clip(f"device {failure.index}: {failure.error}"))
    return _Silence(DeviceHealth.UNKNOWN, clip(f"device {failure.index}: {failure.error}"))


def _silent_device(card: PciCard, silence: _Silence, known: Sequence[Device], others: Sequence[Device]) -> Device:
    earlier = next((device for device in known if device.slot.pci == card.address), None)
    if earlier is None or earlier.identity in {device.identity for device in others}:
        earlier = Device(identity=f"pci/{card.address}", index=0, vendor=card.vendor)
    placed = _placed(earlier, card).model_copy(update={"index": _free_index(earlier.index, others)})
    return _silenced(placed, silence)


def _unplaced(found: Device | DeviceFailure, vendor: str, known: Sequence[Device], others: Sequence[Device]) -> Device:
    """A device that its library counts and that PCI, hidden or not its bus, does not show."""
    if isinstance(found, Device):
        return found
    earlier = next((device for device in known if device.index == found.index), None)
    if earlier is None or earlier.identity in {device.identity for device in others}:
        earlier = Device(identity=f"{vendor}/index-{found.index}", index=found.index, vendor=vendor)
    health = DeviceHealth.LOST if found.state is FieldState.LOST else DeviceHealth.UNKNOWN
    return _silenced(earlier, _Silence(health, clip(f"device {found.index}: {found.error}")))


def _silenced(device: Device, silence: _Silence) -> Device:
    state = FieldState.LOST if silence.health is DeviceHealth.LOST else FieldState.UNREADABLE
    return device.model_copy(
        update={
            "health": silence.health,
            "health_reason": silence.reason,
            "fields": {"answer": absent(state, silence.reason)},
        }
    )


def _free_index(wanted: int, others: Sequence[Device]) -> int:
    taken = {device.index for device in others}
    return wanted if wanted not in taken else next(index for index in range(len(taken) + 1) if index not in taken)


def _with_host_memory(device: Device, allocatable_mib: int) -> Device:
    """A device that shares the machine's memory offers what jobs may have of it, not zero and not the whole."""
    if not device.memory.unified or device.memory.usable_mib is not None:
        return device
    return device.model_copy(update={"memory": device.memory.model_copy(update={"usable_mib": allocatable_mib})})


def _node_ecosystem(root: Path, devices: Sequence[Device]) -> Ecosystem:
    for device in devices:
        if device.ecosystem.runtime is not None:
            return device.ecosystem
    # The library did not answer; the loaded kernel module says which driver it belongs to.
    version = read_text(root / "proc/driver/nvidia/version") or ""
    module = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", version)
    return Ecosystem(runtime="cuda", driver_version=module[1]) if module else Ecosystem()


def _is_plainly_absent(report: ProbeReport, devices: Sequence[Device]) -> bool:
    """No driver where there is no device either: a machine without this vendor's accelerators, not an error."""
    without = report.outcome in (ProbeOutcome.NO_LIBRARY, ProbeOutcome.NO_DRIVER)
    return without and not any(device.vendor == report.vendor for device in devices)


def _still(inventory: NodeInventory) -> NodeInventory:
    still = [
        device.model_copy(update={"fields": {name: _state_only(name, field) for name, field in device.fields.items()}})
        for device in inventory.devices
    ]
    return inventory.model_copy(
        update={
            "devices": tuple(still),
            "storage": tuple(disk.model_copy(update={"free_gib": None}) for disk in inventory.storage),
            "cpu": inventory.cpu.model_copy(update={"frequency_mhz": None, "numa": ()}),
        }
    )


def _state_only(name: str, field: Reading) -> Reading:
    return Reading(state=field.state) if name in _MOVING else field
