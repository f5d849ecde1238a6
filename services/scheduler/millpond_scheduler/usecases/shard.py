"""What the leader of a shard keeps in memory: the snapshot, the queue, the limits and the prices, as the rows tell.

Built once under a new epoch, which re-adopts everything that runs; then kept up to date by the changes that other
transactions noted (`loading.py`), and by the leader's own commits.
"""

from collections import UserDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import NamedTuple
from uuid import UUID

from millpond_contracts.bodies.allocations import AllocationState
from millpond_contracts.bodies.pools import PoolView
from millpond_contracts.bodies.tenants import Limits
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
from millpond_scheduler.domain.admission import Resource, VirtualPoolState, add_amounts, with_reserved
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.distance import DistanceRules
from millpond_scheduler.domain.growth import GrowthLimit
from millpond_scheduler.domain.horizon import Horizon
from millpond_scheduler.domain.plans import Claim, Placement
from millpond_scheduler.domain.preemption import HOUR_US, Eviction, Evictions
from millpond_scheduler.domain.queues import Queues
from millpond_scheduler.domain.requests import Gang, PlacementRules, QueuedTask, RequestClass
from millpond_scheduler.domain.running import Running
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.verdicts import Reason
from millpond_scheduler.store.reservations import ReservationRecord


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What the tasks of a group have in common; `is_gang` = they start together, with other such groups of the job."""

    request: RequestClass
    stop_grace_seconds: int
    count: int = 1
    is_gang: bool = False
    rules: PlacementRules | None = None


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What an allocation takes from its job; by group: what a task asks for, and how it starts and stops.

    `labels` is JSON text.
    """

    id: JobId
    pool: PoolId
    project: ProjectId | None
    name: str
    labels: str
    time_limit_seconds: int | None
    groups: Mapping[str, GroupFacts]

    def gang_of(self, group: str) -> Gang | None:
        """The gang that a group belongs to, None when its tasks start each by itself."""
        if not self.groups[group].is_gang:
            return None
        return Gang(self.id, tuple((name, each.count) for name, each in self.groups.items() if each.is_gang))


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """One waiting attempt beside what its allocation needs."""

    queued: QueuedTask
    facts: JobFacts
    group: str
    index: int
    attempt: int


class WaitingTasks(UserDict[TaskId, WaitingTask]):
    """Waiting attempts by task; `queues` are the same in order."""

    def __init__(self) -> None:
        self.queues = Queues()
        super().__init__()

    def __setitem__(self, key: TaskId, task: WaitingTask) -> None:
        super().__setitem__(key, task)
        self.queues.add(task.queued)

    def __delitem__(self, key: TaskId) -> None:
        super().__delitem__(key)
        self.queues.remove(key)


@dataclass(frozen=True, slots=True)
class Price:
    """A price version; `tenant` None = the public list."""

    id: PriceVersionId
    tenant: TenantId | None
    valid_from: datetime
    valid_to: datetime | None


@dataclass(slots=True)
class ClaimMemory:
    """What was promised to a claimant, and the allocations that stop for it; with `moves` to start anew elsewhere."""

    victims: set[AllocationId]
    nodes: set[NodeId]
    placements: tuple[Placement, ...] = ()
    moves: bool = False


class DeviceName(NamedTuple):
    """How a device is told to whoever is given a share of it; `place` is its index on the node."""

    identity: str
    vendor: str
    place: int
    uuid: str | None
    flavor: str


