"""The nodes as each request sees them, what stands in its way on the others, and the cache of what was found."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from millpond_contracts.ids import TaskId, TenantId
from millpond_contracts.partitions import mask_of
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain import checks, policy
from millpond_scheduler.domain.admission import CPU, MEMORY, Wants, device
from millpond_scheduler.domain.columns import CodeArray, IntArray
from millpond_scheduler.domain.distance import DistanceRules
from millpond_scheduler.domain.fits import ShapeFits
from millpond_scheduler.domain.plans import DevicePick
from millpond_scheduler.domain.ranking import Ranking
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.scoring import Kernel
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.verdicts import CODES, REASONS, Reason
from millpond_scheduler.domain.views import RowView, share_of_memory

_ANYBODY = TenantId(int=0)
# So many requests are remembered without their tenants.
_MOST_SHARED = 10_000


class Candidates:
    """All nodes as one request class sees them. Every answer is as of the snapshot at the moment of asking.

    Args:
        ranking: what is remembered of it, which other tenants' equal requests may share.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        request: RequestClass,
        distance: DistanceRules | None = None,
        kernel: Kernel | None = None,
        ranking: Ranking | None = None,
    ) -> None:
        self.request = request
        self._snapshot = snapshot
        self._wants: Wants | None = None
        self._ranking = ranking or Ranking(snapshot, request, distance or DistanceRules(), kernel)

    @property
    def fits(self) -> ShapeFits:
        """What the hardware is to the request."""
        return self._ranking.fits

    @property
    def flavors(self) -> tuple[str, ...]:
        """The flavors that the hardware of the pool would allow, by name."""
        return self._ranking.flavors

    @property
    def wants(self) -> Wants:
        """What one task counts against limits."""
        flavors = self._ranking.flavors
        if self._wants is None or self._wants.flavors is not flavors:
            base = {CPU: self.request.cpu_milli, MEMORY: self.request.memory_mib}
            asked = () if self.request.devices is None else flavors
            self._wants = Wants(base, {device(name): self.milli_of(name) for name in asked}, flavors)
        return self._wants

    @property
    def codes(self) -> CodeArray:
        """Per row the code of the first filter that it fails, 0 = may take the task."""
        self._ranking.refresh()
        return self._ranking.codes

    @property
    def scores(self) -> IntArray:
        """Per row its rank, smallest first; BLOCKED where the task may not go."""
        self._ranking.refresh()
        return self._ranking.scores

    def refresh(self) -> None:
        """Judge and score the rows that changed since the last call."""
        self._ranking.refresh()

    def find_best(self, kept_free: Collection[int] = ()) -> int | None:
        """The row that takes the task: the lowest score, of equal ones the oldest node; None when every node fails.

        Args:
            kept_free: rows that are earmarked for another task.
        """
        self._ranking.refresh()
        return self._ranking.find_best(kept_free)

    def pick_devices(self, row: int) -> tuple[DevicePick, ...]:
        """What the task would hold of each of its devices on a row that may take it."""
        demand = self.request.devices
        if demand is None:
            return ()
        if demand.profile is not None:
            return (self._pick_partition(row),)
        self._ranking.refresh()
        devices = self._snapshot.record_at(row).devices
        picks = []
        for slot in self._ranking.list_slots(row):
            total = devices[slot].profile.memory_mib or 0
            if demand.is_whole:
                milli, memory = WHOLE_DEVICE_MILLI, total
            elif demand.milli is None:
                memory = demand.memory_mib or 0
                milli = int(share_of_memory(memory, np.array([total]))[0])
            else:
                milli = demand.milli
                memory = demand.memory_mib or total * milli // WHOLE_DEVICE_MILLI
            picks.append(DevicePick(devices[slot].id, milli, memory))
        return tuple(picks)

    def _pick_partition(self, row_: int) -> DevicePick:
        view = RowView(self._snapshot, self.fits, np.array([row_]))
        (slot,) = policy.pick_slots(view)
        device = self._snapshot.record_at(row_).devices[slot].id
        milli, memory = np.asarray(view.slice_milli()), np.asarray(view.slice_memory())
        tables, row = self.fits.partitions, self.fits.slot_partition[view.shape[0], slot]
        start = int(tables.starts[row, view.device_slots()[0, slot]])
        mask = mask_of(start, int(tables.slices[row]))
        profile = self.request.devices.profile if self.request.devices is not None else None
        return DevicePick(device, int(milli[0, slot]), int(memory[0, slot]), profile, mask)

    def count_reasons(
        self, kept_free: Collection[int] = (), barred: Mapping[Reason, IntArray] = MappingProxyType({})
    ) -> dict[Reason, int]:
        """The pool's nodes by the first filter that they fail; the counts sum to the pool's nodes.

        Args:
            barred: rows that it may not use because of where other tasks stand, by why.
        """
        codes = self.codes
        if kept_free or barred:
            codes = codes.copy()
            for reason, rows in (*barred.items(), (Reason.EARMARKED, np.array(list(kept_free), dtype=np.int64))):
                codes[rows[codes[rows] == 0]] = CODES[reason]
        counts = np.bincount(codes, minlength=len(REASONS)).tolist()
        return {
            reason: count
            for reason, count in zip(REASONS, counts, strict=True)
            if count and reason is not Reason.WRONG_POOL
        }

    def has_unavailable_match(self) -> bool:
        """Whether a node of the pool that takes no work now has hardware that the request could use."""
        codes, columns = self.codes, self._snapshot.columns
        shut = (codes == CODES[Reason.NOT_SCHEDULABLE]) | (codes == CODES[Reason.CORDONED])
        rows = np.flatnonzero(shut)
        matching = self.fits.codes[columns.shape[rows]] == 0
        return bool((matching & checks.is_chosen(RowView(self._snapshot, self.fits, rows))).any())

    def milli_of(self, flavor: str) -> int:
        """Device milli that the task would hold of this flavor; where devices of it differ, the most it can be."""
        demand = self.request.devices
        if demand is None:
            return 0
        if demand.profile is not None:
            return self.fits.partition_milli[flavor]
        if demand.milli is not None:
            return demand.count * demand.milli
        return int(share_of_memory(demand.memory_mib or 0, np.array([self.fits.flavors[flavor]]))[0])

    def describe_ranks(self, row: int) -> list[tuple[str, int]]:
        """What each comparison of the policy says of a row that may take the task."""
        self.refresh()
        return policy.describe_ranks(RowView(self._snapshot, self.fits, np.array([row])))

    def view_empty(self) -> tuple[RowView, IntArray]:
        """All rows as if nothing ran on them, and the rows that could then take the task."""
        self.refresh()
        view = RowView(self._snapshot, self.fits, slice(0, self._snapshot.columns.rows), empty=True)
        return view, np.flatnonzero(policy.judge(view) == 0)


