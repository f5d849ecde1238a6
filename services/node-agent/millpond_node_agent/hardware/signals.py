"""Second-by-second signals: the node's load from its counters, the devices' from the vendors' samples.

What is not known is sent as null, never as zero: a device in MIG mode has no utilisation, and nobody may scale down on
it.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from millpond_contracts.resources import Device, FieldState, Reading, Signal
from millpond_node_agent.hardware.limits import read_group_cpu_seconds, read_group_memory_mib, read_limits
from millpond_node_agent.hardware.nvidia_device import SIGNAL_READINGS
from millpond_node_agent.hardware.sysfiles import read_table, read_text

_KIB_PER_MIB = 1024
NODE_TARGET = "node"


class NodeSampler:
    """The node's processor and memory load; utilisation counts from one sample to the next.

    Where a control group limits what may be used, as in a container on a large host, load is the group's against its
    limit: the host's would hide that the container is full.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._limits = read_limits(root)
        self._last = self._cpu_use()

    def sample(self, at_monotonic_ms: int) -> list[Signal]:
        """`cpu_utilization_ratio` and `memory_utilization_ratio` (0 to 1) and `memory_used_mib` of the node."""
        used_mib, total_mib = self._memory()
        values = {
            "cpu_utilization_ratio": self._cpu_utilization(),
            "memory_utilization_ratio": None if used_mib is None or not total_mib else min(used_mib / total_mib, 1.0),
            "memory_used_mib": used_mib,
        }
        return [
            Signal(target=NODE_TARGET, name=name, at_monotonic_ms=at_monotonic_ms, value=value)
            for name, value in values.items()
        ]

    def _memory(self) -> tuple[float | None, float | None]:
        meminfo = read_table(self._root / "proc/meminfo")
        total, available = meminfo.get("MemTotal"), meminfo.get("MemAvailable")
        limit, folder = self._limits.memory_mib, self._limits.memory_folder
        if limit is not None and folder is not None and (total is None or limit < total // _KIB_PER_MIB):
            return read_group_memory_mib(folder), limit
        if total is None or available is None:
            return None, None
        return max(0, total - available) / _KIB_PER_MIB, total / _KIB_PER_MIB

    def _cpu_utilization(self) -> float | None:
        last, self._last = self._last, self._cpu_use()
        if last is None or self._last is None:
            return None
        whole = self._last[1] - last[1]
        # Ticks of idle time may run backwards by a few; too little time says nothing.
        return min(max((self._last[0] - last[0]) / whole, 0.0), 1.0) if whole > 0 else None

    def _cpu_use(self) -> tuple[float, float] | None:
        """What was used and what could have been, both since any fixed instant."""
        quota, folder = self._limits.cpu_milli, self._limits.cpu_folder
        if quota is None or folder is None:
            return self._cpu_ticks()
        used = read_group_cpu_seconds(folder)
        return None if used is None else (used, self._clock() * quota / 1000)

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
