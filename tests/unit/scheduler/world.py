"""A small pool to schedule on: builders with short defaults, and a check of the invariants that uses no NumPy."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from types import MappingProxyType

from millpond_contracts.bodies.groups import TaskKind
from millpond_contracts.bodies.nodes import CordonReason, NodeState
from millpond_contracts.bodies.tenants import Limit, Limits, QueuePolicy
from millpond_contracts.ecosystem import Ecosystem, EcosystemRequirement
from millpond_contracts.ids import DeviceId, JobId, NodeId, PoolId, ProjectId, TaskId, TenantId, VirtualPoolId
from millpond_contracts.partitions import find_geometry
from millpond_contracts.resources import DeviceKind, Isolation, Taint, TopologyLevel
from millpond_scheduler.domain.admission import CPU, MEMORY, Resource, VirtualPoolState, add_amounts, device
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.cycle import plan_batch
from millpond_scheduler.domain.horizon import Horizon
from millpond_scheduler.domain.nodes import DeviceProfile, DeviceRecord, NodeProfile, NodeRecord, PoolRules
from millpond_scheduler.domain.plans import Claim, DevicePick, Holding, Plan, Reclaim
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.domain.preemption import Evictions
from millpond_scheduler.domain.requests import DeviceDemand, Gang, LabelMatch, PlacementRules, QueuedTask, RequestClass
from millpond_scheduler.domain.running import Running
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.topology import Place

PLENTY = Limit(guaranteed=0, hard=1_000_000_000)
CUDA = Ecosystem(runtime="cuda", runtime_version="12.4", frameworks={"pytorch": "2.3.0"})
POOL, OTHER_POOL = PoolId(int=1), PoolId(int=2)
TENANT, RIVAL = TenantId(int=1), TenantId(int=2)
SECOND_US = 1_000_000


def node(
    number: int,
    gpus: int = 0,
    *,
    cpu: int = 64_000,
    memory: int = 262_144,
    flavor: str = "a100",
    device_memory: int | None = 81_920,
    attributes: tuple[tuple[str, float], ...] = (("bf16_tflops", 312.0),),
    ecosystem: Ecosystem = CUDA,
    pool: PoolId = POOL,
    taints: tuple[Taint, ...] = (),
    runtimes: frozenset[str] = frozenset({"process"}),
    architecture: str = "x86_64",
    labels: dict[str, str] | None = None,
    place: Place | None = None,
    state: NodeState = NodeState.READY,
    cordons: frozenset[CordonReason] = frozenset(),
    isolation: Isolation = Isolation.USER,
    incarnation: int = 1,
    version: int = 1,
    divided: str | None = None,
) -> NodeRecord:
    """Node `number` with so many devices; device ids follow from the node's number and the slot.

    `divided` = in partition mode, with the profiles of this model.
    """
    geometry = find_geometry(divided)
    profile = DeviceProfile(DeviceKind.GPU, flavor, device_memory, attributes, geometry=geometry)
    return NodeRecord(
        id=NodeId(int=number << 65),
        pool=pool,
        cpu_milli=cpu,
        memory_mib=memory,
        devices=tuple(DeviceRecord(DeviceId(int=number * 1000 + slot), profile) for slot in range(gpus)),
        profile=NodeProfile(architecture, taints, runtimes, ecosystem),
        labels=labels or {},
        place=place or Place(),
        name=f"n{number}",
        state=state,
        cordons=cordons,
        isolation=isolation,
        incarnation=incarnation,
        version=version,
    )


def request(
    cpu: int = 1_000,
    memory: int = 1_024,
    *,
    count: int = 0,
    milli: int | None = 1000,
    slice_memory: int | None = None,
    flavors: Iterable[str] = (),
    minima: tuple[tuple[str, float], ...] = (),
    tenant: TenantId = TENANT,
    pool: PoolId = POOL,
    ecosystem: EcosystemRequirement | None = None,
    needs_image: bool = False,
    architectures: frozenset[str] = frozenset(),
    tolerations: frozenset[str] = frozenset(),
    labels: tuple[tuple[str, str], ...] = (),
    affinity: tuple[LabelMatch, ...] = (),
    levels: Iterable[TopologyLevel] = (),
    allow_unknown: bool = False,
    simulated: bool = False,
    task_kind: TaskKind = TaskKind.GENERAL,
    profile: str | None = None,
) -> RequestClass:
    """A request; `count` 0 = no device, unless it asks for a partition."""
    if profile is not None:
        count, milli = 1, None
    demand = (
        DeviceDemand(count, milli, slice_memory, DeviceKind.GPU, frozenset(flavors), minima, profile) if count else None
    )
    return RequestClass(
        tenant=tenant,
        pool=pool,
        cpu_milli=cpu,
        memory_mib=memory,
        devices=demand,
        needs_image=needs_image,
        architectures=architectures,
        ecosystem=ecosystem or EcosystemRequirement(),
        tolerations=tolerations,
        labels=labels,
        affinity=affinity,
        levels=frozenset(levels),
        allow_unknown=allow_unknown,
        simulated=simulated,
        task_kind=task_kind,
    )


def virtual_pool(
    number: int = 1,
    tenant: TenantId = TENANT,
    *,
    pool: PoolId = POOL,
    cpu: Limit = PLENTY,
    memory: Limit = PLENTY,
    devices: dict[str, Limit] | None = None,
    policy: QueuePolicy = QueuePolicy.PRIORITY,
) -> VirtualPoolState:
    """A virtual pool with plenty of everything that is not said."""
    flavors = {"a100": PLENTY, "t4": PLENTY} if devices is None else devices
    limits = Limits(cpu=cpu, memory=memory, devices=flavors)
    return VirtualPoolState(VirtualPoolId(int=number), tenant, pool, limits, policy=policy)


@dataclass
class World:
    """A snapshot, its virtual pools, and a queue that cycles take from."""

    snapshot: Snapshot = field(default_factory=Snapshot)
    pools: dict[VirtualPoolId, VirtualPoolState] = field(default_factory=dict)
    queue: list[QueuedTask] = field(default_factory=list)
    owner: dict[TaskId, VirtualPoolId] = field(default_factory=dict)
    now_us: int = 0
    policy: Policy = field(default_factory=Policy)
    next_task: int = 1
    submitted: dict[TaskId, QueuedTask] = field(default_factory=dict)
    started_us: dict[TaskId, int] = field(default_factory=dict)
    flavors: dict[TaskId, str | None] = field(default_factory=dict)  # as allocations keep it, though a node leaves
    stopping: set[TaskId] = field(default_factory=set)
    claims: dict[TaskId, Reclaim] = field(default_factory=dict)
    evictions: Evictions | None = None
    horizon: Horizon = field(init=False)

    def __post_init__(self) -> None:
        self.horizon = Horizon(self.snapshot, self.find_end)

    @classmethod
    def of(cls, *nodes: NodeRecord, pools: Iterable[VirtualPoolState] = (), rules: PoolRules | None = None) -> "World":
        """A world with these nodes and virtual pools (by default one for each of two tenants)."""
        world = cls(Snapshot({POOL: rules} if rules else {}))
        for record in nodes:
            world.snapshot.upsert_node(record)
        chosen = list(pools) or [virtual_pool(1, TENANT), virtual_pool(2, RIVAL)]
        world.pools = {state.id: state for state in chosen}
        return world

    def submit(
        self,
        wanted: RequestClass,
        times: int = 1,
        *,
        priority: int = 50,
        pool: int | None = None,
        project: int | None = None,
        work: int | None = None,
        limit: int | None = None,
        rules: PlacementRules | None = None,
        job: int | None = None,
        labels: Iterable[tuple[str, str]] = (),
    ) -> list[TaskId]:
        """Queue equal tasks in the virtual pool of the request's tenant, or in the numbered one; `limit` in seconds.

        Without `job` each is a job of its own.
        """
        tenants = {state.tenant: state.id for state in self.pools.values()}
        chosen = VirtualPoolId(int=pool) if pool is not None else tenants[wanted.tenant]
        made = []
        for _ in range(times):
            task = QueuedTask(
                TaskId(int=self.next_task),
                JobId(int=self.next_task if job is None else job),
                chosen,
                wanted,
                priority,
                self.now_us,
                project=None if project is None else ProjectId(int=project),
                work=work,
                lasts_us=None if limit is None else limit * SECOND_US,
                labels=frozenset(labels),
                rules=rules,
            )
            self.next_task += 1
            self.queue.append(task)
            self.owner[task.id] = chosen
            self.submitted[task.id] = task
            made.append(task.id)
        return made

    def submit_gang(
        self,
        wanted: RequestClass,
        size: int,
        *,
        priority: int = 50,
        pool: int | None = None,
        limit: int | None = None,
        rules: PlacementRules | None = None,
    ) -> Gang:
        """Queue equal tasks that start together; their ids follow on one another."""
        gang = Gang(JobId(int=self.next_task), (("main", size),))
        for task in self.submit(wanted, size, priority=priority, pool=pool, limit=limit, rules=rules):
            place = next(index for index, one in enumerate(self.queue) if one.id == task)
            self.queue[place] = self.submitted[task] = replaced(self.queue[place], job=gang.job, gang=gang)
        return gang

    def submit_roles(
        self, *roles: tuple[str, RequestClass, int], rules: Mapping[str, PlacementRules] = MappingProxyType({})
    ) -> Gang:
        """Queue a gang of several groups: name, request and count of each; `rules` by group."""
        gang = Gang(JobId(int=self.next_task), tuple((name, count) for name, _, count in roles))
        for name, wanted, count in roles:
            for task in self.submit(wanted, count, rules=rules.get(name)):
                place = next(index for index, one in enumerate(self.queue) if one.id == task)
                self.queue[place] = self.submitted[task] = replaced(
                    self.queue[place], job=gang.job, gang=gang, group=name
                )
        return gang

    def members(self, gang: Gang) -> list[TaskId]:
        """The waiting tasks of a gang."""
        return [task.id for task in self.queue if task.gang == gang]

    def usage(self) -> dict[VirtualPoolId, dict[Resource, int]]:
        """What each virtual pool holds, summed from the holdings."""
        used: dict[VirtualPoolId, dict[Resource, int]] = defaultdict(lambda: defaultdict(int))
        for holding in self.snapshot.list_holdings():
            add_amounts(used[self.owner[holding.task]], self.demand_of(holding))
        return used

    def usage_by_project(self) -> dict[VirtualPoolId, dict[ProjectId | None, dict[Resource, int]]]:
        """The same by project."""
        used: dict[VirtualPoolId, dict[ProjectId | None, dict[Resource, int]]] = {}
        for holding in self.snapshot.list_holdings():
            task = self.submitted[holding.task]
            mine = used.setdefault(task.virtual_pool, {}).setdefault(task.project, {})
            add_amounts(mine, self.demand_of(holding))
        return used

    def demand_of(self, holding: Holding) -> dict[Resource, int]:
        """What a holding counts against limits."""
        demand = {CPU: holding.cpu_milli, MEMORY: holding.memory_mib}
        if (flavor := self.flavors.get(holding.task)) is not None:
            demand[device(flavor)] = holding.device_milli
        return demand

    def states(self) -> dict[VirtualPoolId, VirtualPoolState]:
        """The virtual pools with what they hold now."""
        used, used_by = self.usage(), self.usage_by_project()
        return {
            key: replaced(state, used=dict(used.get(key, {})), used_by=used_by.get(key, {}))
            for key, state in self.pools.items()
        }

    def plan(self, max_tasks: int = 500, cache: CandidateCache | None = None) -> Plan:
        """Plan one batch and leave it on the snapshot, undoable."""
        return plan_batch(
            self.snapshot,
            self.queue,
            self.states(),
            self.now_us,
            self.policy,
            max_tasks,
            cache,
            list_running=self.list_running,
            claims=self.open_claims(),
            evictions=self.evictions,
            horizon=self.horizon,
        )

    def find_end(self, task: TaskId) -> int | None:
        """When a running task has ended at the latest."""
        lasts, started = self.submitted[task].lasts_us, self.started_us.get(task)
        return None if lasts is None or started is None else started + lasts

    def list_running(self) -> list[Running]:
        """Everything held, as reclaim sees it."""
        found = []
        for holding in self.snapshot.list_holdings():
            task = self.submitted[holding.task]
            gang = None if task.gang is None else task.gang.job
            flavor = self.flavors.get(task.id)
            started = self.started_us.get(task.id, 0)
            is_stopping = task.id in self.stopping
            found.append(Running(holding, task.virtual_pool, flavor, task.priority, started, gang, is_stopping))
        return found

    def open_claims(self) -> dict[TaskId, Claim]:
        """What is promised to tasks that still wait."""
        waiting = {task.id for task in self.queue}
        self.claims = {task: reclaim for task, reclaim in self.claims.items() if task in waiting}
        return {
            task: replaced(reclaim.claim, is_open=any(map(self.snapshot.find_holding, reclaim.victims)))
            for task, reclaim in self.claims.items()
        }

    def release(self, *tasks: TaskId) -> None:
        """Tasks have ended and are gone."""
        for task in tasks:
            assert self.snapshot.release_allocation(task) is not None
            self.stopping.discard(task)

    def release_stopping(self) -> None:
        """Everything that was ordered to stop has ended."""
        self.release(*(task for task in sorted(self.stopping) if self.snapshot.find_holding(task) is not None))

    def run(self, max_tasks: int = 500) -> Plan:
        """Plan one batch and commit it."""
        claims = self.open_claims()
        plan = self.plan(max_tasks)
        self.snapshot.keep()
        self.claims = {task: one for task, one in self.claims.items() if claims[task].is_open}
        self.claims |= {reclaim.claimant: reclaim for reclaim in plan.reclaims}
        self.stopping |= {victim for reclaim in plan.reclaims for victim in reclaim.victims}
        self.flavors |= {placement.holding.task: placement.flavor for placement in plan.placements}
        self.started_us |= {placement.holding.task: self.now_us for placement in plan.placements}
        placed = {placement.holding.task for placement in plan.placements}
        self.queue = [task for task in self.queue if task.id not in placed]
        return plan


def placed_tasks(plan: Plan) -> list[TaskId]:
    """The placed tasks in the order of decision."""
    return [placement.holding.task for placement in plan.placements]


def contents(snapshot: Snapshot) -> dict[NodeId, tuple[object, ...]]:
    """Everything that the columns say of each node, by id: what undo must restore."""
    columns = snapshot.columns
    return {
        record.id: (
            record,
            int(columns.cpu_free[row]),
            int(columns.memory_free[row]),
            int(columns.usable_milli_free[row]),
            int(columns.holder[row]),
            columns.device_milli_free[row].tolist(),
            columns.device_memory_free[row].tolist(),
            columns.device_holder[row].tolist(),
            columns.device_slots[row].tolist(),
            sorted(holding.task for holding in snapshot.list_holdings(record.id)),
        )
        for row, record in snapshot.list_nodes()
    }


def check_partitions(device: DeviceRecord, picks: Sequence[DevicePick], taken: int) -> None:
    """A device is in one mode, and its partitions lie at legal starts, none upon another."""
    geometry = device.profile.geometry
    assert all((pick.profile is None) == (geometry is None) for pick in picks), "one mode at a time"
    assert taken == sum(pick.slots for pick in picks)
    assert taken.bit_count() == sum(pick.slots.bit_count() for pick in picks), "no slice is held twice"
    if geometry is None:
        return
    for pick in picks:
        profile = geometry.find_profile(pick.profile or "")
        assert profile is not None
        assert pick.slots in {profile.mask(start) for start in profile.starts}
        assert pick.milli == geometry.slice_milli * profile.slices
        assert pick.memory_mib == (device.profile.memory_mib or 0) * profile.slices // geometry.slices


def check_invariants(world: World) -> None:
    """No node, device or limit is exceeded, and the columns agree with a recount of the holdings."""
    columns = world.snapshot.columns
    for row, record in world.snapshot.list_nodes():
        held = world.snapshot.list_holdings(record.id)
        assert record.cpu_milli - sum(one.cpu_milli for one in held) == columns.cpu_free[row] >= 0
        assert record.memory_mib - sum(one.memory_mib for one in held) == columns.memory_free[row] >= 0
        for slot, this in enumerate(record.devices):
            picks = [pick for one in held for pick in one.devices if pick.device == this.id]
            milli = sum(pick.milli for pick in picks)
            memory = sum(pick.memory_mib for pick in picks)
            assert 1000 - milli == columns.device_milli_free[row, slot] >= 0
            assert (this.profile.memory_mib or 0) - memory == columns.device_memory_free[row, slot] >= 0
            if any(pick.milli == 1000 for pick in picks):
                assert len(picks) == 1, "a device lent whole is lent to nobody else"
            check_partitions(this, picks, int(columns.device_slots[row, slot]))
    for key, used in world.usage().items():
        for resource, amount in used.items():
            assert amount <= world.pools[key].limit_of(resource).cap
