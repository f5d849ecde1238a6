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
from millpond_scheduler.domain.admission import CPU, MEMORY, Balance, Ledger, VirtualPoolState, demand_of, device
from millpond_scheduler.domain.candidates import CandidateCache, Candidates
from millpond_scheduler.domain.capacity import sum_free, sum_total
from millpond_scheduler.domain.fair_share import FairShares
from millpond_scheduler.domain.gangs import list_runs
from millpond_scheduler.domain.holds import Holds
from millpond_scheduler.domain.horizon import Horizon
from millpond_scheduler.domain.order import Turns
from millpond_scheduler.domain.plans import (
    AdmissionLine,
    Claim,
    DevicePick,
    GangRoom,
    Halted,
    Holding,
    Placement,
    Plan,
    Reclaim,
    Rejection,
    Spared,
)
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.domain.preemption import Claimant, Evictions
from millpond_scheduler.domain.queues import Queues
from millpond_scheduler.domain.reclaim import Lent
from millpond_scheduler.domain.requests import QueuedTask, RequestClass
from millpond_scheduler.domain.returning import choose_row
from millpond_scheduler.domain.running import Running, StopGroup
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.together import can_place_together, pick_together, spread_over_rows
from millpond_scheduler.domain.verdicts import CAPACITY_REASONS, STOPPABLE_REASONS, Reason, decide_dominant

# So many claimants of one batch at most: each costs a trial, and the next batch follows at once.
MAX_RECLAIMS = 50

