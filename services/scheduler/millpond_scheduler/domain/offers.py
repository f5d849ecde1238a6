"""A dry run: where a job would start now, and in which other ways it could. The snapshot is left as it was."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from millpond_contracts.ids import NodeId, TaskId, VirtualPoolId
from millpond_scheduler.domain.admission import CPU, MEMORY, Resource, VirtualPoolState, device
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.cycle import VirtualPools, plan_batch
from millpond_scheduler.domain.distance import Distance, measure_distance, wishes_of
from millpond_scheduler.domain.explain import Explanation, explain
from millpond_scheduler.domain.horizon import Horizon
from millpond_scheduler.domain.plans import Claim, Placement, Plan
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.domain.preemption import Evictions
from millpond_scheduler.domain.requests import QueuedTask, RequestClass
from millpond_scheduler.domain.running import Running
from millpond_scheduler.domain.snapshot import Snapshot

# Other flavors are tried for jobs of so many tasks at most, and so many of them: each is a whole dry run.
MAX_TASKS = 1000
MAX_FLAVORS = 8


@dataclass(frozen=True, slots=True)
class AskedTask:
    """One task of the job that is asked about, as it would stand in the queue; `stage` > 0 = others come before it."""

    group: str
    queued: QueuedTask
    stage: int = 0


@dataclass(frozen=True, slots=True)
class OfferPart:
    """Tasks of one group that would start on devices of one flavor; amounts per task, `nodes` in order of choice.

    `ranks` are the comparisons that the first node won, as the nodes are now.
    """

    group: str
    tasks: int
    flavor: str | None
    nodes: tuple[NodeId, ...]
    cpu_milli: int
    memory_mib: int
    device_milli: int
    distance: Distance | None
    ranks: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to start. Of all tasks `starts_now` would start, `later` when those before them ended, `waiting` not.

    `parts` are of those that would start, now or later; each stage is looked at as if it had come by itself.
    """

    parts: tuple[OfferPart, ...]
    starts_now: int
    later: int
    waiting: int

    @property
    def flavors(self) -> tuple[str, ...]:
        """The flavors in use, by name."""
        return tuple(sorted({part.flavor for part in self.parts if part.flavor is not None}))

    @property
    def distance_permille(self) -> int:
        """How far the furthest part is from its need."""
        return max((part.distance.permille for part in self.parts if part.distance is not None), default=0)


@dataclass(frozen=True, slots=True)
class DryRun:
    """The first offer is what the scheduler would do; `explanation` says why what waits would wait."""

    offers: tuple[Offer, ...]
    explanation: Explanation | None


