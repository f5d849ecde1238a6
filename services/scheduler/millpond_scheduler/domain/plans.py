"""What a cycle returns: where tasks should go, and why the others wait. Nothing here has happened yet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from millpond_contracts.ids import DeviceId, NodeId, TaskId, TenantId, VirtualPoolId
from millpond_contracts.resources import TopologyLevel
from millpond_scheduler.domain.requests import Kin, RequestClass
from millpond_scheduler.domain.verdicts import Reason


class DevicePick(NamedTuple):
    """So much of one device; a hardware partition is `profile` and the mask of its memory slices."""

    device: DeviceId
    milli: int
    memory_mib: int
    profile: str | None = None
    slots: int = 0


@dataclass(frozen=True, slots=True)
class Holding:
    """What a task's attempt holds on one node, from its plan on until its release.

    A task holds one thing at a time: a retry is queued when the earlier attempt's allocation is released.
    """

    task: TaskId
    node: NodeId
    tenant: TenantId
    cpu_milli: int
    memory_mib: int
    devices: tuple[DevicePick, ...] = ()
    kin: Kin | None = field(default=None, compare=False)

    @property
    def device_milli(self) -> int:
        return sum([pick.milli for pick in self.devices])


class Placement(NamedTuple):
    """A task's place, and what the commit must find unchanged: the node's incarnation."""

    holding: Holding
    virtual_pool: VirtualPoolId
    flavor: str | None
    incarnation: int


@dataclass(frozen=True, slots=True)
class AdmissionLine:
    """One limit as a request meets it, in the resource's unit; `missing` 0 = this limit does not block.

    `limit` is what the virtual pool may use in all, `borrowed` what it uses above its guarantee now.
    """

    resource: str
    flavor: str | None
    limit: int
    guaranteed: int
    used: int
    borrowed: int
    requested: int
    missing: int


class Search(StrEnum):
    """What came of an exact search for a gang that the greedy one did not place: within its bounds, also nothing."""

    FOUND = "found"
    IMPOSSIBLE = "impossible"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class GangRoom:
    """How many tasks of a gang could start now, of all that must; and in a gang of several groups which was stuck.

    Where its tasks are packed, that is in the domain of the `level` that came furthest. `search` = what an exact search
    said, where the greedy one failed and it was asked.
    """

    tasks: int
    fitting: int
    group: str | None = None
    group_tasks: int = 0
    group_fitting: int = 0
    level: TopologyLevel | None = None
    domain: str | None = None
    search: Search | None = None


class Spared(StrEnum):
    """Why something is not stopped that otherwise would be."""

    MINIMUM_RUNTIME = "minimum_runtime"
    STOPPED_TOO_OFTEN = "stopped_too_often"
    LOOP = "loop"


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a task was not placed now: one dominant reason, and how many of the pool's nodes fail which filter first.

    `spared` = how many tasks could be stopped for it and are not, by why.

    Of a gang, `counts` and `reason` speak of the first task that found no place beside those before it.
    Of a gang, `counts` and `reason` speak of the first task that found no place beside those before it. `starts_us` is
    when it can start by the time limits of what runs, if nobody passes it; None = nobody can tell, or others are next.
    `request` is what was asked for where no place was found; None = the task's own.
    """

    reason: Reason
    counts: Mapping[Reason, int] = field(default_factory=dict)
    admission: tuple[AdmissionLine, ...] = ()
    gang: GangRoom | None = None
    spared: Mapping[Spared, int] = field(default_factory=dict)
    starts_us: int | None = None
    request: RequestClass | None = None


@dataclass(frozen=True, slots=True)
class Claim:
    """Room kept for a waiting task, or for a gang under its first task, until what stops for it has ended.

    `placements` = where its tasks were seen to fit; empty when only the nodes are known any more. `is_open` = some of
    the victims still hold what they had. `reason` = how it is made, as the claimant is told.
    """

    nodes: frozenset[NodeId]
    placements: tuple[Placement, ...] = ()
    is_open: bool = True
    reason: Reason = Reason.RECLAIMING


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Victims that stop so that the claimant can start on the claim's nodes."""

    claimant: TaskId
    victims: tuple[TaskId, ...]
    claim: Claim


@dataclass(frozen=True, slots=True)
class Halted:
    """A stop that was not ordered, because it would go on for ever. A person must look at it."""

    claimant: TaskId
    victim: TaskId
    why: Spared


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch: placements in the order of decision, rejections by task, nodes kept free for aged tasks, reclaims.

    `mark` is the point of the snapshot's undo log before the batch: `snapshot.undo_to(plan.mark)` takes it back.
    """

    placements: tuple[Placement, ...]
    rejections: Mapping[TaskId, Rejection]
    earmarks: Mapping[TaskId, NodeId]
    examined: int
    mark: int
    reclaims: tuple[Reclaim, ...] = ()
    halted: tuple[Halted, ...] = ()
    searches: tuple[Search, ...] = ()