class CandidateCache:
    """The most recently used request classes of one snapshot; what is alike to all tenants is remembered once.

    `searched_us`: when a gang was last searched for exactly and in vain, by its first task.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        size: int = 256,
        distance: DistanceRules | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.distance = distance or DistanceRules()
        self.searched_us: dict[TaskId, int] = {}
        self._size = size
        self._kernel = kernel
        self._layout = snapshot.layout
        self._candidates: dict[RequestClass, Candidates] = {}
        self._rankings: dict[RequestClass, Ranking] = {}
        self._shared: dict[RequestClass, RequestClass] = {}

    @property
    def has_kernel(self) -> bool:
        """Whether the kernel scores."""
        return self._kernel is not None

    def use(self, kernel: Kernel) -> None:
        """Has the kernel do it from now on; what is remembered is computed anew."""
        self._kernel = kernel
        self._candidates.clear()
        self._rankings.clear()

    def get(self, request: RequestClass) -> Candidates:
        """The candidates of a request, made at its first use."""
        if self._layout != self.snapshot.layout:
            self._candidates.clear()  # whether tenants share a ranking may have changed
            self._layout = self.snapshot.layout
        found = self._candidates.get(request)
        if found is None:
            ranking = self._ranking_of(request)
            found = self._candidates[request] = Candidates(self.snapshot, request, ranking=ranking)
        return found

    def _ranking_of(self, request: RequestClass) -> Ranking:
        key = request if policy.depends_on_tenant(self.snapshot, request) else self._without_tenant(request)
        found = self._rankings.get(key)
        if found is None:
            if len(self._rankings) >= self._size:
                del self._rankings[min(self._rankings, key=lambda each: self._rankings[each].seen)]
                self._candidates.clear()
            found = self._rankings[key] = Ranking(self.snapshot, request, self.distance, self._kernel)
        return found

    def _without_tenant(self, request: RequestClass) -> RequestClass:
        found = self._shared.get(request)
        if found is None:
            if len(self._shared) >= _MOST_SHARED:
                self._candidates.clear()
                self._shared.clear()
            found = replace(request, tenant=_ANYBODY)
            # One object for all tenants, so that it is found by what it is before it is compared part by part.
            found = self._shared[request] = self._shared.setdefault(found, found)
        return found
