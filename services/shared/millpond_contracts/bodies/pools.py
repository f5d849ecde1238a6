"""Pools: which nodes are in them, whose they are, and how much they have."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StrictInt, model_validator

from millpond_contracts.bodies.loans import Threshold
from millpond_contracts.bodies.moves import MovePolicy
from millpond_contracts.bodies.shapes import Incoming, Outgoing
from millpond_contracts.ids import PoolId, TenantId
from millpond_contracts.quantities import (
    DeviceMilli,
    Instant,
    Labels,
    Name,
)


class PoolIsolation(StrEnum):
    SHARED = "shared"
    DEDICATED = "dedicated"


class DeviceSharing(StrEnum):
    """Whose slices may lie on one device together."""

    SAME_TENANT = "same_tenant"
    ANY = "any"


class NodeSelector(Incoming):
    """Which joining nodes a pool takes; an empty selector takes every node. All given parts must hold."""

    labels: Labels = Field(default_factory=dict)
    arch: str | None = Field(None, max_length=32)
    region: str | None = Field(None, max_length=64)
    zone: str | None = Field(None, max_length=64)
    vendor: str | None = Field(None, max_length=32, description="vendor of at least one device; 'none' = no device")
    model_key: str | None = Field(None, max_length=128)


class PoolSpec(Incoming):
    """A pool as an operator creates or replaces it."""

    name: Name
    priority: StrictInt = Field(0, ge=-1000, le=1000, description="pools are tried for a joining node from high to low")
    selector: NodeSelector = NodeSelector()
    performance_class: Name = "standard"
    region: str | None = Field(None, max_length=64)
    zone: str | None = Field(None, max_length=64)
    isolation: PoolIsolation = PoolIsolation.SHARED
    tenant_id: TenantId | None = Field(None, description="the one tenant of a dedicated pool")
    device_sharing: DeviceSharing = DeviceSharing.SAME_TENANT
    allow_oversubscription: bool = False
    allow_shared_users: bool = Field(False, description="tasks of several tenants on nodes whose isolation is 'none'")
    unreachable_after_seconds: StrictInt = Field(30, ge=1, le=3600)
    lease_seconds: StrictInt = Field(300, ge=2, le=86_400)
    stop_grace_seconds: StrictInt = Field(30, ge=0, le=3600)
    reference_task_milli: Annotated[DeviceMilli, Field(ge=1)] = Field(
        1000, description="what 'available' must be able to serve"
    )
    thresholds: Annotated[tuple[Threshold, ...], Field(max_length=32)] = ()
    moves: MovePolicy | None = Field(None, description="null = tasks are moved only where an operator orders it")
    labels: Labels = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_threshold_each(self) -> "PoolSpec":
        keys = [threshold.key for threshold in self.thresholds]
        if len(set(keys)) != len(keys):
            raise ValueError("a resource has one threshold")
        return self


class PoolView(Outgoing):
    """A pool as it is; `shard` names the scheduler shard that owns it."""

    pool_id: PoolId
    name: str
    priority: int
    selector: NodeSelector
    performance_class: str
    region: str | None
    zone: str | None
    isolation: PoolIsolation
    tenant_id: TenantId | None
    device_sharing: DeviceSharing
    allow_oversubscription: bool
    allow_shared_users: bool
    unreachable_after_seconds: int
    lease_seconds: int
    stop_grace_seconds: int
    reference_task_milli: int
    thresholds: tuple[Threshold, ...] = ()
    moves: MovePolicy | None = None
    labels: dict[str, str]
    shard: int = 0
    created_at: Instant
    generation: int


class CapacityFigures(Outgoing):
    """Decision record on capacity: total = unschedulable + allocated + reserved + fragmented + available, in milli.

    `fits` counts tasks that could start now, keyed by the milli of one device (`250`, `500`, `1000`) or by
    the devices on one node (`2x1000`, `4x1000`, `8x1000`); `partitions` the same by profile, each by itself, on devices
    in partition mode. A device is counted in one of the two, by the mode that its agent reports. `fragmented_by_size`
    tells, by the keys of `fits`, what of that which is free (reserved, fragmented and available) tasks of this size
    cannot use, in milli.
    """

    flavor: str
    total: int
    unschedulable: int
    allocated: int
    reserved: int
    fragmented: int
    available: int
    fits: dict[str, int] = Field(default_factory=dict)
    fragmented_by_size: dict[str, int] = Field(default_factory=dict)
    partitions: dict[str, int] = Field(default_factory=dict)


class HostCapacity(Outgoing):
    """`cpu` (milli) or `memory` (MiB) of a pool: total = unschedulable + allocated + reserved + available."""

    resource: str
    total: int
    unschedulable: int
    allocated: int
    reserved: int
    available: int


class PoolCapacity(Outgoing):
    pool_id: PoolId
    as_of: Instant
    nodes: dict[str, int] = Field(description="number of nodes by state, and 'schedulable'")
    hosts: list[HostCapacity]
    devices: list[CapacityFigures]
    recounted_at: Instant | None = None
    generation: int
