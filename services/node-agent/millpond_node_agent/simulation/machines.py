"""The hardware of a simulated node: an inventory made from its description and the catalogue, and signals of its tasks.

What the catalogue does not know stays unknown, and so does what nobody simulates (power, temperature).
"""

from collections.abc import Callable, Sequence

from millpond_contracts.catalogue import CatalogueEntry
from millpond_contracts.ecosystem import Ecosystem
from millpond_contracts.fleets import NodeEntry, find_catalogue_entry
from millpond_contracts.partitions import PARTITION_MODE, Geometry, find_geometry, offered_geometry
from millpond_contracts.resources import (
    SIMULATED_TAINT,
    ComputeRates,
    Cpu,
    Device,
    DeviceHealth,
    DeviceKind,
    DeviceMemory,
    Isolation,
    NodeInventory,
    Partitioning,
    Signal,
    Taint,
    Topology,
)
from millpond_node_agent.hardware.inventory import is_changed
from millpond_node_agent.hardware.signals import NODE_TARGET
from millpond_node_agent.runtimes.boottime import boot_id, monotonic_ms
from millpond_node_agent.simulation.acting import PROGRESS, Act, progress_at, value_at

_CPU = "cpu_utilization_ratio"
_MEMORY = "memory_utilization_ratio"
_MEMORY_USED = "memory_used_mib"
_UTILIZATION = "utilization_ratio"
# Curves of these names say how a task uses its devices or the node; all others are the task's own signals.
_SHARED = frozenset({_CPU, _UTILIZATION})


class SimulatedHardware:
    """The hardware of one simulated node; the tasks that run there say how busy it is."""

    def __init__(self, entry: NodeEntry, hostname: str, tag: str, running: Callable[[], list[Act]]) -> None:
        """Describe the machine; `tag` makes its devices unlike those of any other."""
        self._described = build_inventory(entry, hostname, tag)
        self._running = running
        self.inventory: NodeInventory | None = None

    def geometries(self) -> dict[str, Geometry]:
        """How its devices in partition mode are divided, by identity."""
        divided = (device for device in self._described.devices if device.partitioning.current == PARTITION_MODE)
        return {device.identity: offered_geometry(device.model_key, device.partitioning.profiles) for device in divided}

    async def probe(self) -> bool:
        """Take the inventory; it changes only with the boot."""
        current = self._described.model_copy(update={"boot_id": boot_id()})
        changed = is_changed(self.inventory, current)
        self.inventory = current
        return changed

    async def sample(self) -> list[Signal]:
        """One sample of the node, its devices and its tasks."""
        now, running = monotonic_ms(), self._running()
        inventory = self._described
        values = node_signals(inventory, running, now)
        for device in inventory.devices:
            values += device_signals(device, running, now)
        for act in running:
            values += task_signals(act, now)
        # Not validated: thousands a second are made here, of values that are right.
        return [
            Signal.model_construct(target=target, name=name, at_monotonic_ms=now, value=value)
            for target, name, value in values
        ]


SignalValue = tuple[str, str, float | None]


def build_inventory(entry: NodeEntry, hostname: str, tag: str) -> NodeInventory:
    """What the node reports of itself."""
    row = None if entry.model is None or entry.unlisted else find_catalogue_entry(entry.model, entry.vendor)
    ecosystem = entry.ecosystem or Ecosystem(runtime=None if row is None else row.ecosystem)
    cores = max(1, entry.cpu_milli // 1000)
    return NodeInventory(
        boot_id=boot_id(),
        hostname=hostname,
        os="simulated",
        cpu=Cpu(arch=entry.arch, logical=cores),
        memory_mib=entry.memory_mib,
        allocatable_cpu_milli=entry.cpu_milli,
        allocatable_memory_mib=entry.memory_mib,
        devices=tuple(_device(entry, row, ecosystem, tag, index) for index in range(entry.device_count)),
        ecosystem=ecosystem,
        topology=Topology(region=entry.region, zone=entry.zone, rack=entry.rack),
        labels=entry.labels,
        taints=(Taint(key=SIMULATED_TAINT),),
        isolation=Isolation.USER,  # nothing runs there that could see anything
    )


def node_signals(inventory: NodeInventory, running: Sequence[Act], now_ms: int) -> list[SignalValue]:
    """Load of processor and memory as real nodes report it."""
    used = sum(act.terms.cpu_milli * value_at(act, _CPU, 1.0, now_ms) for act in running)
    memory = float(sum(act.terms.memory_mib for act in running))
    return [
        (NODE_TARGET, _CPU, min(used / inventory.allocatable_cpu_milli, 1.0)),
        (NODE_TARGET, _MEMORY, min(memory / inventory.memory_mib, 1.0)),
        (NODE_TARGET, _MEMORY_USED, memory),
    ]


def device_signals(device: Device, running: Sequence[Act], now_ms: int) -> list[SignalValue]:
    """Load of one device: each task uses of its share what its curve says, by default all of it."""
    total = device.memory.usable_mib
    busy, held = 0.0, 0.0
    for act in running:
        for grant in act.terms.devices:
            if grant.identity == device.identity:
                share = grant.milli / 1000
                busy += share * value_at(act, _UTILIZATION, 1.0, now_ms)
                held += grant.memory_mib if grant.memory_mib is not None else share * (total or 0)
    return [
        (device.identity, _UTILIZATION, min(busy, 1.0)),
        (device.identity, _MEMORY, None if not total else min(held / total, 1.0)),
        (device.identity, _MEMORY_USED, None if total is None else held),
    ]


def task_signals(act: Act, now_ms: int) -> list[SignalValue]:
    """The progress of a task and the curves that are its own."""
    own = [name for name in act.simulation.signals if name not in _SHARED and name != PROGRESS]
    target = act.terms.allocation_id
    return [
        (target, PROGRESS, value_at(act, PROGRESS, progress_at(act, now_ms), now_ms)),
        *((target, name, value_at(act, name, 0.0, now_ms)) for name in own),
    ]


def _device(entry: NodeEntry, row: CatalogueEntry | None, ecosystem: Ecosystem, tag: str, index: int) -> Device:
    vendor = row.vendor if row is not None else entry.vendor
    assert vendor is not None
    uuid = f"SIM-{tag}-{index}"
    memory = None if row is None else row.device_memory_mib
    return Device(
        identity=f"{vendor}/{uuid}",
        index=index,
        kind=DeviceKind.GPU if row is None else row.kind,
        vendor=vendor,
        model=entry.model,
        model_key=None if row is None else row.model,
        uuid=uuid,
        compute=ComputeRates() if row is None else row.promised_rates,
        memory=DeviceMemory(
            nominal_mib=memory,
            usable_mib=memory,
            bandwidth_gbs=None if row is None or row.confidence == "low" else row.memory_bandwidth_gbs,
            unified=row is not None and row.unified_memory,
        ),
        partitioning=_partitioning(entry, row),
        ecosystem=ecosystem,
        health=DeviceHealth.HEALTHY,
    )


def _partitioning(entry: NodeEntry, row: CatalogueEntry | None) -> Partitioning:
    """What the devices are divided into: all profiles of their model, where the description says so."""
    geometry = None if row is None or not entry.partitioned else find_geometry(row.model)
    if geometry is None:
        return Partitioning()
    names = tuple(profile.name for profile in geometry.profiles)
    return Partitioning(modes=(PARTITION_MODE,), profiles=names, current=PARTITION_MODE)
