"""What a task asks for: equal requests are one value, so that their feasibility and scores are computed once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from millpond_contracts.bodies.groups import TaskKind
from millpond_contracts.ecosystem import EcosystemRequirement
from millpond_contracts.ids import JobId, NodeId, PoolId, ProjectId, TaskId, TenantId, VirtualPoolId
from millpond_contracts.quantities import MAX_COUNT, MAX_CPU_MILLI, MAX_MEMORY_MIB, WHOLE_DEVICE_MILLI
from millpond_contracts.resources import DeviceKind, TopologyLevel
from millpond_scheduler.domain.verdicts import Reason


@dataclass(frozen=True, slots=True)
class DeviceDemand:
    """Devices of one flavor on one node: `count` whole ones, or a slice of one.

    `milli` 1000 = whole, less = a fraction (only with `count` 1), None = a slice bounded by `memory_mib` alone, whose
    share of the device is then `memory_mib` in thousandths of the device's memory, rounded down (never 0).
    `memory_mib` is per device: of a whole device the least it must have, of a slice what it gets; None = in proportion.
    `profile` = one hardware partition of this name instead, which says how much of the device it is.
    `flavors` are the admissible ones, empty = any; `kind` None = any.
    """

    count: int = 1
    milli: int | None = WHOLE_DEVICE_MILLI
    memory_mib: int | None = None
    kind: DeviceKind | None = None
    flavors: frozenset[str] = frozenset()
    minima: tuple[tuple[str, float], ...] = ()
    profile: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_COUNT:
            raise ValueError(f"expected a device count in 1..{MAX_COUNT}, found {self.count}")
        if self.profile is not None and (self.count, self.milli, self.memory_mib) != (1, None, None):
            raise ValueError("a partition is one, and its profile says how much")
        if self.profile is None and self.milli is None and self.memory_mib is None:
            raise ValueError("a slice needs milli or memory_mib")
        if self.milli is not None and not 1 <= self.milli <= WHOLE_DEVICE_MILLI:
            raise ValueError(f"expected milli per device in 1..{WHOLE_DEVICE_MILLI}, found {self.milli}")
        if self.memory_mib is not None and not 1 <= self.memory_mib <= MAX_MEMORY_MIB:
            raise ValueError(f"expected memory_mib per device in 1..{MAX_MEMORY_MIB}, found {self.memory_mib}")
        if self.count > 1 and not self.is_whole:
            raise ValueError("a fraction of a device can only be asked for with count 1")

    @property
    def is_whole(self) -> bool:
        return self.milli == WHOLE_DEVICE_MILLI


@dataclass(frozen=True, slots=True)
class LabelMatch:
    """A label of the node has one of the values; with `is_wanted` False none of them, or it is not there."""

    label: str
    values: frozenset[str]
    is_wanted: bool = True

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels passes."""
        return (labels.get(self.label) in self.values) is self.is_wanted


@dataclass(frozen=True, slots=True)
class Bound:
    """How many tasks may stand in one domain of a level: `most`, or `skew` more than in the domain with fewest.

    Counted are the tasks of the group, without `of_group` of the job, with `labels` of the tenant's jobs that have
    them; where the group's own tasks are not among those, one such task already closes a domain.
    """

    level: TopologyLevel
    reason: Reason
    most: int = 1
    skew: int | None = None
    of_group: bool = True
    labels: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """Where the tasks of a group may stand beside other tasks.

    `pack`: all tasks of the gang that have it stand in one domain of that level. `prefers_pack`: the same where there
    is room, else in the next wider.
    """

    bounds: tuple[Bound, ...] = ()
    pack: TopologyLevel | None = None
    prefers_pack: TopologyLevel | None = None


