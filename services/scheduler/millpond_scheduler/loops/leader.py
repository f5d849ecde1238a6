"""The leader of a shard: takes changes, plans a batch, makes it durable, rings for the nodes; again while work waits.

Idle it waits for the doorbell and looks once a second. Every transaction checks the epoch, so a leader that was
replaced without knowing it can write nothing.
"""

import asyncio
import gc
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID, uuid4

import asyncpg

from millpond_contracts.ids import NodeId, TaskId, VirtualPoolId
from millpond_kernel.db import DATABASE_ERRORS, SYSTEM, Database
from millpond_kernel.doorbell import LINGER_SECONDS, DoorListener
from millpond_kernel.leases import Lease, LeaseLost, acquire_lease, release_lease
from millpond_kernel.observability import LEADER, LOOP_PASSES, LOOP_SECONDS, log
from millpond_kernel.pausing import Stop, sleep_or_stop
from millpond_scheduler.domain.cycle import plan_batch
from millpond_scheduler.domain.plans import Halted, Placement, Plan, Rejection
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.loops.moving import Moving
from millpond_scheduler.loops.telling import Telling
from millpond_scheduler.providers.bells import NodeBell
from millpond_scheduler.providers.kernels import KernelMode, KernelProvider
from millpond_scheduler.store.changes import ChangeKind
from millpond_scheduler.store.guards import GuardFailed
from millpond_scheduler.usecases.comparing import COMPARE_SECONDS, MemoryCheck
from millpond_scheduler.usecases.cycle import Batch, commit_batch
from millpond_scheduler.usecases.loading import apply_changes, load_shard, refresh_shard
from millpond_scheduler.usecases.mixes import MIX_SECONDS, refresh_mixes
from millpond_scheduler.usecases.reclaiming import commit_reclaims, note_reclaims
from millpond_scheduler.usecases.records import microseconds_of
from millpond_scheduler.usecases.recount import recount
from millpond_scheduler.usecases.shard import Shard

LEASE_NAME = "scheduler/shard-0"
# A queue in which nothing changes is planned again this often: waiting long enough earns a task an earmark.
REPLAN_SECONDS = 10.0
# A pool with more devices than this is worth hiding from the garbage collector.
FREEZE_DEVICES = 1000
# While changes follow one another, so long between two looks at them: a look costs the same for one as for ten.
GATHER_SECONDS = 0.025
# So many refused batches in a row and the leader's memory is not trusted any more.
MAX_REFUSED = 3
# So long batch follows batch on what is known; then the leader looks what others changed.
BATCHES_SECONDS = 0.5


@dataclass(slots=True)
class LeaderPolicy:
    """How the leader works; from the settings."""

    batch_tasks: int = 500
    lease_seconds: float = 10.0
    poll_seconds: float = 1.0
    verdict_seconds: float = 2.0
    compare_seconds: float = COMPARE_SECONDS
    policy: Policy = field(default_factory=Policy)
    kernels: KernelMode = KernelMode.AUTO


