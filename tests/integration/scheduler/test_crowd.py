"""Everybody at once; afterwards the books agree.

Submits, cancels, agents, two leaders in turn, recounts, changing limits, reservations that begin, end and are
cancelled, nodes that are drained and nodes that are lost, while gangs are placed and what was lent is taken back.
"""

import asyncio
import random
from collections import defaultdict
from datetime import timedelta

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.jobs import JobState, RetryReason, RetrySpec
from millpond_contracts.bodies.nodes import NodeState
from millpond_contracts.bodies.tenants import Limit, VirtualPoolView
from millpond_contracts.bodies.work import Assignment, ReportKind
from millpond_contracts.ids import JobId, NodeId
from millpond_kernel.db import SYSTEM
from millpond_kernel.leases import LeaseLost
from millpond_kernel.problem import ProblemError
from millpond_scheduler.loops.leader import LEASE_NAME, Leader
from millpond_scheduler.usecases.leases import find_expired, give_up
from millpond_scheduler.usecases.recount import recount
from tests.integration.databases import MigratedDatabase
from tests.integration.scheduler.test_drains import emptied, overdue
from tests.integration.scheduler.test_reservations import reserve, tell
from tests.integration.scheduler.world import ONE_DEVICE, World, limits

pytestmark = pytest.mark.integration

JOBS = 40
FINAL = {JobState.SUCCEEDED.value, JobState.FAILED.value, JobState.CANCELLED.value}
RETRY = RetrySpec(max=2, on=(RetryReason.FAILED, RetryReason.NODE_LOST))
# Jobs are submitted until somebody has met each of these.
ENDS = {EndReason.DRAINED.value, EndReason.NODE_LOST.value, EndReason.RECLAIMED.value}


