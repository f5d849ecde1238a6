"""The description language for machines: one versioned document per node, every measured field with its state.

A number is never invented: what a machine does not tell is null and its field state says why. Units stand in the key.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints, model_validator

from millpond_contracts.ecosystem import Ecosystem
from millpond_contracts.quantities import CpuMilli, Labels, MemoryMib

Text = Annotated[str, StringConstraints(max_length=256)]
Number = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


class FieldState(StrEnum):
    """Why a field has, or has not, a value."""

    OK = "ok"
    NOT_APPLICABLE = "not_applicable"
    UNSUPPORTED = "unsupported"
    NO_PERMISSION = "no_permission"
    UNREADABLE = "unreadable"
    LOST = "lost"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Reading(_Record):
    """One field as read from the machine: its state, its value when `ok`, and the error otherwise."""

    state: FieldState
    value: float | Annotated[str, StringConstraints(max_length=4096)] | None = None
    error: Text | None = None


class DeviceKind(StrEnum):
    GPU = "gpu"
    NPU = "npu"
    FPGA = "fpga"
    DPU = "dpu"


class Slot(_Record):
    """Where a device sits. `pci` has a four-digit domain: `0000:18:00.0`."""

    pci: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")] | None = None
    board: Text | None = None
    die: StrictInt | None = Field(None, ge=0, le=64)
    numa: StrictInt | None = Field(None, ge=0, le=4096)


class ComputeRates(_Record):
    """Dense rates in TFLOPS (int8 in TOPS) by precision; null = not known."""

    fp32_tflops: Number | None = None
    fp16_tflops: Number | None = None
    bf16_tflops: Number | None = None
    fp8_tflops: Number | None = None
    int8_tops: Number | None = None


class DeviceMemory(_Record):
    """`usable_mib` is what is offered; `nominal_mib` is only for people."""

    nominal_mib: MemoryMib | None = None
    usable_mib: MemoryMib | None = None
    bandwidth_gbs: Number | None = None
    unified: bool = False
    ecc: bool | None = None


class Link(_Record):
    """A connection to a peer device or to the fabric."""

    kind: Text
    peer: Text | None = None
    bandwidth_gbs: Number | None = None
    state: Text | None = None


class Partitioning(_Record):
    """How a device can be divided: modes such as `mig`, `mps`, `timeslice`; the largest count; the profiles offered."""

    modes: Annotated[tuple[Text, ...], Field(max_length=16)] = ()
    max_count: StrictInt | None = Field(None, ge=1, le=1024)
    profiles: Annotated[tuple[Text, ...], Field(max_length=64)] = ()
    current: Text | None = None


class DeviceHealth(StrEnum):
    """`unknown` stops placing and keeps running work; `lost` = plugged in by PCI, silent to the vendor's tool."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"
    UNHEALTHY = "unhealthy"
    LOST = "lost"

    @property
    def takes_work(self) -> bool:
        """Whether new work may start on a device in this health."""
        return self in (DeviceHealth.HEALTHY, DeviceHealth.DEGRADED)


class Device(_Record):
    """One accelerator. `identity` is stable over reboots: `nvidia/GPU-…`, else `pci/<address>`."""

    identity: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    index: StrictInt = Field(ge=0, le=1023, description="the vendor's index now; may change between boots")
    kind: DeviceKind = DeviceKind.GPU
    vendor: Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,32}$")]
    model: Text | None = None
    model_key: Text | None = Field(None, description="the model's name in the accelerator catalogue")
    uuid: Text | None = None
    slot: Slot = Slot()
    compute: ComputeRates = ComputeRates()
    memory: DeviceMemory = DeviceMemory()
    links: Annotated[tuple[Link, ...], Field(max_length=64)] = ()
    power_limit_w: Number | None = None
    partitioning: Partitioning = Partitioning()
    ecosystem: Ecosystem = Ecosystem()
    health: DeviceHealth = DeviceHealth.UNKNOWN
    health_reason: Text | None = None
    fields: Annotated[dict[Text, Reading], Field(max_length=128)] = Field(default_factory=dict)


class NumaCell(_Record):
    id: StrictInt = Field(ge=0, le=4096)
    cpus: Text
    memory_mib: MemoryMib | None = None


class Cpu(_Record):
    """The processors of a node; `logical` = what the kernel schedules on."""

    arch: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,32}$")]
    model: Text | None = None
    sockets: StrictInt | None = Field(None, ge=1, le=1024)
    cores: StrictInt | None = Field(None, ge=1, le=65536)
    logical: StrictInt = Field(ge=1, le=65536)
    frequency_mhz: Number | None = None
    numa: Annotated[tuple[NumaCell, ...], Field(max_length=1024)] = ()


