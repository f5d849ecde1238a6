"""What an agent and the scheduler say to one another: assignments by long poll, reports, log chunks.

Clocks: the agent sends its `boot_id` and monotonic milliseconds; the server turns them into server time by the last
exchange it acknowledged. Every poll renews the node's lease.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StrictInt

from millpond_contracts.bodies.allocations import DeviceShare, EndReason
from millpond_contracts.bodies.groups import SimulateSpec
from millpond_contracts.bodies.shapes import Incoming, Outgoing
from millpond_contracts.ids import AllocationId, JobId, TaskId, TenantId
from millpond_contracts.quantities import Instant

Monotonic = Annotated[
    int, Field(strict=True, ge=0, le=2**53, description="milliseconds of the machine's monotonic clock")
]


class HeldAllocation(Incoming):
    """An allocation that the agent has work or remains of."""

    allocation_id: AllocationId
    epoch: StrictInt = Field(ge=0, le=2**53)


class PollRequest(Incoming):
    """One long poll. `held` is everything on the machine, so that the server can re-adopt or order a stop."""

    boot_id: str = Field(min_length=1, max_length=64)
    sent_monotonic_ms: Monotonic
    held: Annotated[list[HeldAllocation], Field(max_length=4096)] = Field(default_factory=list)
    wait_seconds: float = Field(10.0, ge=0, le=30)


class Assignment(Outgoing):
    """Start this. Repeated until the agent reports on it; starting is idempotent by allocation id and epoch."""

    allocation_id: AllocationId
    epoch: int
    job_id: JobId
    task_id: TaskId
    tenant_id: TenantId
    group: str
    index: int
    attempt: int
    command: tuple[str, ...]
    image: str | None
    env: dict[str, str]
    cpu_milli: int
    memory_mib: int
    devices: tuple[DeviceShare, ...]
    stop_grace_seconds: int
    time_limit_seconds: int | None
    simulate: SimulateSpec | None = None


class StopOrder(Outgoing):
    """Stop this gracefully, then by force after `grace_seconds`; `reason` is passed back in the report."""

    allocation_id: AllocationId
    epoch: int
    grace_seconds: int
    reason: EndReason


class PollAnswer(Outgoing):
    """Orders for the node. The lease runs `lease_seconds` from the *sending* of the poll that this answers."""

    server_at: Instant
    lease_seconds: float
    assignments: list[Assignment] = Field(default_factory=list)
    stops: list[StopOrder] = Field(default_factory=list)


class ReportKind(StrEnum):
    """What happened on the machine."""

    STARTING = "starting"
    ACTIVE = "active"
    STOPPING = "stopping"
    RELEASED = "released"
    REFUSED = "refused"


class TaskReport(Incoming):
    """One fact, idempotent by (allocation, sequence). `released` is sent only when the process group is empty.

    A stale epoch is answered per report in `rejected` with `scheduler.allocation.epoch_stale`, never for the batch.
    """

    allocation_id: AllocationId
    epoch: StrictInt = Field(ge=0, le=2**53)
    sequence: StrictInt = Field(ge=1, le=2**53)
    kind: ReportKind
    boot_id: str = Field(min_length=1, max_length=64)
    at_monotonic_ms: Monotonic
    exit_code: StrictInt | None = Field(None, ge=-255, le=255)
    reason: EndReason | None = None
    message: str | None = Field(None, max_length=2000)


class ReportBatch(Incoming):
    """Reports in order, oldest first. `sent_monotonic_ms` belongs to the sender's present boot."""

    boot_id: str = Field(min_length=1, max_length=64)
    sent_monotonic_ms: Monotonic
    reports: Annotated[list[TaskReport], Field(min_length=1, max_length=500)]


class RejectedReport(Outgoing):
    allocation_id: AllocationId
    sequence: int
    code: str
    detail: str


class ReportAnswer(Outgoing):
    """All reports not in `rejected` are durable; rejected ones must not be sent again."""

    server_at: Instant
    accepted: int
    rejected: list[RejectedReport] = Field(default_factory=list)


class LogChunk(Incoming):
    """Bytes of one attempt's log from `offset`, UTF-8 with replacement; at most 256 KiB. Idempotent by offset."""

    allocation_id: AllocationId
    epoch: StrictInt = Field(ge=0, le=2**53)
    offset: StrictInt = Field(ge=0, le=2**53)
    data_base64: str = Field(max_length=349_528)
    ended: bool = False
    cut: bool = False


class LogAnswer(Outgoing):
    """`next_offset` is where the server's copy ends; the agent continues there."""

    next_offset: int
