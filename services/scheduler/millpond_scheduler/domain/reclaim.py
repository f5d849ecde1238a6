"""Taking back what was lent: which tasks of borrowers stop, so that a task within its guarantee can start.

Everything is tried on the snapshot and undone. A trial sees the pool as it will be once what is being stopped has
ended and what was promised to others has started, so no two claimants count on the same room.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from millpond_contracts.ids import JobId, NodeId, ProjectId, TaskId, VirtualPoolId
from millpond_scheduler.domain.admission import CPU, MEMORY, Balance, Resource, VirtualPoolState, device
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.plans import Claim, Holding
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.verdicts import CODES, Reason

# So many nodes are compared at most, the oldest first: each costs some trials.
MAX_NODES = 64
_DEVICE_REASONS = (
    Reason.NOT_ENOUGH_DEVICES,
    Reason.LARGEST_FREE_BLOCK_TOO_SMALL,
    Reason.DEVICE_SHARED_WITH_OTHER_TENANT,
)
_DEVICE_CODES = frozenset(CODES[reason] for reason in _DEVICE_REASONS)


@dataclass(frozen=True, slots=True)
class Running:
    """A task that holds something. `gang` names the tasks that stop with it; `started_us` is when it was bound."""

    holding: Holding
    virtual_pool: VirtualPoolId
    flavor: str | None
    priority: int
    started_us: int
    gang: tuple[JobId, str] | None = None
    is_stopping: bool = False
    project: ProjectId | None = None

    @property
    def id(self) -> TaskId:
        return self.holding.task

    def demand(self) -> dict[Resource, int]:
        """What it counts against the limits of its virtual pool."""
        held = {CPU: self.holding.cpu_milli, MEMORY: self.holding.memory_mib}
        if self.flavor is not None:
            held[device(self.flavor)] = self.holding.device_milli
        return held


@dataclass(frozen=True, slots=True)
class StopGroup:
    """What stops together: a task, or all running tasks of a gang."""

    tasks: tuple[Running, ...]

    @property
    def virtual_pool(self) -> VirtualPoolId:
        return self.tasks[0].virtual_pool

    @property
    def cost(self) -> tuple[int, int, int, int]:
        """Cheapest first: low priority, few tasks, little time lost; the id decides between equals."""
        newest = max(task.started_us for task in self.tasks)
        return (max(task.priority for task in self.tasks), len(self.tasks), -newest, self.tasks[0].id.int)


def choose_above(running: Iterable[Running], above: Mapping[Resource, int]) -> list[TaskId]:
    """The tasks of one virtual pool that stop so that it holds so much less, the cheapest, and no more than needed.

    Args:
        running: everything it holds; what is stopping already counts as gone.
        above: what it holds above its limits, by resource.
    """
    tasks = sorted(running, key=lambda task: task.id.int)
    missing = dict(above)
    for task in tasks:
        if task.is_stopping:
            _add(missing, task, -1)
    groups = sorted(_group([task for task in tasks if not task.is_stopping]), key=lambda group: group.cost)
    picked: list[StopGroup] = []
    for group in groups:
        if any(
            missing.get(resource, 0) > 0 for task in group.tasks for resource, held in task.demand().items() if held
        ):
            picked.append(group)
            for task in group.tasks:
                _add(missing, task, -1)
    for group in reversed(picked[:]):
        without = dict(missing)
        for task in group.tasks:
            _add(without, task, 1)
        if all(amount <= 0 for amount in without.values()):
            picked.remove(group)
            missing = without
    return [task.id for group in picked for task in group.tasks]


def _add(missing: dict[Resource, int], task: Running, sign: int) -> None:
    for resource, amount in task.demand().items():
        if resource in missing:
            missing[resource] += sign * amount


def _group(tasks: Iterable[Running]) -> list[StopGroup]:
    """What stops together."""
    gangs: dict[object, list[Running]] = {}
    for task in tasks:
        gangs.setdefault(task.id if task.gang is None else task.gang, []).append(task)
    return [StopGroup(tuple(members)) for members in gangs.values()]


class Lent:
    """What borrowers hold above their guarantees, and who of them could give it back.

    Args:
        list_running: everything that holds something; called once, when first needed.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        virtual_pools: Mapping[VirtualPoolId, VirtualPoolState],
        list_running: Callable[[], Iterable[Running]],
    ) -> None:
        self._snapshot = snapshot
        self._virtual_pools = virtual_pools
        self._list_running = list_running
        self._is_loaded = False
        self._borrowed: dict[tuple[VirtualPoolId, Resource], int] = {}
        self._groups: defaultdict[NodeId, list[StopGroup]] = defaultdict(list)
        self._ending: dict[TaskId, Running] = {}

    def is_any(self) -> bool:
        """Whether anybody borrows anything that could be taken back."""
        borrowers = (
            state
            for state in self._virtual_pools.values()
            if any(used > state.limit_of(resource).guaranteed for resource, used in state.used.items())
        )
        if not self._is_loaded and next(borrowers, None) is None:
            return False  # what runs needs not even be listed
        self._load()
        return any(amount > 0 for amount in self._borrowed.values())

    @contextmanager
    def as_it_will_be(self, claims: Iterable[Claim]) -> Iterator[None]:
        """The snapshot without what is being stopped, with what is promised in its place; afterwards as before."""
        self._load()
        mark = self._snapshot.mark()
        gone = [task for task in self._ending.values() if self._snapshot.release_allocation(task.id) is not None]
        for claim in claims:
            for placement in claim.placements:
                if self._snapshot.find_holding(placement.holding.task) is None:
                    self._snapshot.place(placement.holding)
        try:
            yield
        finally:
            self._snapshot.undo_to(mark)
            for task in gone:
                self._snapshot.apply_allocation(task.holding)

    def find_victims(
        self, candidates: Candidates, balance: Balance, blocked: Collection[int]
    ) -> tuple[int, list[StopGroup]] | None:
        """The row where the cheapest victims make room for one task, and these; None when no row can be freed so.

        Compared by the highest priority among the victims, then by how many tasks stop, then by the node's age.
        """
        best: tuple[tuple[int, int, int], int, list[StopGroup]] | None = None
        for row in self._list_rows(candidates, blocked):
            found = self._free_row(candidates, row, balance)
            if found is None:
                continue
            tasks = [task for group in found for task in group.tasks]
            cost = (max(task.priority for task in tasks), len(tasks), self._snapshot.record_at(row).id.int)
            if best is None or cost < best[0]:
                best = (cost, row, found)
        return None if best is None else best[1:]

    def release(self, groups: Sequence[StopGroup]) -> None:
        """Sees the groups as ended, on the snapshot and in what is borrowed."""
        for task in (task for group in groups for task in group.tasks):
            self._snapshot.release_allocation(task.id)
            self._count(task, -1)

    def restore(self, groups: Sequence[StopGroup]) -> None:
        """Undoes `release`."""
        for task in (task for group in groups for task in group.tasks):
            self._snapshot.apply_allocation(task.holding)
            self._count(task, 1)

    def take(self, groups: Sequence[StopGroup]) -> None:
        """The groups are to be stopped: nobody counts on them any more."""
        for task in (task for group in groups for task in group.tasks):
            self._ending[task.id] = task
            self._count(task, -1)

    def _load(self) -> None:
        if self._is_loaded:
            return
        self._is_loaded = True
        tasks = sorted(self._list_running(), key=lambda one: one.id.int)
        self._ending = {task.id: task for task in tasks if task.is_stopping}
        staying = [task for task in tasks if not task.is_stopping]
        for task in staying:
            self._count(task, 1)
        for virtual_pool, resource in self._borrowed:
            state = self._virtual_pools.get(virtual_pool)
            if state is not None:
                self._borrowed[virtual_pool, resource] -= state.limit_of(resource).guaranteed
        for group in _group(staying):
            for node in {task.holding.node for task in group.tasks}:
                self._groups[node].append(group)
        for groups in self._groups.values():
            groups.sort(key=lambda group: group.cost)

    def _count(self, task: Running, sign: int) -> None:
        for resource, amount in task.demand().items():
            key = (task.virtual_pool, resource)
            self._borrowed[key] = self._borrowed.get(key, 0) + sign * amount

    def _list_rows(self, candidates: Candidates, blocked: Collection[int]) -> list[int]:
        """Rows that could take the task when empty and hold something that could stop."""
        rows = []
        for row in candidates.view_empty()[1].tolist():
            groups = self._groups.get(self._snapshot.record_at(row).id)
            if groups and row not in blocked:
                rows.append(row)
        return sorted(rows, key=lambda row: self._snapshot.record_at(row).id.int)[:MAX_NODES]

    def _free_row(self, candidates: Candidates, row: int, balance: Balance) -> list[StopGroup] | None:
        """The victims that make room on a row, as few as possible; the snapshot is as before."""
        picked: list[StopGroup] = []
        while code := int(candidates.codes[row]):
            group = self._next_victim(row, _short_of(candidates, balance, code), balance)
            if group is None:
                self.restore(picked)
                return None
            self.release([group])
            picked.append(group)
        for group in sorted(picked, key=lambda one: one.cost, reverse=True):
            self.restore([group])
            if candidates.codes[row] == 0:
                picked.remove(group)  # it fits without it: the dearest are let go first
            else:
                self.release([group])
        self.restore(picked)
        return picked

    def _next_victim(self, row: int, wanted: Collection[Resource], balance: Balance) -> StopGroup | None:
        node = self._snapshot.record_at(row).id
        for group in self._groups[node]:
            is_gone = self._snapshot.find_holding(group.tasks[0].id) is None  # seen as ended in this trial already
            if is_gone or group.virtual_pool == balance.state.id:
                continue
            held = {
                resource
                for task in group.tasks
                if task.holding.node == node
                for resource, amount in task.demand().items()
                if amount
            }
            if any(self._borrowed[group.virtual_pool, resource] > 0 for resource in held & set(wanted)):
                return group
        return None


def _short_of(candidates: Candidates, balance: Balance, code: int) -> list[Resource]:
    """What a node lacks by its code, as far as the claimant's guarantee covers it."""
    request = candidates.request
    amounts: dict[Resource, int] = {}
    if code == CODES[Reason.NOT_ENOUGH_CPU]:
        amounts = {CPU: request.cpu_milli}
    elif code == CODES[Reason.NOT_ENOUGH_MEMORY]:
        amounts = {MEMORY: request.memory_mib}
    elif code in _DEVICE_CODES:
        amounts = {device(flavor): candidates.milli_of(flavor) for flavor in candidates.flavors}
    return [resource for resource, amount in amounts.items() if balance.is_guaranteed(resource, amount)]
