"""One batch of decisions: the queue and the snapshot go in, a plan comes out.

The steps: 1 order the queue; 2 admit against limits; 3 choose a node; 4 take it on the snapshot; 5 say why the others
wait; 6 stop what is lent, or of lower priority, for whoever may ask for that; 7 keep nodes free for whoever has waited
too long. The tasks of a gang take them together: when one of them finds no place, what was taken for the others is
given back.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from millpond_contracts.ids import TaskId, VirtualPoolId
from millpond_scheduler.domain.admission import (
    CPU,
    MEMORY,
    Balance,
    Ledger,
    Resource,
    VirtualPoolState,
    demand_of,
    device,
)
from millpond_scheduler.domain.apart import bar, find_apart
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.capacity import sum_free, sum_total
from millpond_scheduler.domain.exact import find_exactly
from millpond_scheduler.domain.fair_share import FairShares
from millpond_scheduler.domain.gangs import list_runs
from millpond_scheduler.domain.grounds import Ground, Runs, list_grounds
from millpond_scheduler.domain.holds import Holds
from millpond_scheduler.domain.horizon import Horizon
from millpond_scheduler.domain.order import Turns
from millpond_scheduler.domain.plans import (
    Claim,
    DevicePick,
    GangRoom,
    Halted,
    Holding,
    Placement,
    Plan,
    Reclaim,
    Rejection,
    Search,
    Spared,
)
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.domain.preemption import Claimant, Evictions
from millpond_scheduler.domain.queues import Queues
from millpond_scheduler.domain.reclaim import Lent
from millpond_scheduler.domain.refusals import admit, decide_rejection
from millpond_scheduler.domain.requests import QueuedTask, RequestClass
from millpond_scheduler.domain.returning import choose_row
from millpond_scheduler.domain.running import Running, StopGroup
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.together import can_place_together, pick_together, spread_over_rows
from millpond_scheduler.domain.verdicts import CAPACITY_REASONS, STOPPABLE_REASONS, Reason

# So many claimants of one batch at most: each costs a trial, and the next batch follows at once.
MAX_RECLAIMS = 50

VirtualPools = Mapping[VirtualPoolId, VirtualPoolState]


@dataclass(slots=True)
class _Batch:
    snapshot: Snapshot
    cache: CandidateCache
    ledger: Ledger
    lent: Lent
    turns: Turns
    holds: Holds
    claims: dict[TaskId, Claim]
    placements: list[Placement]
    rejections: dict[TaskId, Rejection] = field(default_factory=dict)
    blocked: dict[tuple[object, ...], Rejection] = field(default_factory=dict)
    reclaims: list[Reclaim] = field(default_factory=list)
    halted: list[Halted] = field(default_factory=list)
    searches: list[Search] = field(default_factory=list)
    now_us: int = 0


def plan_batch(
    snapshot: Snapshot,
    queue: Queues | Iterable[QueuedTask],
    virtual_pools: VirtualPools,
    now_us: int,
    policy: Policy | None = None,
    max_tasks: int = 500,
    cache: CandidateCache | None = None,
    list_running: Callable[[], Iterable[Running]] = tuple,
    claims: Mapping[TaskId, Claim] = MappingProxyType({}),
    evictions: Evictions | None = None,
    horizon: Horizon | None = None,
    set_aside: Collection[TaskId] = (),
) -> Plan:
    """Decide where waiting tasks go, at most `max_tasks` of them or one larger gang; the others carry a reason.

    The placements are made on the snapshot, so that the next batch can be planned while this one is committed:
    `snapshot.keep()` after the commit, `snapshot.undo_to(plan.mark)` after a refused one.

    Args:
        queue: the waiting tasks; in any order, or as the caller keeps them between batches.
        virtual_pools: all virtual pools of the shard with what they hold now.
        now_us: the instant of the decision in microseconds, the clock of `QueuedTask.queued_at_us`.
        cache: the remembered scores of this snapshot; kept by the caller between batches.
        list_running: what holds something and may be stopped for whoever is guaranteed it; nothing = no reclaim.
        claims: what earlier batches promised, by the first task of the claimant.
        evictions: what was stopped for others in the last hour.
        horizon: the ends of what runs; kept by the caller between batches. None = no end is known.
        set_aside: waiting tasks that are not looked at.
    """
    policy = policy or Policy()
    cache = cache or CandidateCache(snapshot, distance=policy.distance)
    ledger = Ledger(virtual_pools, lambda pool: sum_free(snapshot, pool))
    shares = FairShares(lambda pool: sum_total(snapshot, pool))
    lent = Lent(snapshot, virtual_pools, list_running, shares, evictions or Evictions(), now_us)
    placements: list[Placement] = []
    turns = Turns(ledger, cache, shares, claims, placements)
    holds = Holds(snapshot, horizon or Horizon(snapshot), policy, now_us)
    batch = _Batch(snapshot, cache, ledger, lent, turns, holds, dict(claims), placements, now_us=now_us)
    for claimant, claim in claims.items():
        holds.keep(claimant, claim.nodes)
    mark, examined = snapshot.mark(), 0
    # 1. Order: whoever was promised room, then in turns whoever stands first.
    for unit in turns.take(queue if isinstance(queue, Queues) else Queues(queue)):
        if batch.placements and len(batch.placements) + len(unit) > max_tasks:
            break
        if unit[0].id in set_aside:
            continue
        if [task for task in unit if snapshot.find_holding(task.id) is not None]:
            continue  # read from the queue before its placement was committed: never twice at a time
        examined += len(unit)
        rejection = _decide_unit(batch, unit)
        if rejection is not None:
            for task in unit:
                batch.rejections[task.id] = rejection
    return Plan(
        tuple(batch.placements),
        batch.rejections,
        holds.earmarks,
        examined,
        mark,
        reclaims=tuple(batch.reclaims),
        halted=tuple(batch.halted),
        searches=tuple(batch.searches),
    )


def _decide_unit(batch: _Batch, unit: tuple[QueuedTask, ...]) -> Rejection | None:
    """Place a task, or a whole gang; otherwise the reason."""
    first, size = unit[0], 0 if unit[0].gang is None else unit[0].gang.size
    if size > len(unit):
        counts = batch.cache.get(first.request).count_reasons(batch.holds.closed_to(unit))
        return Rejection(Reason.GANG_STOPPING, counts, gang=GangRoom(size, 0))
    # A batch only takes: what was blocked once stays blocked for every equal task or gang behind it.
    kept_rows = batch.holds.closed_to(unit)
    runs = list_runs(unit)
    kind = tuple((run[0].request, len(run), run[0].rules and run[0].kin, run[0].rules) for run in runs)
    key = (first.virtual_pool, kind, size, kept_rows)
    known = batch.blocked.get(key)
    if known is not None and first.id not in batch.claims:
        return known
    rejection = _try_grounds(batch, runs, kept_rows)
    if rejection is None:
        return None
    if rejection.reason in STOPPABLE_REASONS:
        claim, spared = _promise(batch, unit)
        if claim is not None:
            return replace(rejection, reason=claim.reason)
        rejection = replace(rejection, spared=spared)
    batch.blocked[key] = rejection
    if rejection.reason in CAPACITY_REASONS:
        return replace(rejection, starts_us=_keep_free(batch, runs))
    return rejection


def _try_grounds(batch: _Batch, runs: Sequence[tuple[QueuedTask, ...]], kept_rows: frozenset[int]) -> Rejection | None:
    """Place a unit on the first ground where all of it finds room, at last by an exact search; otherwise the reason."""
    rejection, grounds = None, list_grounds(batch.cache, runs, kept_rows)
    for ground in grounds:
        tried = _place_unit(batch, runs, kept_rows, ground)
        if tried is None:
            return None
        if rejection is None or _fitting(tried) >= _fitting(rejection):
            rejection = tried
    assert rejection is not None, "there is always a ground"
    is_asked = any(run[0].rules for run in runs) and not any(ground.is_short for ground in grounds)
    if rejection.gang is None or rejection.reason not in CAPACITY_REASONS or not is_asked:
        return rejection
    search = _search(batch, runs, kept_rows, grounds)
    if search is Search.FOUND:
        return None
    return replace(rejection, gang=replace(rejection.gang, search=search))


def _place_unit(
    batch: _Batch, runs: Sequence[tuple[QueuedTask, ...]], kept_rows: frozenset[int], ground: Ground
) -> Rejection | None:
    """Place a task, or a whole gang with what it packs on one ground; otherwise the reason, and all is as before."""
    mark, placed = batch.snapshot.mark(), len(batch.placements)
    for run in runs:
        fitting, rejection = _decide_run(batch, run, kept_rows, ground.closed_to(run[0].rules))
        if rejection is None:
            continue
        gang = run[0].gang
        if gang is not None:
            room = GangRoom(gang.size, len(batch.placements) - placed, level=ground.level, domain=ground.name or None)
            if len(gang.groups) > 1:
                room = replace(room, group=run[fitting].group, group_tasks=len(run), group_fitting=fitting)
            rejection = replace(rejection, gang=room, request=run[fitting].request)
        if ground.is_short and rejection.reason in CAPACITY_REASONS:
            rejection = replace(rejection, reason=Reason.DOMAIN_TOO_SMALL)
        _give_back(batch, mark, placed)
        return rejection
    return None


def _search(
    batch: _Batch, runs: Sequence[tuple[QueuedTask, ...]], kept_rows: frozenset[int], grounds: Sequence[Ground]
) -> Search | None:
    """Place a gang with rules on places exactly, where the greedy search failed; None = it was not asked."""
    balance = batch.ledger.find_balance(runs[0][0].virtual_pool)
    seen = [(run, batch.cache.get(run[0].request)) for run in runs]
    if balance is None or not _is_within(balance, seen):
        return None
    found = find_exactly(batch.cache, seen, kept_rows, grounds, batch.now_us)
    if found is None:
        return None
    mark, placed = batch.snapshot.mark(), len(batch.placements)
    for (run, candidates), rows in zip(seen, found.rows, strict=False):
        tasks = iter(run)
        for row, count in rows:
            for picks in pick_together(batch.snapshot, candidates, row, count):
                _take(batch, next(tasks), balance, candidates.request, row, picks)
    batch.searches.append(found.search)
    if found.search is Search.FOUND and len(batch.placements) - placed < sum(map(len, runs)):
        _give_back(batch, mark, placed)
        return Search.UNDECIDED
    return found.search


def _fitting(rejection: Rejection) -> int:
    return 0 if rejection.gang is None else rejection.gang.fitting


def _promise(batch: _Batch, unit: tuple[QueuedTask, ...]) -> tuple[Claim | None, Mapping[Spared, int]]:
    """The room that is being made for a task or gang, promised before and still coming, or now; else what is spared."""
    claim, balance = batch.claims.get(unit[0].id), batch.ledger.find_balance(unit[0].virtual_pool)
    if balance is None:
        return None, {}
    spared: Mapping[Spared, int] = {}
    if claim is None or not claim.is_open:
        claimant = Claimant(unit[0], balance, batch.turns.stand(balance, unit[0].request, len(unit)))
        claim = _plan_stops(batch, unit, claimant)
        if claim is None:
            spared = Counter(claimant.spared.values())
            batch.halted += claimant.list_halted()
    for placement in claim.placements if claim else ():
        balance.charge(demand_of(placement))  # so that the next one of this virtual pool is not promised the same
    return claim, spared


def _plan_stops(batch: _Batch, unit: tuple[QueuedTask, ...], claimant: Claimant) -> Claim | None:
    # 6. Take back what was lent, or let lower priority give way: the task or gang is placed as if the cheapest of what
    #    may be stopped for it had ended, and undone.
    if len(batch.reclaims) == MAX_RECLAIMS or not claimant.may_stop_any or not batch.lent.is_any(claimant):
        return None
    claimant.balance.count_pool()
    batch.claims.pop(unit[0].id, None)
    blocked = frozenset(
        row
        for claim in batch.claims.values()
        if not claim.placements
        for row in map(batch.snapshot.find_row, claim.nodes)
        if row is not None
    )
    with batch.lent.as_it_will_be(batch.claims.values(), claimant.balance):
        grounds = list_grounds(batch.cache, list_runs(unit), blocked, by_empty=True)
        tried = (_try_stops(batch, unit, claimant, blocked, ground) for ground in grounds)
        found = next((each for each in tried if each is not None), None)
    if found is None:
        return None
    placements, victims = found
    batch.lent.take(victims)
    is_own = any(group.virtual_pool == unit[0].virtual_pool for group in victims)
    nodes = frozenset(placement.holding.node for placement in placements)
    claim = Claim(nodes, placements, reason=Reason.PREEMPTING if is_own else Reason.RECLAIMING)
    batch.claims[unit[0].id] = claim
    batch.holds.keep(unit[0].id, claim.nodes)
    stopped = tuple(task.id for group in victims for task in group.tasks)
    batch.reclaims.append(Reclaim(unit[0].id, stopped, claim))
    return claim


def _try_stops(
    batch: _Batch, unit: tuple[QueuedTask, ...], claimant: Claimant, blocked: frozenset[int], ground: Ground
) -> tuple[tuple[Placement, ...], list[StopGroup]] | None:
    """Where a unit would stand, and what has to stop for it; all is as before."""
    victims: list[StopGroup] = []
    mark, placed = batch.snapshot.mark(), len(batch.placements)
    is_whole = all(
        _place_after_stops(batch, task, claimant, blocked, ground.closed_to(task.rules), victims) for task in unit
    )
    placements = tuple(batch.placements[placed:])
    if is_whole:
        resources = {resource for placement in placements for resource in demand_of(placement)}
        own = batch.lent.find_own_victims(claimant, resources)
        is_whole, victims = own is not None, victims + (own or [])
    _give_back(batch, mark, placed)
    batch.lent.restore(victims, claimant)
    return (placements, victims) if is_whole and victims else None


def _place_after_stops(
    batch: _Batch,
    task: QueuedTask,
    claimant: Claimant,
    kept_rows: frozenset[int],
    outside: frozenset[int],
    victims: list[StopGroup],
) -> bool:
    _, blocked = bar(batch.cache, task, kept_rows, outside)
    with batch.lent.without_own(claimant):
        admission = admit(claimant.balance, batch.cache.get(task.request))
    if admission.reason is not None:
        return False
    candidates = batch.cache.get(admission.request)
    row = candidates.find_best(blocked)
    if row is None:
        found = batch.lent.find_victims(candidates, claimant, blocked)
        if found is None:
            return False
        row, groups = found
        batch.lent.release(groups, claimant)
        victims += groups
    _take(batch, task, claimant.balance, candidates.request, row, candidates.pick_devices(row))
    return True


def _give_back(batch: _Batch, mark: int, placed: int) -> None:
    """Undo the placements of a gang of which one task found no place."""
    for placement in batch.placements[placed:]:
        balance = batch.ledger.find_balance(placement.virtual_pool)
        assert balance is not None, "it was charged before"
        balance.charge({resource: -amount for resource, amount in demand_of(placement).items()})
    del batch.placements[placed:]
    batch.snapshot.undo_to(mark)


def _decide_run(
    batch: _Batch, run: tuple[QueuedTask, ...], kept_rows: frozenset[int], outside: frozenset[int]
) -> tuple[int, Rejection | None]:
    """Place equal tasks, together where that can be; how many found a place, and why the next one did not."""
    placed = _place_together(batch, run, kept_rows | outside) if len(run) > 1 else 0
    for task in run[placed:]:
        rejection = _decide(batch, task, kept_rows, outside)
        if rejection is not None:
            return placed, rejection
        placed += 1
    return placed, None


def _place_together(batch: _Batch, run: tuple[QueuedTask, ...], kept_rows: Collection[int]) -> int:
    """Place as many equal tasks as there is room for, by count per node; 0 where they have to be looked at one by one.

    That is where a limit lies between one and all of them, or devices of several flavors could serve.
    """
    candidates, balance = batch.cache.get(run[0].request), batch.ledger.find_balance(run[0].virtual_pool)
    if balance is None or not can_place_together(candidates) or any(task.failed_on or task.moves_to for task in run):
        return 0
    request, size = candidates.request, len(run)
    apart = find_apart(batch.snapshot, run[0].kin, run[0].rules, candidates, kept_rows)
    if (apart is not None and not apart.is_by_count) or not _is_within(balance, [(run, candidates)]):
        return 0
    placed = 0
    for row, count in spread_over_rows(batch.snapshot, candidates, size, kept_rows, apart):
        for picks in pick_together(batch.snapshot, candidates, row, count):
            _take(batch, run[placed], balance, request, row, picks)
            placed += 1
    return placed


def _is_within(balance: Balance, runs: Runs) -> bool:
    """Whether the limits let all of these tasks in, whichever of their flavors they get."""
    amounts: Counter[Resource] = Counter()
    for run, candidates in runs:
        amounts[CPU] += len(run) * candidates.request.cpu_milli
        amounts[MEMORY] += len(run) * candidates.request.memory_mib
        for flavor in candidates.flavors if candidates.request.devices is not None else ():
            amounts[device(flavor)] += len(run) * candidates.milli_of(flavor)
    return balance.find_block(amounts) is None


def _decide(batch: _Batch, task: QueuedTask, kept_rows: frozenset[int], outside: frozenset[int]) -> Rejection | None:
    barred, closed = bar(batch.cache, task, kept_rows, outside)
    balance = batch.ledger.find_balance(task.virtual_pool)
    # 2. Admission: which flavors do the limits leave?
    admission = admit(balance, batch.cache.get(task.request))
    if balance is not None and admission.reason is None:
        candidates = batch.cache.get(admission.request)
        # 3. The best node that passes every filter.
        row = choose_row(batch.snapshot, candidates, task, kept_rows, closed - kept_rows)
        if row is not None:
            _take(batch, task, balance, candidates.request, row, candidates.pick_devices(row))
            return None
    # 5. Say why.
    return decide_rejection(batch.cache, balance, task.request, kept_rows, barred)


def _take(
    batch: _Batch,
    task: QueuedTask,
    balance: Balance,
    request: RequestClass,
    row: int,
    picks: tuple[DevicePick, ...],
) -> None:
    # 4. Take it on the snapshot and charge the limits, so that the next task of this batch sees both.
    snapshot = batch.snapshot
    node = snapshot.record_at(row)
    holding = Holding(task.id, node.id, request.tenant, request.cpu_milli, request.memory_mib, picks, task.kin)
    snapshot.place(holding)
    flavor = snapshot.find_flavor(picks[0].device) if picks else None
    placement = Placement(holding, task.virtual_pool, flavor, node.incarnation)
    balance.charge(demand_of(placement))
    batch.placements.append(placement)
    batch.holds.note(task)


def _keep_free(batch: _Batch, runs: Sequence[tuple[QueuedTask, ...]]) -> int | None:
    # 7. Whom capacity alone has blocked for too long gets nodes kept free; and when can it start?
    balance = batch.ledger.find_balance(runs[0][0].virtual_pool)
    wanted = [batch.cache.get(admit(balance, batch.cache.get(run[0].request)).request) for run in runs]
    grounds = list_grounds(batch.cache, runs, batch.holds.rows, by_empty=True)
    return batch.holds.decide(list(zip(runs, wanted, strict=True)), grounds)
