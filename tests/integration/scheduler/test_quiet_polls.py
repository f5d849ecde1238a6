"""Polls of many nodes whose leases are renewed together; and those that must be taken alone."""

import pytest

from millpond_contracts.bodies.work import Assignment, HeldAllocation, PollRequest
from millpond_contracts.ids import NodeId
from millpond_kernel.db import SYSTEM
from millpond_scheduler.usecases.quiet_polls import take_quiet_polls
from millpond_scheduler.usecases.work import NodeCall, TakenPoll
from tests.integration.scheduler.world import World

pytestmark = pytest.mark.integration


def ask(
    world: World, node: NodeId, held: list[Assignment] | None = None, *, boot: str = "boot-1", incarnation: int = 1
) -> tuple[NodeCall, PollRequest]:
    names = [HeldAllocation(allocation_id=item.allocation_id, epoch=item.epoch) for item in held or []]
    request = PollRequest(boot_id=boot, sent_monotonic_ms=world.clock_ms, held=names, wait_seconds=0)
    return NodeCall(node, world.pool.pool_id, incarnation), request


async def take(world: World, *polls: tuple[NodeCall, PollRequest]) -> list[TakenPoll | None]:
    async with world.database.begin(SYSTEM) as unit:
        return await take_quiet_polls(unit, polls)


async def leased_until(world: World, node: NodeId) -> float:
    return float(await world.value("SELECT extract(epoch FROM leased_until) FROM node_lease WHERE node_id = $1", node))


async def test_quiet_polls_when_all_is_as_it_should_be_then_leases_are_renewed_as_if_each_came_alone(
    world: World,
) -> None:
    nodes = [(await world.add_node()).node_id for _ in range(3)]
    await world.value(
        "UPDATE node_lease SET leased_until = leased_until - interval '100 s', renewed_at = renewed_at - interval '1 h'"
        " RETURNING 1"
    )
    before = [await leased_until(world, node) for node in nodes]
    world.clock_ms += 5000
    # Of two polls of one node only the first is taken here.
    first, second, again = await take(world, ask(world, nodes[0]), ask(world, nodes[1]), ask(world, nodes[0]))
    assert first is not None
    assert second is not None
    assert (first.is_at_peace, first.lease_seconds, again) == (True, float(world.pool.lease_seconds), None)
    after = [await leased_until(world, node) for node in nodes]
    assert [late > early + 90 for early, late in zip(before, after, strict=True)] == [True, True, False]
    row = (await world.fetch("SELECT * FROM node_lease WHERE node_id = $1", nodes[0]))[0]
    assert (row["renewed_at"], row["exchange_monotonic_ms"]) == (first.at, world.clock_ms)
    assert row["exchange_at"] <= first.at


async def test_quiet_polls_when_something_is_to_be_said_or_settled_then_left_to_a_poll_alone(world: World) -> None:
    busy = (await world.add_node()).node_id
    job = await world.submit(await world.add_virtual_pool())
    await world.leader().step()
    assert await take(world, ask(world, busy)) == [None]  # an order
    (task,) = (await world.poll(busy)).assignments
    await world.run_task(busy, task)
    held, forgotten = await take(world, ask(world, busy, [task])), await take(world, ask(world, busy))
    assert (held[0] is not None, forgotten) == (True, [None])
    idle, silent, fresh = [(await world.add_node()).node_id for _ in range(3)]
    await world.value("DELETE FROM node_lease WHERE node_id = $1 RETURNING 1", fresh)
    await world.value("UPDATE node_lease SET silent = true WHERE node_id = $1 RETURNING 1", silent)
    before = [await leased_until(world, node) for node in (idle, silent)]
    others = await take(
        world,
        ask(world, fresh),  # its first poll
        ask(world, silent),
        ask(world, idle, boot="boot-2"),
    )
    others += await take(world, ask(world, idle, incarnation=0))  # a session that is over
    others += await take(world, ask(world, idle, [task]))  # another node's
    assert others == [None] * 5
    assert [await leased_until(world, node) for node in (idle, silent)] == before
    assert await world.job_state(job.job_id) == "running"
