"""Why work waits or stands where it does, and how much is used of what may be."""

from pydantic import Field

from millpond_contracts.bodies.distances import DistanceView
from millpond_contracts.bodies.jobs import JobState
from millpond_contracts.bodies.shapes import Outgoing
from millpond_contracts.ids import (
    JobId,
    PoolId,
    TenantId,
    VirtualPoolId,
)
from millpond_contracts.quantities import (
    Instant,
)
from millpond_contracts.resources import TopologyLevel


class AdmissionView(Outgoing):
    """How a job stands against its virtual pool's limits; amounts in the resource's unit."""

    resource: str
    flavor: str | None
    limit: int
    used: int
    borrowed: int
    requested: int
    missing: int


class GangView(Outgoing):
    """A gang that waits: its tasks start all together, and for so many of them there is room now.

    Of a gang of several groups, `group` is the first without room, with how many of its tasks had found some. Of one
    that is packed together, that is so in the `domain` of the `level` that came furthest. `search` = what an exact
    search said where the groups could not be placed one after the other: `impossible`, or `undecided` in its time.
    """

    tasks: int
    fitting: int
    group: str | None = None
    group_tasks: int = 0
    group_fitting: int = 0
    level: TopologyLevel | None = None
    domain: str | None = None
    search: str | None = None


class Unblock(Outgoing):
    """Something that would let the job start, and what it would change."""

    action: str
    effect: str


class Verdict(Outgoing):
    """Why something cannot start: one dominant reason, nodes per reason (summing to the pool's nodes), what helps."""

    dominant: str
    message: str
    counts: dict[str, int] = Field(default_factory=dict)
    nodes: int = 0
    admission: list[AdmissionView] = Field(default_factory=list)
    largest_free_block: int | None = Field(None, description="free whole devices on the best node")
    largest_free_profile: str | None = Field(
        None, description="of a job that asks for a partition: the largest that a matching device has a start for"
    )
    fragmentation_permille: int = Field(
        0, description="of what is free of the right devices (else of CPU), the share that the task cannot use"
    )
    gang: GangView | None = None
    estimated_start: Instant | None = Field(
        None,
        description="for whoever is next on a flavor: by then it can start, by the time limits of what runs, if nobody"
        " passes it; null where no limit tells, or others are next",
    )
    would_unblock: list[Unblock] = Field(default_factory=list)


class PlacedView(Outgoing):
    """Tasks of a group that hold devices of one flavor now, and how far the first of these is from their needs."""

    group: str
    tasks: int
    flavor: str
    distance: DistanceView


class DependencyView(Outgoing):
    """A group that waits for another one of its job, of whose `tasks` so many have succeeded."""

    group: str
    waits_for: str
    tasks: int
    succeeded: int


class Explanation(Verdict):
    """Why a job waits, and how near the devices that it holds are to its needs (of its first 1000 tasks).

    `dominant` is `dependencies` where all that waits of the job waits for other groups of it, listed in `dependencies`.
    """

    job_id: JobId
    state: JobState
    as_of: Instant
    position: int | None = Field(None, description="1 = next in the queue of the virtual pool")
    placed: list[PlacedView] = Field(default_factory=list)
    dependencies: list[DependencyView] = Field(default_factory=list)


class UsageLine(Outgoing):
    """Use of one resource by one virtual pool, against its limits, in the resource's unit.

    `borrowed` = what is used above `guaranteed`, `available` = what is left up to `hard`. `blocked` = work waits for
    this limit, for `missing` at least. Commits are held to the limits of `limit_generation`.
    """

    virtual_pool_id: VirtualPoolId
    virtual_pool: str
    tenant_id: TenantId
    pool_id: PoolId
    resource: str
    flavor: str | None
    used: int
    guaranteed: int
    hard: int
    borrowed: int
    available: int
    over_limit: int = Field(0, description="used above `hard`, after it was lowered; nothing new is admitted until 0")
    blocked: bool
    missing: int
    limit_generation: int


class QueueEntry(Outgoing):
    """One pending job of a virtual pool's queue, in order."""

    position: int
    job_id: JobId
    name: str
    priority: int
    created_at: Instant
    pending_tasks: int
    dominant: str | None
    message: str | None