@dataclass(frozen=True, slots=True)
class DryRunner:
    """What a dry run is made on. `ahead` = waiting tasks of other jobs that may have nodes kept free for them.

    `list_running` and `claims` are what `plan_batch` takes: what might be stopped, and what is kept for whom;
    `horizon` the ends of what runs.
    """

    snapshot: Snapshot
    cache: CandidateCache
    virtual_pools: VirtualPools
    ahead: Sequence[QueuedTask]
    now_us: int
    policy: Policy
    list_running: Callable[[], Iterable[Running]]
    claims: Mapping[TaskId, Claim]
    evictions: Evictions | None = None
    horizon: Horizon | None = None

    def run(self, asked: Sequence[AskedTask]) -> DryRun:
        """Plan the job as it is; then, if it may use other flavors, with each of them alone."""
        first, explanation = self._try(asked, explains=True)
        offers = [] if first is None else [first]
        others = [self._try(narrowed)[0] for narrowed in self._list_narrowed(asked, first)]
        seen = {_signature(offer) for offer in offers}
        for offer in sorted(filter(None, others), key=lambda one: (one.waiting, one.distance_permille, one.flavors)):
            if _signature(offer) not in seen:
                seen.add(_signature(offer))
                offers.append(offer)
        return DryRun(tuple(offers), explanation)

    def _list_narrowed(self, asked: Sequence[AskedTask], first: Offer | None) -> Iterable[list[AskedTask]]:
        """The same job with only one flavor wherever a group may use that one."""
        if first is None or len(asked) > MAX_TASKS:
            return
        usable = {request: self.cache.get(request).flavors for request in {one.queued.request for one in asked}}
        flavors = sorted({flavor for found in usable.values() for flavor in found})
        for flavor in [each for each in flavors if (each,) != first.flavors][:MAX_FLAVORS]:
            requests = {
                request: _only(request, flavor) if flavor in found else request for request, found in usable.items()
            }
            yield [replace(one, queued=replace(one.queued, request=requests[one.queued.request])) for one in asked]

    def _try(self, asked: Sequence[AskedTask], *, explains: bool = False) -> tuple[Offer | None, Explanation | None]:
        """One dry run, taken back afterwards; no offer when nothing of the job would start now."""
        stages: defaultdict[int, list[AskedTask]] = defaultdict(list)
        for one in asked:
            stages[one.stage].append(one)
        tried = [self._try_stage(tasks, explains=explains) for _, tasks in sorted(stages.items())]
        explanation = next((each for *_, each in tried if each is not None), None)
        starts_now, later = tried[0][0], sum(placed for placed, *_ in tried[1:])
        if not starts_now:
            return None, explanation
        parts = tuple(part for _, found, _ in tried for part in found)
        return Offer(parts, starts_now, later, len(asked) - starts_now - later), explanation

    def _try_stage(
        self, asked: Sequence[AskedTask], *, explains: bool
    ) -> tuple[int, tuple[OfferPart, ...], Explanation | None]:
        """How many tasks would start, where, and why another would not."""
        mine = {one.queued.id: one for one in asked}
        queue = [*self.ahead, *(one.queued for one in asked)]
        mark = self.snapshot.mark()
        try:
            plan = plan_batch(
                self.snapshot,
                queue,
                self.virtual_pools,
                self.now_us,
                self.policy,
                len(queue),
                self.cache,
                # What others would have to give back starts nothing now: it only matters where reasons are told.
                self.list_running if explains else tuple,
                self.claims,
                self.evictions,
                self.horizon,
            )
            explanation = self._explain(asked, plan) if explains else None
        finally:
            self.snapshot.undo_to(mark)
        placed = [placement for placement in plan.placements if placement.holding.task in mine]
        return len(placed), self._list_parts(placed, mine), explanation

    def _explain(self, asked: Sequence[AskedTask], plan: Plan) -> Explanation | None:
        """Why the first task that would wait waits, beside those that would start."""
        waiting = next((one.queued for one in asked if one.queued.id in plan.rejections), None)
        if waiting is None:
            return None
        held = _with_held(self.virtual_pools, plan.placements)
        rejection = plan.rejections[waiting.id]
        return explain(self.snapshot, waiting, held, rejection=rejection, cache=self.cache, is_trial=True)

    def _list_parts(self, placed: Sequence[Placement], mine: Mapping[TaskId, AskedTask]) -> tuple[OfferPart, ...]:
        together: defaultdict[tuple[str, str | None], list[Placement]] = defaultdict(list)
        for placement in placed:
            together[mine[placement.holding.task].group, placement.flavor].append(placement)
        parts = []
        for (group, flavor), placements in together.items():
            request = mine[placements[0].holding.task].queued.request
            holding = placements[0].holding
            nodes = tuple(dict.fromkeys(placement.holding.node for placement in placements))
            parts.append(
                OfferPart(
                    group=group,
                    tasks=len(placements),
                    flavor=flavor,
                    nodes=nodes,
                    cpu_milli=holding.cpu_milli,
                    memory_mib=holding.memory_mib,
                    device_milli=holding.device_milli,
                    distance=self._measure(request, placements),
                    ranks=self._describe_ranks(request, nodes[0]),
                )
            )
        return tuple(parts)

    def _measure(self, request: RequestClass, placements: Iterable[Placement]) -> Distance | None:
        """The distance of the furthest device in use."""
        if request.devices is None:
            return None
        wishes = wishes_of(self.cache.distance, request)
        picked: dict[NodeId, set[int]] = {}
        for placement in placements:
            picked.setdefault(placement.holding.node, set()).update(
                pick.device.int for pick in placement.holding.devices
            )
        profiles = {
            each.profile
            for node, devices in picked.items()
            for each in self.snapshot.get_node(node).devices
            if each.id.int in devices
        }
        found = [measure_distance(self.cache.distance, wishes, profile) for profile in profiles]
        return max(found, key=lambda distance: (distance.permille, [part.permille for part in distance.parts]))

    def _describe_ranks(self, request: RequestClass, node: NodeId) -> tuple[tuple[str, int], ...]:
        row = self.snapshot.find_row(node)
        return () if row is None else tuple(self.cache.get(request).describe_ranks(row))


def _only(request: RequestClass, flavor: str) -> RequestClass:
    if request.devices is None:
        return request
    return replace(request, devices=replace(request.devices, flavors=frozenset({flavor})))


def _signature(offer: Offer) -> frozenset[tuple[str, str | None, int]]:
    return frozenset((part.group, part.flavor, part.tasks) for part in offer.parts)


def _with_held(virtual_pools: VirtualPools, placements: Iterable[Placement]) -> dict[VirtualPoolId, VirtualPoolState]:
    """The virtual pools as if the placements were held."""
    held: defaultdict[VirtualPoolId, Counter[Resource]] = defaultdict(Counter)
    for placement in placements:
        counted = held[placement.virtual_pool]
        counted[CPU] += placement.holding.cpu_milli
        counted[MEMORY] += placement.holding.memory_mib
        if placement.flavor is not None:
            counted[device(placement.flavor)] += placement.holding.device_milli
    return {
        key: replace(state, used=Counter(state.used) + held[key]) if key in held else state
        for key, state in virtual_pools.items()
    }
