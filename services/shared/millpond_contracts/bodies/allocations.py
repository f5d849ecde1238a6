"""What tasks hold: an allocation is one attempt of a task on one node."""

from enum import StrEnum

from pydantic import Field

from millpond_contracts.bodies.shapes import Outgoing
from millpond_contracts.ids import (
    AllocationId,
    DeviceId,
    JobId,
    NodeId,
    PoolId,
    PriceVersionId,
    ProjectId,
    TaskId,
    TenantId,
    VirtualPoolId,
)
from millpond_contracts.quantities import (
    Instant,
)


class AllocationState(StrEnum):
    BOUND = "bound"
    ACTIVE = "active"
    RELEASING = "releasing"
    RELEASED = "released"


class EndReason(StrEnum):
    """Why an attempt, an allocation or a job ended: a closed list."""

    COMPLETED = "completed"
    EXIT_CODE = "exit_code"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    START_FAILED = "start_failed"
    REFUSED = "refused"
    NODE_LOST = "node_lost"
    NODE_RESTARTED = "node_restarted"
    DRAINED = "drained"
    PREEMPTED = "preempted"
    RECLAIMED = "reclaimed"
    GANG_STOPPED = "gang_stopped"
    DEPENDENCY_FAILED = "dependency_failed"
    MOVED = "moved"
    RETRIES_EXHAUSTED = "retries_exhausted"


# Ends that the provider caused: what was still held after the stop request is waived (decision on metering).
PROVIDER_ENDS = frozenset(
    {
        EndReason.NODE_LOST,
        EndReason.NODE_RESTARTED,
        EndReason.DRAINED,
        EndReason.PREEMPTED,
        EndReason.RECLAIMED,
        EndReason.MOVED,
    }
)


class PartitionShare(Outgoing):
    """A hardware partition of a device: its profile, and the memory slices that are its own, from `start` on."""

    profile: str
    start: int
    slices: int


class DeviceShare(Outgoing):
    """A share of one device held by an allocation. `memory_mib` null = the whole memory or not bounded.

    With `partition` it is a hardware partition, and `milli` is what its memory slices count of the device.
    """

    device_id: DeviceId
    identity: str
    vendor: str
    index: int
    uuid: str | None = None
    flavor: str
    milli: int
    memory_mib: int | None = None
    partition: PartitionShare | None = None


class AllocationView(Outgoing):
    """Devices, CPU and memory bound to one attempt of a task on one node.

    `epoch` fences the agent; `generation` rises with every change. `waived_from` = when the provider asked it to stop.
    """

    allocation_id: AllocationId
    job_id: JobId
    job_name: str
    task_id: TaskId
    group: str
    index: int
    attempt: int
    tenant_id: TenantId
    project_id: ProjectId | None
    virtual_pool_id: VirtualPoolId
    pool_id: PoolId
    node_id: NodeId
    cpu_milli: int
    memory_mib: int
    devices: tuple[DeviceShare, ...]
    term: str = "on_demand"
    price_version_id: PriceVersionId | None
    labels: dict[str, str] = Field(default_factory=dict)
    state: AllocationState
    epoch: int
    bound_at: Instant
    active_at: Instant | None = None
    stop_requested_at: Instant | None = None
    waived_from: Instant | None = None
    released_at: Instant | None = None
    reason: EndReason | None = None
    exit_code: int | None = None
    generation: int
