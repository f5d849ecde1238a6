"""A device record from NVIDIA's readings, whichever of NVML and nvidia-smi gave them.

Both sources name their readings alike, so what a device offers and how healthy it is are decided once, here.
"""

from collections.abc import Mapping

from millpond_contracts.catalogue import CatalogueEntry, find_model
from millpond_contracts.ecosystem import Ecosystem
from millpond_contracts.partitions import PARTITION_MODE, find_geometry
from millpond_contracts.resources import (
    ComputeRates,
    Device,
    DeviceHealth,
    DeviceMemory,
    FieldState,
    Link,
    Partitioning,
    Reading,
    Slot,
)
from millpond_node_agent.hardware.report import clip, number_of, text_of

VENDOR = "nvidia"

# Readings that move from second to second; the others change only when the machine does.
SIGNAL_READINGS = ("utilization_ratio", "memory_utilization_ratio", "memory_used_mib", "power_w", "temperature_c")

# Without these a device cannot be named or sized, so it cannot be offered.
_NEEDED = ("uuid", "pci", "name")


def build_device(
    index: int, readings: Mapping[str, Reading], links: tuple[Link, ...] = (), ecosystem: Ecosystem | None = None
) -> Device:
    """The record of the device with NVIDIA's index `index`.

    Args:
        readings: by name: uuid, pci, name, memory_total_mib, memory_reserved_mib, ecc_mode, mig_mode, mig_max_count,
            mig_profiles (`compute:memory slices`, a comma between), power_limit_w, ecc_uncorrectable_count,
            row_remap_pending, row_remap_failure, recovery_action, fabric_state, those of `SIGNAL_READINGS` and others
            for people; any may be missing or without a value.
    """
    name, uuid, pci = (text_of(readings.get(field)) for field in ("name", "uuid", "pci"))
    total = number_of(readings.get("memory_total_mib"))
    entry = find_model(VENDOR, name, None if total is None else int(total))
    health, reason = judge_health(readings)
    return Device(
        identity=identity_of(index, uuid, pci),
        index=index,
        vendor=VENDOR,
        model=name,
        model_key=entry.model if entry else None,
        uuid=uuid,
        slot=Slot(pci=pci),
        compute=entry.promised_rates if entry else ComputeRates(),
        memory=_memory(readings, entry),
        links=links,
        power_limit_w=number_of(readings.get("power_limit_w")),
        partitioning=_partitioning(readings, entry),
        ecosystem=ecosystem or Ecosystem(),
        health=health,
        health_reason=reason,
        fields=dict(readings),
    )


def identity_of(index: int, uuid: str | None, pci: str | None) -> str:
    """The identity that lasts longest among those known: the vendor's UUID, the slot, at worst the index."""
    if uuid:
        return f"{VENDOR}/{uuid}"[:128]
    return f"pci/{pci}" if pci else f"{VENDOR}/index-{index}"


def judge_health(readings: Mapping[str, Reading]) -> tuple[DeviceHealth, str | None]:
    """Whether the device may be offered, and why not.

    A device that says it is lost, or that the driver or its memory wants repaired, is out. One that answers in part is
    unknown: nothing new is placed on it and what runs there goes on.
    """
    lost = [name for name, reading in readings.items() if reading.state is FieldState.LOST]
    if lost:
        return DeviceHealth.LOST, clip(f"the driver says that the GPU is lost (reading {lost[0]})")
    if reason := _wanted_repair(readings):
        return DeviceHealth.UNHEALTHY, reason
    for name in _NEEDED:
        reading = readings.get(name)
        if reading is None or reading.state is not FieldState.OK:
            return DeviceHealth.UNKNOWN, clip(f"{name} not readable: {reading.error if reading else 'no answer'}")
    memory = readings.get("memory_total_mib")
    if memory is None or memory.state not in (FieldState.OK, FieldState.UNSUPPORTED, FieldState.NOT_APPLICABLE):
        return DeviceHealth.UNKNOWN, clip(f"memory not readable: {memory.error if memory else 'no answer'}")
    return _degradation(readings)


def _wanted_repair(readings: Mapping[str, Reading]) -> str | None:
    action = text_of(readings.get("recovery_action"))
    if action not in (None, "none"):
        return f"driver_asks_for_{action}"
    if number_of(readings.get("row_remap_failure")):
        return "row_remap_failure: the memory has no spare rows left; replace the device"
    errors = number_of(readings.get("ecc_uncorrectable_count"))
    if errors:
        return f"ecc_uncorrectable: {errors:.0f} since the driver was loaded; reset the device"
    for name, reading in readings.items():
        if reading.error and "requires restart" in reading.error:
            return clip(f"reset_required (reading {name})")
    return None


def _degradation(readings: Mapping[str, Reading]) -> tuple[DeviceHealth, str | None]:
    if number_of(readings.get("row_remap_pending")):
        return DeviceHealth.DEGRADED, "row_remap_pending: reset the device when it is idle"
    fabric = text_of(readings.get("fabric_state"))
    if fabric not in (None, "completed", "not_supported"):
        # Usable alone; across devices the communication library would silently fall back to a slow path.
        return DeviceHealth.DEGRADED, f"fabric_{fabric}"
    return DeviceHealth.HEALTHY, None


def _memory(readings: Mapping[str, Reading], entry: CatalogueEntry | None) -> DeviceMemory:
    total, reserved = number_of(readings.get("memory_total_mib")), number_of(readings.get("memory_reserved_mib"))
    whole = readings.get("memory_total_mib")
    # Parts that share the CPU's memory have none of their own to report (GB10, Jetson): not zero, and not a fault.
    unanswered = whole is not None and whole.state in (FieldState.UNSUPPORTED, FieldState.NOT_APPLICABLE)
    ecc = text_of(readings.get("ecc_mode"))
    return DeviceMemory(
        nominal_mib=entry.device_memory_mib if entry else None,
        usable_mib=None if total is None else int(total - (reserved or 0)),
        bandwidth_gbs=entry.memory_bandwidth_gbs if entry and entry.confidence != "low" else None,
        unified=unanswered or bool(entry and entry.unified_memory),
        ecc=None if ecc is None else ecc == "enabled",
    )


def _partitioning(readings: Mapping[str, Reading], entry: CatalogueEntry | None) -> Partitioning:
    mig = text_of(readings.get("mig_mode"))
    count = number_of(readings.get("mig_max_count"))
    # A device in MIG mode runs nothing as a whole, so the software modes do not apply to it.
    modes = ("mig",) if mig == "enabled" else ("mps", "timeslice") if mig is None else ("mig", "mps", "timeslice")
    geometry = find_geometry(entry.model) if entry and mig == "enabled" else None
    made = (text_of(readings.get("mig_profiles")) or "").split(",")
    return Partitioning(
        modes=modes,
        max_count=int(count) if count and mig else None,
        profiles=tuple(
            profile.name
            for profile in (geometry.profiles if geometry else ())
            if f"{profile.compute_slices}:{profile.slices}" in made
        ),
        current=PARTITION_MODE if mig == "enabled" else None,
    )