VirtualPools = Mapping[VirtualPoolId, VirtualPoolState]


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether the limits let a task in, and if only with some flavors, the request narrowed to them."""

    request: RequestClass
    reason: Reason | None = None
    lines: tuple[AdmissionLine, ...] = ()


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
    batch = _Batch(snapshot, cache, ledger, lent, turns, holds, dict(claims), placements)
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
    )


def admit(balance: Balance | None, candidates: Candidates) -> Admission:
    """Ask the limits on CPU, memory and every flavor that the hardware would allow.

    One flavor with room is enough; the request is then narrowed to those that have it.
    """
    request = candidates.request
    if balance is None:
        return Admission(request, Reason.NO_VIRTUAL_POOL)
    reason = balance.find_block({CPU: request.cpu_milli, MEMORY: request.memory_mib})
    demand = request.devices
    if reason is None and demand is not None:
        blocks = {name: balance.find_block({device(name): candidates.milli_of(name)}) for name in candidates.flavors}
        left = frozenset(name for name, block in blocks.items() if block is None)
        if blocks and not left:
            reason = Reason.LIMIT_REACHED if Reason.LIMIT_REACHED in blocks.values() else Reason.GUARANTEE_OF_OTHERS
        elif len(left) < len(blocks):
            request = replace(request, devices=replace(demand, flavors=left))
    if reason is None:
        return Admission(request)
    return Admission(request, reason, list_lines(balance, candidates))


def list_lines(balance: Balance, candidates: Candidates, tasks: int = 1) -> tuple[AdmissionLine, ...]:
    """Every limit that so many tasks meet: CPU, memory and each flavor that the hardware would allow."""
    request = candidates.request
    lines = [balance.describe(CPU, tasks * request.cpu_milli), balance.describe(MEMORY, tasks * request.memory_mib)]
    if request.devices is not None:
        lines += [balance.describe(device(name), tasks * candidates.milli_of(name)) for name in candidates.flavors]
    return tuple(lines)


def decide_rejection(
    cache: CandidateCache,
    balance: Balance | None,
    request: RequestClass,
    kept_rows: Collection[int] = (),
) -> Rejection:
    """Say why a request does not start, with one count per node of its pool.

    A limit comes first where it alone stands between the task and a node with room.
    """
    candidates = cache.get(request)
    admission = admit(balance, candidates)
    counts = candidates.count_reasons(kept_rows)
    if balance is None or admission.reason is not None:
        return Rejection(admission.reason or Reason.NO_VIRTUAL_POOL, counts, admission.lines)
    lines: tuple[AdmissionLine, ...] = ()
    if admission.request is not request:
        lines = list_lines(balance, candidates)
        if Reason.PLACEABLE in counts and cache.get(admission.request).find_best(kept_rows) is None:
            return Rejection(Reason.LIMIT_REACHED, counts, lines)
    reason = decide_dominant(counts, unavailable_would_match=candidates.has_unavailable_match())
    return Rejection(reason, counts, lines)


def _decide_unit(batch: _Batch, unit: tuple[QueuedTask, ...]) -> Rejection | None:
    """Place a task, or a whole gang; otherwise the reason."""
    first, size = unit[0], 0 if unit[0].gang is None else unit[0].gang.size
    if size > len(unit):
        counts = batch.cache.get(first.request).count_reasons(batch.holds.closed_to(unit))
        return Rejection(Reason.GANG_STOPPING, counts, gang=GangRoom(size, 0))
    # A batch only takes: what was blocked once stays blocked for every equal task or gang behind it.
    kept_rows = batch.holds.closed_to(unit)
    runs = list_runs(unit)
    key = (first.virtual_pool, tuple((run[0].request, len(run)) for run in runs), size, kept_rows)
    known = batch.blocked.get(key)
    if known is not None and first.id not in batch.claims:
        return known
    mark, placed = batch.snapshot.mark(), len(batch.placements)
    for run in runs:
        fitting, rejection = _decide_run(batch, run, kept_rows)
        if rejection is None:
            continue
        if first.gang is not None:
            room = GangRoom(size, len(batch.placements) - placed)
            if len(first.gang.groups) > 1:
                room = replace(room, group=run[fitting].group, group_tasks=len(run), group_fitting=fitting)
            rejection = replace(rejection, gang=room, request=run[fitting].request)
        _give_back(batch, mark, placed)
        if rejection.reason in STOPPABLE_REASONS:
            claim, spared = _promise(batch, unit)
            if claim is not None:
                return replace(rejection, reason=claim.reason)
            rejection = replace(rejection, spared=spared)
        batch.blocked[key] = rejection
        if rejection.reason in CAPACITY_REASONS:
            return replace(rejection, starts_us=_keep_free(batch, runs))
        return rejection
    return None


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
    victims: list[StopGroup] = []
    blocked = [
        row
        for claim in batch.claims.values()
        if not claim.placements
        for row in map(batch.snapshot.find_row, claim.nodes)
        if row is not None
    ]
    with batch.lent.as_it_will_be(batch.claims.values(), claimant.balance):
        mark, placed = batch.snapshot.mark(), len(batch.placements)
        is_whole = all(_place_after_stops(batch, task, claimant, blocked, victims) for task in unit)
        placements = tuple(batch.placements[placed:])
        if is_whole:
            resources = {resource for placement in placements for resource in demand_of(placement)}
            own = batch.lent.find_own_victims(claimant, resources)
            is_whole, victims = own is not None, victims + (own or [])
        _give_back(batch, mark, placed)
        batch.lent.restore(victims, claimant)
    if not is_whole or not victims:
        return None
    batch.lent.take(victims)
    is_own = any(group.virtual_pool == unit[0].virtual_pool for group in victims)
    nodes = frozenset(placement.holding.node for placement in placements)
    claim = Claim(nodes, placements, reason=Reason.PREEMPTING if is_own else Reason.RECLAIMING)
    batch.claims[unit[0].id] = claim
    batch.holds.keep(unit[0].id, claim.nodes)
    stopped = tuple(task.id for group in victims for task in group.tasks)
    batch.reclaims.append(Reclaim(unit[0].id, stopped, claim))
    return claim


def _place_after_stops(
    batch: _Batch, task: QueuedTask, claimant: Claimant, blocked: Collection[int], victims: list[StopGroup]
) -> bool:
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


def _decide_run(batch: _Batch, run: tuple[QueuedTask, ...], kept_rows: Collection[int]) -> tuple[int, Rejection | None]:
    """Place equal tasks, together where that can be; how many found a place, and why the next one did not."""
    placed = _place_together(batch, run, kept_rows) if len(run) > 1 else 0
    for task in run[placed:]:
        rejection = _decide(batch, task, kept_rows)
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
    amounts = [{CPU: size * request.cpu_milli, MEMORY: size * request.memory_mib}]
    amounts += [{device(flavor): size * candidates.milli_of(flavor)} for flavor in candidates.flavors]
    if any(balance.find_block(amount) is not None for amount in amounts):
        return 0
    placed = 0
    for row, count in spread_over_rows(batch.snapshot, candidates, size, kept_rows):
        for picks in pick_together(batch.snapshot, candidates, row, count):
            _take(batch, run[placed], balance, request, row, picks)
            placed += 1
    return placed


def _decide(batch: _Batch, task: QueuedTask, kept_rows: Collection[int]) -> Rejection | None:
    balance = batch.ledger.find_balance(task.virtual_pool)
    # 2. Admission: which flavors do the limits leave?
    admission = admit(balance, batch.cache.get(task.request))
    if balance is not None and admission.reason is None:
        candidates = batch.cache.get(admission.request)
        # 3. The best node that passes every filter.
        row = choose_row(batch.snapshot, candidates, task, kept_rows)
        if row is not None:
            _take(batch, task, balance, candidates.request, row, candidates.pick_devices(row))
            return None
    # 5. Say why.
    return decide_rejection(batch.cache, balance, task.request, kept_rows)


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
    holding = Holding(task.id, node.id, request.tenant, request.cpu_milli, request.memory_mib, picks)
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
    return batch.holds.decide(list(zip(runs, wanted, strict=True)))