class Storage(_Record):
    id: Text
    kind: Text | None = None
    capacity_gib: Number | None = None
    free_gib: Number | None = None
    read_iops: Number | None = None
    write_iops: Number | None = None
    latency_us: Number | None = None
    throughput_gbs: Number | None = None
    durability: Text | None = None
    shared: bool = False


class Network(_Record):
    id: Text
    kind: Text | None = None
    bandwidth_gbs: Number | None = None
    latency_us: Number | None = None
    throughput_gbs: Number | None = None
    rdma: bool | None = None
    state: Text | None = None


class Topology(_Record):
    """Where a node stands; from wide to narrow. Racks and interconnect domains are told apart by zone."""

    region: Text | None = None
    zone: Text | None = None
    rack: Text | None = None
    interconnect_domain: Text | None = None


class TopologyLevel(StrEnum):
    """The levels of a topology, from wide to narrow; `node` is each one by itself."""

    REGION = "region"
    ZONE = "zone"
    RACK = "rack"
    INTERCONNECT_DOMAIN = "interconnect_domain"
    NODE = "node"


def place_of(topology: Topology, labels: Mapping[str, str]) -> Topology:
    """Where a node stands by its labels, such as `rack=r7`, and for the rest by what its agent reports."""
    told = {level: labels[level] for level in Topology.model_fields if labels.get(level)}
    return topology.model_copy(update=told) if told else topology


class Taint(_Record):
    """A mark that only requests which tolerate `key` (and `value`, when given) accept."""

    key: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._/-]{0,62}$")]
    value: Text | None = None


SIMULATED_TAINT = "simulated"
"""The taint of every simulated node and of no other; a simulated job tolerates it, and nothing else does."""


class Isolation(StrEnum):
    """How tasks of different tenants are kept apart on a node."""

    NONE = "none"
    USER = "user"
    CONTAINER = "container"


class NodeInventory(_Record):
    """The whole truth about one machine, pushed on change; the server keeps only the newest complete one.

    `allocatable_cpu_milli` and `allocatable_memory_mib` are what jobs may get after the system's own share.
    """

    api_version: Literal["millpond.inventory/v1"] = "millpond.inventory/v1"
    boot_id: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    hostname: Text | None = None
    os: Text | None = None
    kernel: Text | None = None
    cpu: Cpu
    memory_mib: MemoryMib
    allocatable_cpu_milli: CpuMilli
    allocatable_memory_mib: MemoryMib
    devices: Annotated[tuple[Device, ...], Field(max_length=64)] = ()
    storage: Annotated[tuple[Storage, ...], Field(max_length=64)] = ()
    network: Annotated[tuple[Network, ...], Field(max_length=64)] = ()
    ecosystem: Ecosystem = Ecosystem()
    topology: Topology = Topology()
    labels: Labels = Field(default_factory=dict)
    taints: Annotated[tuple[Taint, ...], Field(max_length=32)] = ()
    runtimes: Annotated[tuple[Text, ...], Field(max_length=8)] = ("process",)
    isolation: Isolation = Isolation.NONE
    probe_errors: Annotated[tuple[Text, ...], Field(max_length=32)] = ()


MAX_SAMPLES = 8192
SignalTarget = Annotated[str, StringConstraints(min_length=1, max_length=128)]
SignalName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,64}$")]
SampledAt = Annotated[StrictInt, Field(ge=0, le=2**53)]
SampledValue = Annotated[float, Field(allow_inf_nan=False)] | None


class Signal(_Record):
    """One sample of one target. Missing or not finite means unknown, which is null, never zero.

    `target` is `node`, a device identity, or an allocation id; `at_monotonic_ms` counts from the agent's start.
    """

    target: SignalTarget
    name: SignalName
    at_monotonic_ms: SampledAt
    value: SampledValue


class SignalSeries(_Record):
    """Samples of one signal, as `Signal` says, in the order in which they were taken: a value for each instant.

    The names stand once for all of them: of eight devices sampled each second, a quarter of the bytes.
    """

    target: SignalTarget
    name: SignalName
    at_monotonic_ms: Annotated[tuple[SampledAt, ...], Field(min_length=1, max_length=MAX_SAMPLES)]
    values: Annotated[tuple[SampledValue, ...], Field(min_length=1, max_length=MAX_SAMPLES)]

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len(self.at_monotonic_ms) != len(self.values):
            raise ValueError("at_monotonic_ms and values must have the same length")
        return self


def series_of(signals: Iterable[Signal]) -> list[SignalSeries]:
    """The same samples as series, in the order in which their signals first came."""
    found: dict[tuple[str, str], tuple[list[int], list[float | None]]] = {}
    for signal in signals:
        instants, values = found.setdefault((signal.target, signal.name), ([], []))
        instants.append(signal.at_monotonic_ms)
        values.append(signal.value)
    return [
        SignalSeries(target=target, name=name, at_monotonic_ms=tuple(instants), values=tuple(values))
        for (target, name), (instants, values) in found.items()
    ]