class Leader:
    """One copy of the scheduler's cycle; of all copies one holds the lease and works, the others wait for it."""

    def __init__(
        self, database: Database, bell: NodeBell, listener: DoorListener, rules: LeaderPolicy | None = None
    ) -> None:
        self._database = database
        self._bell = bell
        self._listener = listener
        self._rules = rules or LeaderPolicy()
        self._kernels = KernelProvider(self._rules.kernels)
        self._holder: UUID = uuid4()
        self.lease: Lease | None = None
        self.shard: Shard | None = None
        self.failures = 0
        self.last_error: str | None = None
        self.stepped_monotonic = time.monotonic()
        self._is_frozen = False
        self._renew_at = 0.0
        self._refused = 0
        self._set_aside: dict[TaskId, float] = {}
        self._planned_at = 0.0
        self._decided_at = datetime.fromtimestamp(0, UTC)
        self._changes_until = 0.0
        self._mixed_at = 0.0
        self._is_dirty = True
        self._rejections: Mapping[TaskId, Rejection] = {}
        self._telling = Telling(database, self._rules.verdict_seconds)
        self._check = MemoryCheck(self._rules.compare_seconds)
        self._moving = Moving(database, bell, self._rules.poll_seconds)

    async def run(self, stop: Stop) -> None:
        """Works until `stop` is set; an absent database or a lost lease makes it wait and load everything anew."""
        self._listener.start(stop)
        try:
            while not stop.is_set():
                began = time.monotonic()
                busy = await self._step_quietly()
                self.stepped_monotonic = time.monotonic()
                if busy:
                    continue
                if await self._listener.wait(self._rules.poll_seconds):
                    await sleep_or_stop(stop, max(LINGER_SECONDS, began + GATHER_SECONDS - time.monotonic()))
        finally:
            await self._listener.stop()
            await self._give_up_lease()

    async def _step_quietly(self) -> bool:
        try:
            busy = await self.step()
            self.failures, self.last_error = 0, None
            return busy
        except LeaseLost:
            log.warning("leader_replaced", lease=LEASE_NAME)
        except DATABASE_ERRORS as error:
            log.warning("leader_database_away", error=type(error).__name__)
            self._failed(error)
        except Exception as error:
            log.error("leader_failed", exc_info=error)
            self._failed(error)
        self.forget()
        return False

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"[:300]

    def wake(self) -> None:
        """Ends the leader's wait; for whoever changed something in the same process."""
        self._listener.poke()

    def forget(self) -> None:
        """Drops the memory; the next step loads it anew under the lease as it then is."""
        self.shard, self.lease, self._renew_at = None, None, 0.0
        self._rejections, self._is_dirty = {}, True
        self._telling.forget()

    async def _give_up_lease(self) -> None:
        if self.lease is not None:
            try:
                await release_lease(self._database, self.lease)
            except DATABASE_ERRORS:
                log.debug("lease_not_released", lease=LEASE_NAME)

    async def step(self) -> bool:
        """One pass; True when more work waits already."""
        if not await self._hold_lease():
            return False
        shard = await self._take_changes()
        self._is_dirty = await self._moving.step(shard, self._lease(), self._rejections) or self._is_dirty
        # 1-6: order, admit, choose, take, explain, keep free - see the domain's cycle.
        plan, placed, halted = await self._plan(shard), False, list[Halted]()
        while plan is not None and plan.placements:
            placed, done = True, plan
            halted += done.halted
            plan = await self._commit(shard, done)
            if self.shard is None:
                return True  # refused once too often: everything is loaded anew before anybody is told anything
            if self._refused == 0 and done.reclaims:
                await self._reclaim(shard, done)
        shard.snapshot.keep()  # what was planned is what is held now: the trials become holdings
        if plan is not None:
            halted += plan.halted
            if plan.reclaims:
                await self._reclaim(shard, plan)
        await self._telling.tell_halted(shard, self._lease(), halted)
        if not (placed and self._refused):  # what was refused was counted on
            await self._telling.tell_verdicts(shard, self._lease(), self._rejections, placed=placed)
        if self._check.is_due():
            self._is_dirty = True  # it takes changes too
            if await self._check.find_drift(self._database, self._lease(), shard):
                self.forget()
                return True
        # What the committed placements left: a task that was placed waits no longer.
        await self._telling.tell_demand(shard, self._lease(), self._rejections)
        return placed

    async def _hold_lease(self) -> bool:
        """Renews at a third of the lease's life; another leader's epoch means that it may have written meanwhile.

        The next epoch is ours alone: the lease lapsed and nobody took it, so what is in memory is still what is true.
        """
        if self.lease is not None and time.monotonic() < self._renew_at:
            return True
        lease = await acquire_lease(self._database, LEASE_NAME, self._holder, self._rules.lease_seconds)
        LEADER.labels("scheduler", LEASE_NAME).set(1 if lease else 0)
        if lease is None or self.lease is None or lease.epoch > self.lease.epoch + 1:
            self.forget()
        self.lease, self._renew_at = lease, time.monotonic() + self._rules.lease_seconds / 3
        return lease is not None

    async def _take_changes(self) -> Shard:
        lease = self._lease()
        if self.shard is None:
            shard, changed = await self._load(lease), True
        else:
            shard = self.shard
            async with self._database.begin(SYSTEM) as unit:
                changed = bool(await refresh_shard(unit, lease, shard))
                if time.monotonic() - self._mixed_at >= MIX_SECONDS:
                    await refresh_mixes(unit, shard)
                    self._mixed_at = time.monotonic()
        self.shard = shard
        await self._kernels.give(shard.cache, shard.snapshot.columns.rows)
        self._is_dirty = self._is_dirty or changed
        self._changes_until = time.monotonic() + BATCHES_SECONDS
        return shard

    async def _load(self, lease: Lease) -> Shard:
        if self._is_frozen:
            # What was loaded before. Only then: it thaws what the fork server froze too, whose pages are shared.
            gc.unfreeze()
            gc.collect()
        with _without_collector():
            async with self._database.begin(SYSTEM) as unit:
                shard = await load_shard(unit, lease, self._rules.policy.distance)
            self._mixed_at = time.monotonic()
            if len(shard.devices) > FREEZE_DEVICES:
                gc.freeze()
                self._is_frozen = True
        log.info("leader_loaded", epoch=lease.epoch, waiting=len(shard.waiting), live=len(shard.live))
        return shard

    async def _plan(self, shard: Shard) -> Plan | None:
        if not shard.waiting:
            self._rejections, self._is_dirty = {}, False
            return None
        if not self._is_dirty and time.monotonic() - self._planned_at < REPLAN_SECONDS:
            return None
        now = await self._database.now()
        return self._decide(shard, now)

    async def _plan_ahead(self, shard: Shard, plan: Plan) -> Plan | None:
        """The batch after one that is being written; None when nothing more waits, or it must be seen written first.

        In a thread, so that the one that is being written is waited for by nobody.
        """
        is_over = time.monotonic() > self._changes_until
        if is_over or plan.reclaims or self._refused or len(shard.waiting) <= len(plan.rejections):
            return None
        now = await self._database.now()
        return await asyncio.to_thread(self._decide, shard, now)

    def _decide(self, shard: Shard, now: datetime) -> Plan:
        started = time.monotonic()
        shard.open_reservations(now)
        claims = shard.open_claims()
        plan = plan_batch(
            shard.snapshot,
            shard.queue(),
            shard.virtual_pools,
            microseconds_of(now),
            self._rules.policy,
            self._rules.batch_tasks if self._refused == 0 else 1,
            shard.cache,
            shard.list_running,
            claims,
            shard.list_evictions(self._rules.policy.evictions_per_hour, microseconds_of(now)),
            shard.horizon,
            self._list_set_aside(),
        )
        for claimant, claim in claims.items():
            if not claim.is_open:
                shard.claims.pop(claimant, None)  # it was decided first, with all that was freed for it
        self._planned_at, self._decided_at = time.monotonic(), now
        LOOP_SECONDS.labels("scheduler", "plan").observe(self._planned_at - started)
        for search in plan.searches:
            LOOP_PASSES.labels("scheduler", "exact_search", search.value).inc()
        self._is_dirty = bool(plan.placements)
        self._rejections = plan.rejections
        return plan

    def _list_set_aside(self) -> Collection[TaskId]:
        """Tasks that were refused alone a moment ago: they must not hold up everybody."""
        now = time.monotonic()
        self._set_aside = {task: until for task, until in self._set_aside.items() if until > now}
        return self._set_aside

    async def _commit(self, shard: Shard, plan: Plan) -> Plan | None:
        """Makes a plan durable while the next one is made, which is returned.

        The next one counts on this one: when this one is refused, both are dropped.
        """
        started, following = time.monotonic(), None
        try:
            batch = Batch(shard, self._lease().epoch, plan.placements, self._decided_at)
        except GuardFailed as error:
            self._undo(shard, plan)
            await self._recover(shard, plan.placements, error)
            return None
        batch.hold()
        writing = asyncio.create_task(self._write(batch), name="batch")
        try:
            following = await self._plan_ahead(shard, plan)
        finally:
            await asyncio.wait([writing])
        refused = writing.result()
        if refused is not None:
            if following is not None:
                self._undo(shard, following)
            self._undo(shard, plan)
            batch.give_back()
            await self._recover(shard, plan.placements, refused)
            return None
        self._refused = 0
        LOOP_SECONDS.labels("scheduler", "bind").observe(time.monotonic() - started)
        await self._bell.ring(batch.nodes)
        return following

    async def _write(self, batch: Batch) -> Exception | None:
        """Why the batch was refused; None = it is durable."""
        try:
            async with self._database.begin(SYSTEM) as unit:
                await commit_batch(unit, self._lease(), batch)
        except (GuardFailed, asyncpg.IntegrityConstraintViolationError) as error:
            return error
        return None

    def _undo(self, shard: Shard, plan: Plan) -> None:
        """Takes a plan off the snapshot; later ones were taken off before."""
        for placement in reversed(plan.placements):
            shard.snapshot.release_allocation(placement.holding.task)

    async def _reclaim(self, shard: Shard, plan: Plan) -> None:
        """Orders the victims to stop; when one of them has changed meanwhile, the next plan chooses anew."""
        try:
            async with self._database.begin(SYSTEM) as unit:
                nodes = await commit_reclaims(unit, self._lease(), shard, plan.reclaims)
        except GuardFailed as error:
            log.info("reclaim_refused", reclaims=len(plan.reclaims), error=f"{error}"[:200])
            self._is_dirty = True
            return
        note_reclaims(shard, plan.reclaims, microseconds_of(await self._database.now()))
        self._is_dirty = True
        await self._bell.ring(nodes)

    async def _recover(self, shard: Shard, placements: tuple[Placement, ...], error: Exception) -> None:
        """After a refused batch: counts what it touched anew, reads it again, and goes on one task at a time."""
        self._refused += 1
        log.warning("batch_refused", placements=len(placements), refused=self._refused, error=f"{error}"[:200])
        tasks = {placement.holding.task for placement in placements}
        is_one = len({shard.waiting[task].queued.gang or task for task in tasks}) == 1
        if is_one and self._refused > 1:
            self._set_aside |= dict.fromkeys(tasks, time.monotonic() + REPLAN_SECONDS)
        if self._refused > MAX_REFUSED:
            self._refused = 1
            self.forget()
            return
        nodes: set[NodeId] = {placement.holding.node for placement in placements}
        virtual_pools: set[VirtualPoolId] = {placement.virtual_pool for placement in placements}
        async with self._database.begin(SYSTEM) as unit:
            await recount(unit, sorted(nodes), sorted(virtual_pools))
        async with self._database.begin(SYSTEM) as unit:
            await apply_changes(
                unit,
                shard,
                {
                    ChangeKind.NODE: {*nodes},
                    ChangeKind.VIRTUAL_POOL: {*virtual_pools},
                    ChangeKind.TASK: {*tasks},
                },
            )
        self._is_dirty = True

    def _lease(self) -> Lease:
        if self.lease is None:
            raise LeaseLost(f"{LEASE_NAME}: not held")
        return self.lease


@contextmanager
def _without_collector() -> Iterator[None]:
    """No passes over what is being loaded, all of which stays: with 10,000 nodes each would take a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
