"""The leader's part in moves: it follows those under way, and carries out what was ordered, decided once more.

Where a pool's policy says so it orders moves itself, for one blocked job of each pool every ten looks.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping

from millpond_contracts.bodies.moves import MoveOrderView
from millpond_contracts.bodies.pools import PoolView
from millpond_contracts.ids import JobId, NodeId, PoolId, TaskId
from millpond_kernel.db import SYSTEM, Database
from millpond_kernel.leases import Lease, check_epoch
from millpond_kernel.observability import log
from millpond_kernel.problem import ProblemError
from millpond_scheduler.domain.defragmentation import MoveOutcome, MovePlan, MoveRules
from millpond_scheduler.domain.moving import choose_served, name_plan
from millpond_scheduler.domain.plans import Rejection
from millpond_scheduler.domain.queues import Unit
from millpond_scheduler.domain.verdicts import CAPACITY_REASONS
from millpond_scheduler.providers.bells import NodeBell
from millpond_scheduler.store import moves
from millpond_scheduler.store.guards import GuardFailed
from millpond_scheduler.usecases.moves import MESSAGES, MoveQuestion, find_question, plan_on, read_question
from millpond_scheduler.usecases.moving import commit_moves, make_order, reclaim_of, refuse_order, settle_moves
from millpond_scheduler.usecases.reclaiming import note_reclaims
from millpond_scheduler.usecases.records import microseconds_of
from millpond_scheduler.usecases.shard import Shard

# A job that moves could not serve is passed over for so long.
TRY_SECONDS = 60
# Policies are followed at every tenth look: each goes through all that waits.
LOOKS_BETWEEN = 10


class Moving:
    """Moves of one shard. Between two batches, so that the memory is what is true and nobody else uses it."""

    def __init__(self, database: Database, bell: NodeBell, look_seconds: float) -> None:
        self._database = database
        self._bell = bell
        self._look_seconds = look_seconds
        self._looked_at = self._served_at = 0.0
        self._tried: dict[JobId, int] = {}

    async def step(self, shard: Shard, lease: Lease, rejections: Mapping[TaskId, Rejection]) -> bool:
        """One pass; True when something has changed that the next plan should see.

        Args:
            rejections: why what waits was not placed by the last plan.
        """
        if time.monotonic() - self._looked_at < self._look_seconds:
            return False
        self._looked_at = time.monotonic()
        now = await self._database.now()
        async with self._database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            over = await settle_moves(unit, now) if shard.targets else []
            orders = [moves.order_view(row, []) for row in await moves.list_requested(unit)]
        for task in over:
            shard.targets.pop(task, None)
        for order in orders:
            await self._carry_out(shard, lease, order)
        served = []
        if time.monotonic() - self._served_at >= self._look_seconds * LOOKS_BETWEEN:
            self._served_at = time.monotonic()
            served = [await self._serve(shard, lease, pool, rejections) for pool in shard.pools.values() if pool.moves]
        return bool(over or orders or any(served))

    async def _carry_out(self, shard: Shard, lease: Lease, order: MoveOrderView) -> None:
        """Plans what was ordered on what is true now; when it is what was seen it is done, else refused."""
        try:
            async with self._database.begin(SYSTEM) as unit:
                rules = MoveRules(max_moves=order.max_moves, cool_down_seconds=order.cool_down_seconds)
                asked = await read_question(unit, order.job_id, rules)
        except ProblemError as error:
            await self._refuse(lease, order, error.detail)
            return
        waiting = _find_unit(shard, asked)
        if waiting is None:
            await self._refuse(lease, order, "no task of the job waits")
            return
        now = await self._database.now()
        found = await asyncio.to_thread(plan_on, shard, asked, microseconds_of(now))
        if found.outcome is not MoveOutcome.MOVES:
            await self._refuse(lease, order, MESSAGES[found.outcome])
        elif name_plan(order.job_id, found, shard.holders) != order.plan:
            await self._refuse(lease, order, "other tasks would move by now, or to other nodes")
        else:
            await self._commit(shard, lease, order, waiting, found)

    async def _serve(self, shard: Shard, lease: Lease, pool: PoolView, rejections: Mapping[TaskId, Rejection]) -> bool:
        """Moves what the pool's policy allows for the job whose turn it is; True = something was ordered to move."""
        rules, now = pool.moves, await self._database.now()
        now_us = microseconds_of(now)
        self._tried = {key: until for key, until in self._tried.items() if until > now_us}
        assert rules is not None, "the pool has a policy"
        job = choose_served(_list_blocked(shard, pool.pool_id, rejections), now_us, rules.wait_seconds, self._tried)
        if job is None:
            return False
        async with self._database.begin(SYSTEM) as unit:
            left = rules.moves_per_hour - await moves.count_recent(unit, pool.pool_id)
            spared = await moves.list_moved_jobs(unit, rules.cool_down_seconds)
            most = MoveRules(threshold_permille=rules.threshold_permille, max_moves=min(rules.max_moves, left))
            asked = None if left <= 0 else await find_question(unit, job, most, spared)
        if left > 0:
            self._tried[job] = now_us + TRY_SECONDS * 1_000_000
        waiting = None if asked is None else _find_unit(shard, asked)
        if asked is None or waiting is None:
            return False
        found = await asyncio.to_thread(plan_on, shard, asked, now_us)
        if found.outcome is not MoveOutcome.MOVES or found.cost * 100 > found.gain * rules.max_loss_percent:
            return False
        plan = name_plan(job, found, shard.holders)
        order = make_order(job, pool.pool_id, plan, most, now)
        return await self._commit(shard, lease, order, waiting, found)

    async def _commit(self, shard: Shard, lease: Lease, order: MoveOrderView, waiting: Unit, found: MovePlan) -> bool:
        reclaim = reclaim_of([task.id for task in waiting], found)
        now = await self._database.now()
        try:
            async with self._database.begin(SYSTEM) as unit:
                nodes = await commit_moves(unit, lease, shard, reclaim, found, order, now)
        except GuardFailed as error:
            await self._refuse(lease, order, f"it changed while it was carried out: {error}")
            return False
        note_reclaims(shard, [reclaim], microseconds_of(now))
        shard.claims[reclaim.claimant].moves = True
        targets: dict[TaskId, NodeId] = {move.before.task: move.after.node for move in found.moves}
        shard.targets |= targets
        log.info("moves_ordered", job=str(order.job_id), moves=len(targets), ordered_by=order.ordered_by)
        await self._bell.ring(nodes)
        return True

    async def _refuse(self, lease: Lease, order: MoveOrderView, message: str) -> None:
        now = await self._database.now()
        async with self._database.begin(SYSTEM) as unit:
            await check_epoch(unit, lease)
            await refuse_order(unit, order, message, now)


def _list_blocked(
    shard: Shard, pool: PoolId, rejections: Mapping[TaskId, Rejection]
) -> Iterator[tuple[JobId, int, int]]:
    """What capacity alone holds back in a pool, and nothing stops for yet."""
    for task, rejection in rejections.items():
        waiting = shard.waiting.get(task)
        if waiting is None or waiting.facts.pool != pool or rejection.reason not in CAPACITY_REASONS:
            continue
        if task not in shard.claims:
            yield waiting.facts.id, waiting.queued.priority, waiting.queued.queued_at_us


def _find_unit(shard: Shard, asked: MoveQuestion) -> Unit | None:
    """What is decided together with the tasks that were asked about, as it stands in the leader's queue."""
    units = (shard.queue().find_unit(task.id) for task in asked.unit)
    return next((unit for unit in units if unit is not None), None)
