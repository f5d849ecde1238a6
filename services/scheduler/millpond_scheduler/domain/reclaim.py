"""Whose tasks stop, so that a waiting one can start: what was lent is taken back, or lower priority gives way.

Who may is said in `preemption.py`; here the least costly are found.

Everything is tried on the snapshot and undone. A trial sees the pool as it will be once what is being stopped has
ended and what was promised to others has started, so no two claimants count on the same room.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from millpond_contracts.ids import NodeId, TaskId, VirtualPoolId
from millpond_scheduler.domain.admission import CPU, MEMORY, Balance, Resource, VirtualPoolState, device
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.fair_share import NOTHING, FairShares, Standing
from millpond_scheduler.domain.plans import Claim, Spared
from millpond_scheduler.domain.preemption import Claimant, Evictions
from millpond_scheduler.domain.running import Running, StopGroup, group_running
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.verdicts import CODES, Reason

# So many nodes are compared at most, the oldest first: each costs some trials.
MAX_NODES = 64
_DEVICE_REASONS = (
    Reason.NOT_ENOUGH_DEVICES,
    Reason.NO_LEGAL_START,
    Reason.LARGEST_FREE_BLOCK_TOO_SMALL,
    Reason.DEVICE_SHARED_WITH_OTHER_TENANT,
)
_DEVICE_CODES = frozenset(CODES[reason] for reason in _DEVICE_REASONS)


class Lent:
    """What borrowers hold above their guarantees, and who of them, or of a claimant's own work, could give way.

    Args:
        list_running: everything that holds something; called once, when first needed.
        shares: whoever stands last by them gives back first.
        evictions: what was stopped for others lately.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        virtual_pools: Mapping[VirtualPoolId, VirtualPoolState],
        list_running: Callable[[], Iterable[Running]],
        shares: FairShares,
        evictions: Evictions,
        now_us: int,
    ) -> None:
        self._snapshot = snapshot
        self._virtual_pools = virtual_pools
        self._list_running = list_running
        self._shares = shares
        self._evictions = evictions
        self._now_us = now_us
        self._places: dict[VirtualPoolId, int] = {}
        self._of_pool: defaultdict[VirtualPoolId, list[StopGroup]] = defaultdict(list)
        self._is_loaded = False
        self._borrowed: dict[tuple[VirtualPoolId, Resource], int] = {}
        self._groups: defaultdict[NodeId, list[StopGroup]] = defaultdict(list)
        self._ending: dict[TaskId, Running] = {}

    def is_any(self, claimant: Claimant) -> bool:
        """Whether there is anything that could stop for it: its own of lower priority, or what anybody borrows."""
        if claimant.may_stop_own:
            self._load()
            groups = self._of_pool[claimant.task.virtual_pool]
            if any(group.priority < claimant.task.priority for group in groups):
                return True
        return not claimant.standing.borrows and self._is_any_borrowed()

    def _is_any_borrowed(self) -> bool:
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
    def as_it_will_be(self, claims: Iterable[Claim], balance: Balance) -> Iterator[None]:
        """The snapshot without what is being stopped, with what is promised in its place; afterwards as before.

        The same of what the balance holds; what is promised is charged to it already.
        """
        self._load()
        mark = self._snapshot.mark()
        gone = [task for task in self._ending.values() if self._snapshot.release_allocation(task.id) is not None]
        mine = [task.demand() for task in gone if task.virtual_pool == balance.state.id]
        for demand in mine:
            balance.charge(demand, -1)
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
            for demand in mine:
                balance.charge(demand)

    @contextmanager
    def without_own(self, claimant: Claimant) -> Iterator[None]:
        """The claimant's balance as if all that it may stop of its own were gone: which flavors could it get so?"""
        groups = [group for group in self._list_own(claimant) if not self._is_gone(group)]
        mine = [task.demand() for group in groups for task in group.tasks]
        for demand in mine:
            claimant.balance.charge(demand, -1)
        try:
            yield
        finally:
            for demand in mine:
                claimant.balance.charge(demand)

    def find_victims(
        self, candidates: Candidates, claimant: Claimant, blocked: Collection[int]
    ) -> tuple[int, list[StopGroup]] | None:
        """The row where the cheapest victims make room for one task, and these; None when no row can be freed so.

        What is lent goes before the claimant's own work; then whoever stands last, then the costs of the victims as
        those of one, then the node's age.
        """
        best: tuple[tuple[object, ...], int, list[StopGroup]] | None = None
        for row in self._list_rows(candidates, blocked):
            found = self._free_row(candidates, row, claimant)
            if found is None:
                continue
            whole = StopGroup(tuple(task for group in found for task in group.tasks))
            *cost, _ = whole.cost(self._now_us)
            place = max(self._place(group, claimant) for group in found)
            key = (place, *cost, self._snapshot.record_at(row).id.int)
            if best is None or key < best[0]:
                best = (key, row, found)
        return None if best is None else best[1:]

    def find_own_victims(self, claimant: Claimant, placed: Collection[Resource]) -> list[StopGroup] | None:
        """The cheapest of its own work that has to stop so that what is placed is within its limits, seen as ended.

        None, and nothing is seen as ended, when that does not help.
        """

        def find_next() -> StopGroup | None:
            excess = claimant.balance.find_excess(placed)
            groups = (
                group
                for group in self._list_own(claimant)
                if excess and not self._is_gone(group) and any(task.demand().get(excess) for task in group.tasks)
            )
            return min(groups, key=lambda one: one.cost(self._now_us), default=None)

        return self._pick_fewest(claimant, find_next, lambda: claimant.balance.find_excess(placed) is None)

    def release(self, groups: Sequence[StopGroup], claimant: Claimant) -> None:
        """Sees the groups as ended, on the snapshot, in what is borrowed, and in the claimant's balance."""
        for task in (task for group in groups for task in group.tasks):
            self._snapshot.release_allocation(task.id)
            self._count(task, -1)
            if task.virtual_pool == claimant.balance.state.id:
                claimant.balance.charge(task.demand(), -1)

    def restore(self, groups: Sequence[StopGroup], claimant: Claimant) -> None:
        """Undoes `release`."""
        for task in (task for group in groups for task in group.tasks):
            self._snapshot.apply_allocation(task.holding)
            self._count(task, 1)
            if task.virtual_pool == claimant.balance.state.id:
                claimant.balance.charge(task.demand())

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
        for group in group_running(staying):
            self._of_pool[group.virtual_pool].append(group)
            for node in {task.holding.node for task in group.tasks}:
                self._groups[node].append(group)
        last_first = sorted(
            (state for state in self._virtual_pools.values() if state.id in self._of_pool),
            key=lambda state: (self._shares.weigh(state, state.used), state.id.int),
            reverse=True,
        )
        self._places = {state.id: place for place, state in enumerate(last_first)}
        for groups in self._groups.values():
            groups.sort(key=lambda group: (self._places.get(group.virtual_pool, 0), *group.cost(self._now_us)))

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

    def _free_row(self, candidates: Candidates, row: int, claimant: Claimant) -> list[StopGroup] | None:
        """The victims that make room on a row, as few as possible; the snapshot is as before."""

        def find_next() -> StopGroup | None:
            return self._next_victim(row, _short_of(candidates, int(candidates.codes[row])), claimant)

        picked = self._pick_fewest(claimant, find_next, lambda: candidates.codes[row] == 0)
        self.restore(picked or (), claimant)
        return picked

    def _pick_fewest(
        self, claimant: Claimant, find_next: Callable[[], StopGroup | None], is_enough: Callable[[], bool]
    ) -> list[StopGroup] | None:
        """Sees one group after the other as ended until it is enough, then lets the dearest go that are not needed.

        None, and nothing is seen as ended, when there are no more before it is enough.
        """
        picked: list[StopGroup] = []
        while not is_enough():
            group = find_next()
            if group is None:
                self.restore(picked, claimant)
                return None
            self.release([group], claimant)
            picked.append(group)
        for group in sorted(picked, key=lambda one: one.cost(self._now_us), reverse=True):
            self.restore([group], claimant)
            if is_enough():
                picked.remove(group)
            else:
                self.release([group], claimant)
        return picked

    def _next_victim(self, row: int, wanted: Mapping[Resource, int], claimant: Claimant) -> StopGroup | None:
        """What is lent first, then the claimant's own of lower priority."""
        node, balance = self._snapshot.record_at(row).id, claimant.balance
        covered = {resource for resource, amount in wanted.items() if balance.is_guaranteed(resource, amount)}
        own: StopGroup | None = None
        for group in self._groups[node]:
            if self._is_gone(group):
                continue
            held = {
                resource
                for task in group.tasks
                if task.holding.node == node
                for resource, amount in task.demand().items()
                if amount
            }
            if group.virtual_pool == balance.state.id:
                if own is None and held & wanted.keys() and self._may_stop_own(group, claimant):
                    own = group
            elif self._gives_back(group, held & covered, claimant):
                return group
        return own

    def _gives_back(self, group: StopGroup, resources: Collection[Resource], claimant: Claimant) -> bool:
        borrowed = [each for each in resources if self._borrowed[group.virtual_pool, each] > 0]
        if not borrowed:
            return False
        # What was stopped would ask for as much again and borrow it: so it stands, and behind the claimant.
        return claimant.standing.may_take_from(Standing.of(NOTHING, borrows=True)) and self._is_free(group, claimant)

    def _may_stop_own(self, group: StopGroup, claimant: Claimant) -> bool:
        return claimant.may_stop_own and group.priority < claimant.task.priority and self._is_free(group, claimant)

    def _list_own(self, claimant: Claimant) -> list[StopGroup]:
        if not claimant.may_stop_own:
            return []
        groups = self._of_pool[claimant.task.virtual_pool]
        return [group for group in groups if self._may_stop_own(group, claimant)]

    def _is_free(self, group: StopGroup, claimant: Claimant) -> bool:
        """Whether nothing spares it; what does is noted."""
        state = self._virtual_pools.get(group.virtual_pool)
        started = max(task.started_us for task in group.tasks)
        why = self._evictions.judge([task.id for task in group.tasks], claimant.task.id)
        if state is not None and self._now_us - started < state.minimum_runtime_seconds * 1_000_000:
            why = Spared.MINIMUM_RUNTIME
        if why is not None:
            claimant.spared |= dict.fromkeys((task.id for task in group.tasks), why)
        return why is None

    def _is_gone(self, group: StopGroup) -> bool:
        """Whether it is seen as ended in this trial already."""
        return self._snapshot.find_holding(group.tasks[0].id) is None

    def _place(self, group: StopGroup, claimant: Claimant) -> tuple[bool, int]:
        """The claimant's own work last, then from whoever stands last to whoever stands first."""
        return group.virtual_pool == claimant.balance.state.id, self._places.get(group.virtual_pool, 0)


def _short_of(candidates: Candidates, code: int) -> dict[Resource, int]:
    """What a node lacks by its code, with what the claimant asks of it."""
    request = candidates.request
    amounts: dict[Resource, int] = {}
    if code == CODES[Reason.NOT_ENOUGH_CPU]:
        amounts = {CPU: request.cpu_milli}
    elif code == CODES[Reason.NOT_ENOUGH_MEMORY]:
        amounts = {MEMORY: request.memory_mib}
    elif code in _DEVICE_CODES:
        amounts = {device(flavor): candidates.milli_of(flavor) for flavor in candidates.flavors}
    return amounts
