"""One batch of decisions: the queue and the snapshot go in, a plan comes out.

The steps: 1 order the queue; 2 admit against limits; 3 choose a node; 4 take it on the snapshot (`batches.py`); 5 say
why the others wait; 6 stop what is lent, or of lower priority, for whoever may ask for that (`claiming.py`); 7 keep
nodes free for whoever has waited too long. The tasks of a gang take them together: when one of them finds no place,
what was taken for the others is given back.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from millpond_contracts.ids import TaskId, VirtualPoolId
from millpond_scheduler.domain.admission import Balance, Ledger, Resource, VirtualPoolState
from millpond_scheduler.domain.apart import bar, find_apart
from millpond_scheduler.domain.batches import Batch, give_back, take
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.capacity import sum_free, sum_total
from millpond_scheduler.domain.claiming import promise
from millpond_scheduler.domain.exact import find_exactly
from millpond_scheduler.domain.fair_share import FairShares
from millpond_scheduler.domain.gangs import list_runs
from millpond_scheduler.domain.grounds import Ground, Runs, list_grounds
from millpond_scheduler.domain.holds import Holds
from millpond_scheduler.domain.horizon import Awaited, Horizon
from millpond_scheduler.domain.order import Turns
from millpond_scheduler.domain.plans import (
    Claim,
    GangRoom,
    Placement,
    Plan,
    Rejection,
    Search,
)
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.domain.preemption import Evictions
from millpond_scheduler.domain.queues import Queues
from millpond_scheduler.domain.reclaim import Lent
from millpond_scheduler.domain.refusals import admit, decide_rejection
from millpond_scheduler.domain.requests import QueuedTask
from millpond_scheduler.domain.returning import choose_row
from millpond_scheduler.domain.running import Running
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.together import can_place_together, pick_together, spread_over_rows
from millpond_scheduler.domain.verdicts import CAPACITY_REASONS, STOPPABLE_REASONS, Reason

VirtualPools = Mapping[VirtualPoolId, VirtualPoolState]


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
    queues, horizon = queue if isinstance(queue, Queues) else Queues(queue), horizon or Horizon(snapshot)
    turns = Turns(ledger, cache, shares, claims, placements, horizon.awaited, now_us)
    holds = Holds(snapshot, horizon, policy, now_us)
    batch = Batch(snapshot, cache, ledger, lent, turns, holds, dict(claims), placements, now_us=now_us)
    for claimant, claim in claims.items():
        holds.keep(claimant, claim.nodes)
    mark, examined = snapshot.mark(), 0
    # 1. Order: whoever was promised room, then in turns whoever stands first.
    for unit in turns.take(queues):
        if batch.placements and len(batch.placements) + len(unit) > max_tasks:
            break
        if set_aside and unit[0].id in set_aside:
            continue
        if [task for task in unit if snapshot.find_holding(task.id) is not None]:
            continue  # read from the queue before its placement was committed: never twice at a time
        examined += len(unit)
        rejection = _decide_unit(batch, unit)
        if rejection is not None:
            for task in unit:
                batch.rejections[task.id] = rejection
    horizon.awaited = _list_awaited(batch, horizon, queues)
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


def _list_awaited(batch: Batch, horizon: Horizon, queues: Queues) -> dict[TaskId, Awaited]:
    """Whom nodes are kept for: by this batch, or by one before it where this one has not come to it."""
    if not horizon.awaited:
        return batch.holds.awaited
    decided = {*batch.rejections, *(placement.holding.task for placement in batch.placements)}
    left = (task for task in horizon.awaited if task not in decided and queues.find_unit(task) is not None)
    return {task: horizon.awaited[task] for task in left} | batch.holds.awaited


def _decide_unit(batch: Batch, unit: tuple[QueuedTask, ...]) -> Rejection | None:
    """Place a task, or a whole gang; otherwise the reason."""
    first, size = unit[0], 0 if unit[0].gang is None else unit[0].gang.size
    if size > len(unit):
        counts = batch.cache.get(first.request).count_reasons(batch.holds.closed_to(unit))
        return Rejection(Reason.GANG_STOPPING, counts, gang=GangRoom(size, 0))
    # A batch only takes: what was blocked once stays blocked for every equal task or gang behind it.
    kept_rows = batch.holds.closed_to(unit)
    if batch.full and _is_plain(unit) and first.id not in batch.claims:
        # Where capacity blocked a task that might use more nodes than this one, it blocks this one, in the same way.
        closed, known = batch.full.get((first.virtual_pool, first.request), (None, None))
        if known is not None and closed is not None and closed <= kept_rows:
            return known
    runs = list_runs(unit)
    known = batch.blocked.get(_kind_of(runs, size, kept_rows)) if batch.blocked else None
    if known is not None and first.id not in batch.claims:
        return known
    rejection = _try_grounds(batch, runs, kept_rows)
    if rejection is None:
        return None
    if rejection.reason in STOPPABLE_REASONS:
        claim, spared = promise(batch, unit)
        if claim is not None:
            return replace(rejection, reason=claim.reason)
        rejection = replace(rejection, spared=spared)
    batch.blocked[_kind_of(runs, size, kept_rows)] = rejection
    if rejection.reason not in CAPACITY_REASONS:
        return rejection
    if _is_plain(unit):
        batch.full[first.virtual_pool, first.request] = kept_rows, rejection
    return replace(rejection, starts_us=_keep_free(batch, runs))


def _is_plain(unit: tuple[QueuedTask, ...]) -> bool:
    """A task whose request alone says where it may go, and of one device: nodes are kept for the first such only."""
    first, devices = unit[0], unit[0].request.devices
    return first.gang is None and first.rules is None and (devices is None or devices.count == 1)


def _kind_of(runs: Sequence[tuple[QueuedTask, ...]], size: int, kept_rows: frozenset[int]) -> tuple[object, ...]:
    """What units have in common that are blocked by the same."""
    kind = tuple((run[0].request, len(run), run[0].rules and run[0].kin, run[0].rules) for run in runs)
    return (runs[0][0].virtual_pool, kind, size, kept_rows)


def _try_grounds(batch: Batch, runs: Sequence[tuple[QueuedTask, ...]], kept_rows: frozenset[int]) -> Rejection | None:
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
    batch: Batch, runs: Sequence[tuple[QueuedTask, ...]], kept_rows: frozenset[int], ground: Ground
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
        give_back(batch, mark, placed)
        return rejection
    return None


def _search(
    batch: Batch, runs: Sequence[tuple[QueuedTask, ...]], kept_rows: frozenset[int], grounds: Sequence[Ground]
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
                take(batch, next(tasks), balance, candidates.request, row, picks)
    batch.searches.append(found.search)
    if found.search is Search.FOUND and len(batch.placements) - placed < sum(map(len, runs)):
        give_back(batch, mark, placed)
        return Search.UNDECIDED
    return found.search


def _fitting(rejection: Rejection) -> int:
    return 0 if rejection.gang is None else rejection.gang.fitting


def _decide_run(
    batch: Batch, run: tuple[QueuedTask, ...], kept_rows: frozenset[int], outside: frozenset[int]
) -> tuple[int, Rejection | None]:
    """Place equal tasks, together where that can be; how many found a place, and why the next one did not."""
    placed = _place_together(batch, run, kept_rows | outside) if len(run) > 1 else 0
    for task in run[placed:]:
        rejection = _decide(batch, task, kept_rows, outside)
        if rejection is not None:
            return placed, rejection
        placed += 1
    return placed, None


def _place_together(batch: Batch, run: tuple[QueuedTask, ...], kept_rows: Collection[int]) -> int:
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
            take(batch, run[placed], balance, request, row, picks)
            placed += 1
    return placed


def _is_within(balance: Balance, runs: Runs) -> bool:
    """Whether the limits let all of these tasks in, whichever of their flavors they get."""
    amounts: Counter[Resource] = Counter()
    for run, candidates in runs:
        wants = candidates.wants
        for resource, amount in (*wants.base.items(), *wants.any_of.items()):
            amounts[resource] += len(run) * amount
    return balance.find_block(amounts) is None


def _decide(batch: Batch, task: QueuedTask, kept_rows: frozenset[int], outside: frozenset[int]) -> Rejection | None:
    barred, closed = bar(batch.cache, task, kept_rows, outside)
    balance = batch.ledger.find_balance(task.virtual_pool)
    # 2. Admission: which flavors do the limits leave?
    candidates = batch.cache.get(task.request)
    admission = admit(balance, candidates)
    if balance is not None and admission.reason is None:
        if admission.request is not task.request:
            candidates = batch.cache.get(admission.request)
        # 3. The best node that passes every filter.
        row = choose_row(batch.snapshot, candidates, task, kept_rows, closed - kept_rows)
        if row is not None:
            take(batch, task, balance, candidates.request, row, candidates.pick_devices(row))
            return None
    # 5. Say why.
    return decide_rejection(batch.cache, balance, task.request, kept_rows, barred)


def _keep_free(batch: Batch, runs: Sequence[tuple[QueuedTask, ...]]) -> int | None:
    # 7. Whom capacity alone has blocked for too long gets nodes kept free; and when can it start?
    balance = batch.ledger.find_balance(runs[0][0].virtual_pool)
    wanted = [batch.cache.get(admit(balance, batch.cache.get(run[0].request)).request) for run in runs]
    grounds = list_grounds(batch.cache, runs, batch.holds.rows, by_empty=True)
    return batch.holds.decide(list(zip(runs, wanted, strict=True)), grounds)