@dataclass(slots=True)
class Shard:
    """The leader's memory. Only the leader touches it, one step at a time."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    distance: DistanceRules = field(default_factory=DistanceRules)
    cache: CandidateCache = field(init=False)
    horizon: Horizon = field(init=False)
    pools: dict[PoolId, PoolView] = field(default_factory=dict)
    virtual_pools: dict[VirtualPoolId, VirtualPoolState] = field(default_factory=dict)
    limits: dict[VirtualPoolId, Limits] = field(default_factory=dict)
    reservations: list[ReservationRecord] = field(default_factory=list)
    open_windows: frozenset[tuple[UUID, int]] = frozenset()
    waiting: WaitingTasks = field(default_factory=WaitingTasks)
    live: dict[AllocationId, Running] = field(default_factory=dict)
    holders: dict[TaskId, AllocationId] = field(default_factory=dict)
    layouts: dict[NodeId, int] = field(default_factory=dict)
    devices: dict[DeviceId, DeviceName] = field(default_factory=dict)
    prices: list[Price] = field(default_factory=list)
    growth: list[GrowthLimit] = field(default_factory=list)
    used: dict[VirtualPoolId, dict[Resource, int]] = field(default_factory=dict)
    used_by: dict[VirtualPoolId, dict[ProjectId | None, dict[Resource, int]]] = field(default_factory=dict)
    claims: dict[TaskId, ClaimMemory] = field(default_factory=dict)
    # The node that is kept for each task that is being moved.
    targets: dict[TaskId, NodeId] = field(default_factory=dict)
    evictions: list[Eviction] = field(default_factory=list)
    told: dict[frozenset[TaskId], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache = CandidateCache(self.snapshot, distance=self.distance)
        # Not a method of the shard: nothing refers back to it, so that it is gone as soon as it is forgotten.
        self.horizon = Horizon(self.snapshot, partial(_find_end, self.holders, self.live))

    def queue(self) -> Queues:
        """The waiting tasks as the domain takes them."""
        return self.waiting.queues

    def open_reservations(self, now: datetime) -> None:
        """Gives virtual pools what is reserved for them at this instant beside their guarantees."""
        found = [reservation for reservation in self.reservations if reservation.is_open(now)]
        windows = frozenset((reservation.id, reservation.generation) for reservation in found)
        if windows == self.open_windows:
            return
        reserved: dict[VirtualPoolId, dict[str, int]] = {}
        for each in found:
            flavors = reserved.setdefault(each.virtual_pool, {})
            flavors[each.flavor] = flavors.get(each.flavor, 0) + each.device_milli
        for key, limits in self.limits.items():
            state = self.virtual_pools[key]
            self.virtual_pools[key] = replace(state, limits=with_reserved(limits, reserved.get(key, {})))
        self.open_windows = windows

    def list_running(self) -> Iterable[Running]:
        """Everything that is held, as reclaim sees it."""
        return self.live.values()

    def open_claims(self) -> dict[TaskId, Claim]:
        """What is promised to tasks that still wait; others' promises are forgotten."""
        self.claims = {task: claim for task, claim in self.claims.items() if task in self.waiting}
        return self.list_claims()

    def list_claims(self) -> dict[TaskId, Claim]:
        """What is promised, by the claimant; and what is kept for tasks that are being moved."""
        kept = {task: Claim(frozenset({node}), is_open=False) for task, node in self.targets.items()}
        return kept | {
            task: Claim(
                frozenset(claim.nodes),
                claim.placements,
                is_open=not claim.victims.isdisjoint(self.live),
                reason=self._reason_of(task, claim),
            )
            for task, claim in self.claims.items()
        }

    def _reason_of(self, task: TaskId, claim: ClaimMemory) -> Reason:
        """How the room is made: some victims may be of the claimant's own virtual pool."""
        if claim.moves:
            return Reason.MOVING
        waiting, victims = self.waiting.get(task), (self.live[each] for each in claim.victims if each in self.live)
        is_own = waiting is not None and any(each.virtual_pool == waiting.queued.virtual_pool for each in victims)
        return Reason.PREEMPTING if is_own else Reason.RECLAIMING

    def list_evictions(self, most_per_hour: int, now_us: int) -> Evictions:
        """What was stopped for others in the last hour; what is older is forgotten."""
        self.evictions = [one for one in self.evictions if now_us - one.at_us < HOUR_US]
        return Evictions.of(self.evictions, most_per_hour, now_us)

    def hold(self, allocation: AllocationId, running: Running) -> None:
        """Counts an allocation that is durable; twice is once."""
        if allocation in self.live:
            return
        self.live[allocation] = running
        self.holders[running.id] = allocation
        self.waiting.pop(running.id, None)
        self.snapshot.apply_allocation(running.holding)
        self._add(running.virtual_pool, running.project, running.demand())

    def hold_many(self, new: Mapping[AllocationId, Running]) -> None:
        """The same for many that are not held yet, as a new leader finds them."""
        self.live.update(new)
        for key, running in new.items():
            self.holders[running.holding.task] = key
            if self.waiting:
                self.waiting.pop(running.holding.task, None)
        self.snapshot.apply_allocations(running.holding for running in new.values())
        for (virtual_pool, project), demand in _sum_demand(new.values()).items():
            self._add(virtual_pool, project, demand)

    def release(self, allocation: AllocationId) -> None:
        """Gives back what an allocation held; twice is once."""
        running = self.live.pop(allocation, None)
        if running is None:
            return
        if self.holders.get(running.id) == allocation:
            del self.holders[running.id]
            self.snapshot.release_allocation(running.id)
        self._add(running.virtual_pool, running.project, running.demand(), -1)

    def note_state(self, allocation: AllocationId, state: AllocationState) -> None:
        """Takes an allocation's newer state: one that is being stopped is no victim, one that is gone holds nothing."""
        if state is AllocationState.RELEASED:
            self.release(allocation)
        elif state is AllocationState.RELEASING and allocation in self.live:
            self.note_stopping(allocation, None)

    def note_stopping(self, allocation: AllocationId, claimant: TaskId | None) -> None:
        """Takes that a live allocation is being stopped, and for which waiting task."""
        running = self.live[allocation] = replace(self.live[allocation], is_stopping=True)
        if claimant is not None:
            claim = self.claims.setdefault(claimant, ClaimMemory(set(), set()))
            claim.victims.add(allocation)
            claim.nodes.add(running.holding.node)

    def price_for(self, tenant: TenantId, now: datetime) -> PriceVersionId | None:
        """The price version in force for a tenant: its own if it has one, else the public list's."""
        in_force = [
            price
            for price in self.prices
            if price.valid_from <= now and (price.valid_to is None or now < price.valid_to)
        ]
        for owner in (tenant, None):
            for price in in_force:
                if price.tenant == owner:
                    return price.id
        return None

    def _add(
        self, virtual_pool: VirtualPoolId, project: ProjectId | None, demand: Mapping[Resource, int], sign: int = 1
    ) -> None:
        add_amounts(self.used.setdefault(virtual_pool, {}), demand, sign)
        of_project = self.used_by.setdefault(virtual_pool, {}).setdefault(project, {})
        add_amounts(of_project, demand, sign)


def _find_end(holders: Mapping[TaskId, AllocationId], live: Mapping[AllocationId, Running], task: TaskId) -> int | None:
    """When a running task has ended at the latest, in microseconds since 1970; None without a time limit."""
    allocation = holders.get(task)
    return None if allocation is None else live[allocation].ends_us


def _sum_demand(running: Iterable[Running]) -> dict[tuple[VirtualPoolId, ProjectId | None], dict[Resource, int]]:
    """What they count against the limits of each virtual pool, by project."""
    sums: dict[tuple[VirtualPoolId, ProjectId | None], dict[Resource, int]] = {}
    for one in running:
        add_amounts(sums.setdefault((one.virtual_pool, one.project), {}), one.demand())
    return sums
