"""Second-by-second signals: the node's load from /proc, the devices' from the vendors' samples.

What is not known is sent as null, never as zero: a device in MIG mode has no utilisation, and nobody may scale down on
it.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from millpond_contracts.resources import Device, FieldState, Reading, Signal
from millpond_node_agent.hardware.nvidia_device import SIGNAL_READINGS
from millpond_node_agent.hardware.sysfiles import read_table, read_text

_KIB_PER_MIB = 1024
NODE_TARGET = "node"


class NodeSampler:
    """The node's processor and memory load; utilisation counts from one sample to the next."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._last = self._cpu_ticks()

    def sample(self, at_monotonic_ms: int) -> list[Signal]:
        """`cpu_utilization_ratio` and `memory_utilization_ratio` (0 to 1) and `memory_used_mib` of the machine."""
        meminfo = read_table(self._root / "proc/meminfo")
        total, available = meminfo.get("MemTotal"), meminfo.get("MemAvailable")
        used = None if total is None or available is None else max(0, total - available)
        values = {
            "cpu_utilization_ratio": self._cpu_utilization(),
            "memory_utilization_ratio": None if used is None or not total else used / total,
            "memory_used_mib": None if used is None else used / _KIB_PER_MIB,
        }
        return [
            Signal(target=NODE_TARGET, name=name, at_monotonic_ms=at_monotonic_ms, value=value)
            for name, value in values.items()
        ]

    def _cpu_utilization(self) -> float | None:
        last, self._last = self._last, self._cpu_ticks()
        if last is None or self._last is None:
            return None
        total = self._last[1] - last[1]
        # Ticks of idle time may run backwards by a few; too little time says nothing.
        return min(max((self._last[0] - last[0]) / total, 0.0), 1.0) if total > 0 else None

    def _cpu_ticks(self) -> tuple[int, int] | None:
        """Busy and total ticks since the boot; waiting for a disk is idle."""
        first = (read_text(self._root / "proc/stat") or "").partition("\n")[0].split()
        if len(first) < 6 or first[0] != "cpu" or not all(field.isdigit() for field in first[1:]):
            return None
        ticks = [int(field) for field in first[1:9]]  # guest time is counted in user time already
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def device_signals(
    devices: Sequence[Device], samples: Mapping[str, Mapping[str, Reading]], at_monotonic_ms: int
) -> list[Signal]:
    """Every signal of every device, null where its sample has no value.

    Args:
        samples: device identity -> signal name -> reading; a device that did not answer is missing.
    """
    return [
        Signal(
            target=device.identity,
            name=name,
            at_monotonic_ms=at_monotonic_ms,
            value=_finite(samples.get(device.identity, {}).get(name)),
        )
        for device in devices
        for name in SIGNAL_READINGS
    ]


def _finite(reading: Reading | None) -> float | None:
    if reading is None or reading.state is not FieldState.OK or not isinstance(reading.value, int | float):
        return None
    return float(reading.value) if math.isfinite(reading.value) else None
