"""A node's devices: what the newest inventory says, merged with what was known before, and how others see them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from millpond_contracts.bodies.nodes import DeviceView
from millpond_contracts.ids import DeviceId
from millpond_contracts.partitions import PARTITION_MODE, Geometry, offered_geometry
from millpond_contracts.resources import Device, DeviceHealth
from millpond_registry.domain.flavors import catalogue_entry, model_key_of

MIB_PER_GIB = 1024
MISSING_REASON = "not in the node's newest inventory"
_RATES = ("fp32_tflops", "fp16_tflops", "bf16_tflops", "fp8_tflops", "int8_tops")


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """One device of a node. `id` never changes for an identity; a device that is no longer reported stays, as lost."""

    id: DeviceId
    report: Device
    flavor: str
    health: DeviceHealth
    health_reason: str | None
    reported: bool
    last_seen_at: datetime


def merge_devices(
    known: Iterable[KnownDevice], reported: Iterable[Device], flavor_of: Callable[[Device], str], now: datetime
) -> list[KnownDevice]:
    """The devices after a complete inventory: the reported ones, and known ones that it lacks, as lost.

    One lost device changes nothing about its neighbours, and keeps its own identity for when it comes back.
    """
    by_identity = {device.report.identity: device for device in known}
    merged: dict[str, KnownDevice] = {}
    for report in reported:
        before = by_identity.pop(report.identity, None)
        merged[report.identity] = KnownDevice(
            id=before.id if before else DeviceId.new(),
            report=report,
            flavor=flavor_of(report),
            health=report.health,
            health_reason=report.health_reason,
            reported=True,
            last_seen_at=now,
        )
    for identity, device in by_identity.items():
        merged[identity] = replace(device, health=DeviceHealth.LOST, health_reason=MISSING_REASON, reported=False)
    return list(merged.values())


def changed_health(before: Iterable[KnownDevice], after: Iterable[KnownDevice]) -> tuple[DeviceId, ...]:
    """The devices, known before, whose health or its reason is another one now."""
    old = {device.id: (device.health, device.health_reason) for device in before}
    return tuple(
        device.id for device in after if device.id in old and old[device.id] != (device.health, device.health_reason)
    )


def device_view(device: KnownDevice) -> DeviceView:
    """The device as others see it: what it offers, with the catalogue's figures where the machine told none."""
    report, divided = device.report, geometry_of(device.report)
    return DeviceView(
        device_id=device.id,
        identity=report.identity,
        index=report.index,
        uuid=report.uuid,
        kind=report.kind,
        vendor=report.vendor,
        model=report.model,
        model_key=model_key_of(report),
        flavor=device.flavor,
        memory_mib=report.memory.usable_mib,
        attributes=_attributes(report),
        ecosystem=report.ecosystem,
        partition_modes=report.partitioning.modes,
        partition_mode=None if divided is None else PARTITION_MODE,
        profiles=() if divided is None else tuple(profile.name for profile in divided.profiles),
        slot=report.slot,
        health=device.health,
        health_reason=device.health_reason,
    )


def geometry_of(report: Device) -> Geometry | None:
    """What a device in partition mode is given out in; None = whole or in shares."""
    if report.partitioning.current != PARTITION_MODE:
        return None
    return offered_geometry(model_key_of(report), report.partitioning.profiles)


def _attributes(report: Device) -> dict[str, float]:
    """Rates, memory and power by name; what neither machine nor catalogue tells is left out, never zero."""
    entry = catalogue_entry(report)
    promised = entry.promised_rates if entry else None
    found: dict[str, float | None] = {}
    for rate in _RATES:
        measured = getattr(report.compute, rate)
        found[rate] = measured if measured is not None or promised is None else getattr(promised, rate)
    found["memory_gib"] = None if report.memory.usable_mib is None else report.memory.usable_mib / MIB_PER_GIB
    bandwidth = report.memory.bandwidth_gbs
    found["memory_bandwidth_gbs"] = bandwidth if bandwidth is not None or entry is None else entry.memory_bandwidth_gbs
    found["interconnect_gbs"] = entry.interconnect_gbs if entry else None
    found["power_limit_w"] = report.power_limit_w
    return {name: float(value) for name, value in found.items() if value is not None}
