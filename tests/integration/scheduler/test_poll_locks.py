"""A poll beside other writers of the same rows: it never waits in a circle with them, and sends what still holds."""

import asyncio
from contextvars import Context

import pytest

from millpond_contracts.bodies.work import Assignment, PollAnswer
from millpond_contracts.ids import NodeId
from millpond_kernel.db import SYSTEM
from millpond_kernel.uow import UnitOfWork
from millpond_scheduler.usecases.jobs import cancel_job
from tests.integration.scheduler.world import World, member
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def poll_until_blocked(
    world: World, unit: UnitOfWork, node: NodeId, held: list[Assignment], blocked: int = 1
) -> asyncio.Task[PollAnswer]:
    """A poll beside an open unit of work, once it waits for a lock as the last of so many."""
    poll = asyncio.create_task(world.poll(node, held), context=Context())

    async def waits() -> bool:
        return bool(await unit.fetchval("SELECT count(*) >= $1 FROM pg_locks WHERE NOT granted", blocked))

    await eventually(waits)
    return poll


async def test_poll_when_a_task_is_cancelled_before_it_was_sent_then_it_is_sent_to_nobody(world: World) -> None:
    node = (await world.add_node()).node_id
    share = await world.add_virtual_pool()
    job = await world.submit(share)
    await world.leader().step()
    async with world.database.begin(SYSTEM) as unit:
        await cancel_job(unit, member(share.tenant_id), job.job_id)
        poll = await poll_until_blocked(world, unit, node, [])
    answer = await poll
    assert (answer.assignments, answer.stops) == ([], [])
    row = (await world.fetch("SELECT state, order_sent_at FROM allocation"))[0]
    assert (row["state"], row["order_sent_at"]) == ("released", None)


async def test_poll_when_it_comes_twice_and_one_ends_what_the_other_holds_then_one_after_the_other(
    world: World,
) -> None:
    node = (await world.add_node()).node_id
    share = await world.add_virtual_pool()
    job = await world.submit(share)
    await world.leader().step()
    (task,) = (await world.poll(node)).assignments
    await world.cancel(share, job.job_id)
    await world.value("UPDATE allocation SET stop_requested_at = stop_requested_at - interval '1 minute' RETURNING 1")
    async with world.database.begin(SYSTEM) as unit:
        await unit.execute("SELECT id FROM allocation FOR NO KEY UPDATE")
        without = await poll_until_blocked(world, unit, node, [])
        with_it = await poll_until_blocked(world, unit, node, [task], blocked=2)
    assert (await without).stops == []
    assert [stop.allocation_id for stop in (await with_it).stops] == [task.allocation_id]
    assert await world.job_state(job.job_id) == "cancelled"
