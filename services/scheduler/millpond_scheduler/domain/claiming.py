"""Step 6 of the cycle: room that stops make for a task or gang, promised before and still coming, or planned now."""

from collections import Counter
from collections.abc import Mapping

from millpond_scheduler.domain.admission import demand_of
from millpond_scheduler.domain.apart import bar
from millpond_scheduler.domain.batches import Batch, give_back, take
from millpond_scheduler.domain.gangs import list_runs
from millpond_scheduler.domain.grounds import Ground, list_grounds
from millpond_scheduler.domain.plans import Claim, Placement, Reclaim, Spared
from millpond_scheduler.domain.preemption import Claimant
from millpond_scheduler.domain.refusals import admit
from millpond_scheduler.domain.requests import QueuedTask
from millpond_scheduler.domain.running import StopGroup
from millpond_scheduler.domain.verdicts import Reason

# So many claimants of one batch at most: each costs a trial, and the next batch follows at once.
MAX_RECLAIMS = 50


def promise(batch: Batch, unit: tuple[QueuedTask, ...]) -> tuple[Claim | None, Mapping[Spared, int]]:
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


def _plan_stops(batch: Batch, unit: tuple[QueuedTask, ...], claimant: Claimant) -> Claim | None:
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
    batch: Batch, unit: tuple[QueuedTask, ...], claimant: Claimant, blocked: frozenset[int], ground: Ground
) -> tuple[tuple[Placement, ...], list[StopGroup]] | None:
    """Where a unit would stand, and what has to stop for it, seen on one ground; all is as before."""
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
    give_back(batch, mark, placed)
    batch.lent.restore(victims, claimant)
    return (placements, victims) if is_whole and victims else None


def _place_after_stops(
    batch: Batch,
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
    take(batch, task, claimant.balance, candidates.request, row, candidates.pick_devices(row))
    return True