class Crowd:
    """Actors on one world; `met` ends those that disturb others, `over` those that go on for ever."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.over = asyncio.Event()
        self.met = asyncio.Event()
        self.jobs: dict[JobId, VirtualPoolView] = {}
        self.reach: defaultdict[NodeId, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.running_twice: list[str] = []
        self.drifts = 0

    async def submit_all(self, shares: list[VirtualPoolView]) -> None:
        number = -1
        while (number := number + 1) < JOBS or not await self.list_ends() >= ENDS:
            if number >= JOBS:
                await asyncio.sleep(0.2)
            share = shares[number // 2 % len(shares)]
            devices = ONE_DEVICE if number % 3 else None
            is_gang = number % 4 == 1
            job = await self.world.submit(share, count=1 + number % 3, devices=devices, retry=RETRY, gang=is_gang)
            self.jobs[job.job_id] = share
            await asyncio.sleep(0.005)
        self.met.set()

    async def list_ends(self) -> set[str]:
        return {row["reason"] for row in await self.world.fetch("SELECT DISTINCT reason FROM allocation")}

    async def cancel_some(self) -> None:
        while not self.over.is_set():
            await asyncio.sleep(0.08)
            if self.jobs:
                job = self.random.choice(list(self.jobs))
                try:
                    await self.world.cancel(self.jobs[job], job)
                except ProblemError:
                    continue  # it had ended

    async def be_agent(self, node: NodeId) -> None:
        held: dict[str, Assignment] = {}
        while not self.over.is_set():
            async with self.reach[node]:
                await self.work(node, held)
            await asyncio.sleep(0.01)

    async def work(self, node: NodeId, held: dict[str, Assignment]) -> None:
        answer = await self.world.poll(node, list(held.values()))
        for stop in answer.stops:
            task = held.pop(str(stop.allocation_id), None)
            if task is not None:
                await self.world.end_task(node, task, -15, reason=stop.reason)
        for task in answer.assignments:
            if any(other.task_id == task.task_id for other in held.values()):
                self.running_twice.append(str(task.task_id))
            held[str(task.allocation_id)] = task
            await self.world.run_task(node, task)
        for key in self.random.sample(sorted(held), k=len(held) // 2):
            task = held.pop(key)
            code = self.random.choice([0, 0, 0, 1])
            report = self.world.make_report(task, ReportKind.RELEASED, exit_code=code)
            await self.world.report(node, report)
            await self.world.report(node, report)

    async def disturb(self, nodes: list[NodeId]) -> None:
        """One node after the other is drained at once, or lost and soon there again."""
        while not self.met.is_set():
            await asyncio.sleep(self.random.uniform(0.1, 0.3))
            node = self.random.choice(nodes)
            await self.random.choice([self.drain, self.lose])(node)
            await self.world.change_node(node, state=NodeState.READY, schedulable=True, cordon_reasons=(), drain=None)

    async def drain(self, node: NodeId) -> None:
        await self.world.drain(node, await self.world.database.now() - timedelta(seconds=1))
        await overdue(self.world)
        await asyncio.sleep(0.05)
        await emptied(self.world)

    async def lose(self, node: NodeId) -> None:
        """Nobody reaches it, its lease is over, what it held is given up; it comes back under a new session."""
        async with self.reach[node]:
            incarnation = self.world.nodes[node].incarnation + 1
            await self.world.change_node(node, state=NodeState.UNREACHABLE, schedulable=False, incarnation=incarnation)
            await self.world.fetch(
                "UPDATE node_lease SET leased_until = clock_timestamp() - interval '1 h' WHERE node_id = $1", node
            )
            now = await self.world.database.now()
            async with self.world.database.begin(SYSTEM) as unit:
                lost = await find_expired(unit, now)
            async with self.world.database.begin(SYSTEM) as unit:
                await give_up(unit, lost, now)

    async def reserve(self, share: VirtualPoolView) -> None:
        """Windows that end by themselves, and others that are cancelled, while their holder is being placed."""
        while not self.met.is_set():
            now = await self.world.database.now()
            made = await reserve(self.world, share, now, now + timedelta(seconds=self.random.uniform(0.05, 0.4)))
            await asyncio.sleep(0.2)
            await tell(self.world, made.model_copy(update={"cancelled_at": now, "generation": 2}))
            await asyncio.sleep(0.1)

    async def lead(self, leader: Leader) -> None:
        while not self.over.is_set():
            try:
                busy = await leader.step()
            except LeaseLost:
                leader.forget()
                continue
            if not busy:
                await asyncio.sleep(0.02)

    async def depose(self) -> None:
        while not self.over.is_set():
            await asyncio.sleep(0.5)
            await self.world.fetch("UPDATE lease SET expires_at = clock_timestamp() WHERE name = $1", LEASE_NAME)

    async def recount(self) -> None:
        while not self.over.is_set():
            async with self.world.database.begin(SYSTEM) as unit:
                self.drifts += await recount(unit)
            await asyncio.sleep(0.05)

    async def change_limits(self, share: VirtualPoolView) -> None:
        generation = share.generation
        while not self.over.is_set():
            generation += 1
            given = limits(devices=self.random.choice([1000, 3000]))
            await self.world.tell_virtual_pool(share.model_copy(update={"limits": given, "generation": generation}))
            await asyncio.sleep(0.1)

    async def wait_until_all_ended(self) -> None:
        while True:
            rows = await self.world.fetch("SELECT state, count(*) AS n FROM job GROUP BY state")
            states = {row["state"]: row["n"] for row in rows}
            if sum(states.values()) == len(self.jobs) and set(states) <= FINAL:
                return
            await asyncio.sleep(0.1)


async def test_crowd_when_everybody_acts_at_once_then_nothing_is_lost_doubled_or_miscounted(
    world: World, migrated: MigratedDatabase
) -> None:
    await world.database.close()
    world.database = migrated.database("scheduler", 24)
    await world.database.open()
    nodes = [await world.add_node(devices=2, cpu=4000) for _ in range(3)]
    # The third has nothing of its own: what it borrows is taken back again and again.
    lends = limits().model_copy(update={"devices": {"t4": Limit(guaranteed=3000, lend=3000)}})
    borrows = limits().model_copy(update={"devices": {"t4": Limit(borrow=6000)}})
    shares = [await world.add_virtual_pool(given=given) for given in (limits(devices=3000), lends, borrows)]
    crowd = Crowd(world, 7)
    actors = [
        *(crowd.be_agent(node.node_id) for node in nodes),
        *(crowd.lead(world.leader(batch_tasks=8)) for _ in range(2)),
        crowd.depose(),
        crowd.recount(),
        crowd.cancel_some(),
        crowd.change_limits(shares[0]),
        crowd.disturb([node.node_id for node in nodes]),
        crowd.reserve(shares[2]),
    ]
    async with asyncio.timeout(180), asyncio.TaskGroup() as group:
        for actor in actors:
            group.create_task(actor)
        await crowd.submit_all(shares)
        await crowd.wait_until_all_ended()
        crowd.over.set()
    assert crowd.running_twice == []
    assert crowd.drifts == 0
    await world.assert_counters_are_true()
    assert await world.value("SELECT sum(used) FROM usage") == 0
    assert await world.value("SELECT count(*) FROM allocation WHERE released_at < bound_at") == 0
    parts = await world.fetch(
        "SELECT a.job_id FROM allocation a JOIN job j ON j.id = a.job_id WHERE a.gang"
        " GROUP BY a.job_id, a.attempt, j.spec"
        " HAVING count(*) <> (j.spec->'groups'->0->>'count')::int OR count(DISTINCT a.bound_at) <> 1"
    )
    assert parts == [], "every attempt of a gang began whole"
    assert await world.value("SELECT count(*) FROM task WHERE state IN ('pending', 'bound')") == 0
    generations = defaultdict(list)
    for row in await world.fetch("SELECT subject, generation FROM outbox ORDER BY id"):
        generations[row["subject"]].append(row["generation"])
    assert [subject for subject, found in generations.items() if found != sorted(set(found))] == []
    bound = {event["allocation"]["allocation_id"] for event in await world.events("allocation_bound")}
    released = [event["allocation"]["allocation_id"] for event in await world.events("allocation_released")]
    assert sorted(released) == sorted(bound)
