"""What the registry's lists show of devices beside the node's own view: place, conditions, the catalogue."""

from typing import Literal

from millpond_contracts.bodies.nodes import DeviceView
from millpond_contracts.bodies.shapes import Outgoing
from millpond_contracts.ids import NodeId, PoolId
from millpond_contracts.quantities import Instant


class DeviceListing(DeviceView):
    """A device with its place. `reported` is false while the node's newest inventory lacks the device."""

    node_id: NodeId
    node_name: str
    pool_id: PoolId
    reported: bool
    last_seen_at: Instant


class ConditionView(Outgoing):
    """A fact about a node or device that an agent opened and, when `closed_at` is set, closed."""

    target: str
    name: str
    evidence: str
    opened_at: Instant
    closed_at: Instant | None


class AcceleratorView(Outgoing):
    """One model of the catalogue. Rates are dense; null = not known."""

    vendor: str
    model: str
    architecture: str | None
    memory_gib: float | None
    memory_type: str | None
    memory_bandwidth_gbs: float | None
    fp32_tflops: float | None
    fp16_tflops: float | None
    bf16_tflops: float | None
    fp8_tflops: float | None
    int8_tops: float | None
    interconnect: str | None
    interconnect_gbs: float | None
    tdp_w: float | None
    pcie_generation: int | None
    form: str | None
    release_year: int | None
    ecosystem: str | None
    confidence: Literal["high", "medium", "low"]
    source: str