@dataclass(frozen=True, slots=True)
class RequestClass:
    """Everything that decides where a task may run, without whose turn it is.

    `tolerations` are taint keys, or `key=value`; `labels` must all be equal on the node; `allow_unknown` accepts
    attributes and versions that a node does not report. `simulated` = only simulated nodes can act it out. `task_kind`
    says which attributes of a device count how much. `affinity` must all hold for the node's labels; of `levels` (not
    `node`) it has to be known where the node stands.
    """

    tenant: TenantId
    pool: PoolId
    cpu_milli: int
    memory_mib: int
    devices: DeviceDemand | None = None
    needs_image: bool = False
    architectures: frozenset[str] = frozenset()
    ecosystem: EcosystemRequirement = field(default_factory=EcosystemRequirement)
    tolerations: frozenset[str] = frozenset()
    labels: tuple[tuple[str, str], ...] = ()
    affinity: tuple[LabelMatch, ...] = ()
    levels: frozenset[TopologyLevel] = frozenset()
    allow_unknown: bool = False
    simulated: bool = False
    task_kind: TaskKind = TaskKind.GENERAL
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        if not 0 <= self.cpu_milli <= MAX_CPU_MILLI:
            raise ValueError(f"expected cpu_milli in 0..{MAX_CPU_MILLI}, found {self.cpu_milli}")
        if not 0 <= self.memory_mib <= MAX_MEMORY_MIB:
            raise ValueError(f"expected memory_mib in 0..{MAX_MEMORY_MIB}, found {self.memory_mib}")
        values = (self.tenant, self.pool, self.cpu_milli, self.memory_mib, self.devices, self.needs_image)
        matched = (self.architectures, self.ecosystem, self.tolerations, self.labels, self.affinity, self.levels)
        accepted = (self.allow_unknown, self.simulated)
        object.__setattr__(self, "_hash", hash((values, matched, accepted, self.task_kind)))  # a key on every decision

    def __hash__(self) -> int:
        return self._hash


class Kin(NamedTuple):
    """Whose task it is, for rules on which tasks stand together or apart: job, group, and the job's labels."""

    job: JobId
    group: str = "main"
    labels: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Gang:
    """The tasks of a job's gang groups, which start all together or not at all: how many of each group, by name."""

    job: JobId
    groups: tuple[tuple[str, int], ...]

    @property
    def size(self) -> int:
        return sum(count for _, count in self.groups)

    def size_of(self, group: str) -> int:
        """How many tasks one of its groups has."""
        return dict(self.groups)[group]


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """One waiting attempt. `queued_at_us` is the first attempt's instant, so that a retry keeps its place.

    `moves_to` is the node that is kept for a task that was moved: it is taken if it fits.
    `failed_on` is the node where the former attempt failed: it is taken only when no other is free. `work` = how long
    it takes at most times its devices (`measure_work`), `lasts_us` = the longest that it can hold what it gets; None
    without a time limit. `labels` are the job's, `rules` say beside which tasks it may stand.
    """

    id: TaskId
    job: JobId
    virtual_pool: VirtualPoolId
    request: RequestClass
    priority: int
    queued_at_us: int
    gang: Gang | None = None
    failed_on: NodeId | None = None
    project: ProjectId | None = None
    work: int | None = None
    lasts_us: int | None = None
    group: str = "main"
    moves_to: NodeId | None = None
    labels: frozenset[tuple[str, str]] = frozenset()
    rules: PlacementRules | None = None

    @property
    def kin(self) -> Kin:
        """Whose task it is."""
        return Kin(self.job, self.group, self.labels)

    @property
    def order_key(self) -> tuple[int, int, int]:
        """Priority first, then age, then the id, so that the order never depends on how the queue was read."""
        return (-self.priority, self.queued_at_us, self.id.int)


def measure_work(time_limit_seconds: int | None, device_milli: int, tasks: int) -> int | None:
    """How much a task, or a gang of so many, may hold at most, in seconds times device milli; None without a limit.

    What holds no devices goes before everything that does, by its time.
    """
    return None if time_limit_seconds is None else time_limit_seconds * max(1, device_milli * tasks)
