"""Nodes that fail job after job: closed before they eat the queue, opened by a person; bad jobs close no pool."""

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.jobs import RetryReason, RetrySpec
from millpond_contracts.bodies.nodes import CordonReason
from millpond_contracts.bodies.work import Assignment, ReportKind
from millpond_contracts.ids import NodeId
from tests.integration.scheduler.world import World

pytestmark = pytest.mark.integration


async def take(world: World, node: NodeId) -> list[Assignment]:
    """What a node is newly told to run."""
    return (await world.poll(node)).assignments


async def fail(world: World, node: NodeId, task: Assignment) -> None:
    await world.run_task(node, task)
    await world.end_task(node, task, exit_code=1)


async def test_node_when_five_jobs_in_a_row_fail_at_once_then_it_is_closed_until_a_person_opens_it_h11(
    world: World,
) -> None:
    # The best fit is the broken node: it gets every job first.
    broken, sound = (await world.add_node(memory=16_000)).node_id, (await world.add_node()).node_id
    share, leader = await world.add_virtual_pool(), world.leader()
    for _ in range(5):
        job = await world.submit(share, retry=RetrySpec(max=2, on=(RetryReason.FAILED,)))
        await leader.step()
        (task,) = await take(world, broken)
        await fail(world, broken, task)
        await leader.step()
        (again,) = await take(world, sound)  # not where it failed, though that fits better
        await world.run_task(sound, again)
        await world.end_task(sound, again)
        assert await world.job_state(job.job_id) == "succeeded"
    told = await world.events("node_quarantined")
    assert [(event["node_id"], event["failures"], event["last_reason"]) for event in told] == [
        (str(broken), 5, "exit_code")
    ]
    # The next job goes elsewhere, also when the registry tells of the node before it has heard that it is closed.
    for change in ({}, {"labels": {"some": "label"}}):
        await world.change_node(broken, **change)
        await world.submit(share)
        await leader.step()
        assert await take(world, broken) == []
        (task,) = await take(world, sound)
        await world.run_task(sound, task)
        await world.end_task(sound, task)
    await world.change_node(broken, cordon_reasons=(CordonReason.HEALTH,), schedulable=False)
    assert await world.value("SELECT quarantined_at FROM node_guard WHERE node_id = $1", broken) is None
    await world.change_node(broken, cordon_reasons=(), schedulable=True)
    await world.submit(share)
    await leader.step()
    (task,) = await take(world, broken)
    await fail(world, broken, task)
    assert len(await world.events("node_quarantined")) == 1  # the count began anew
    await world.assert_counters_are_true()


async def test_node_when_a_job_works_in_between_or_fails_elsewhere_too_then_it_stays_open_h11(world: World) -> None:
    first, second = (await world.add_node(memory=16_000)).node_id, (await world.add_node()).node_id
    share, leader = await world.add_virtual_pool(), world.leader()
    for place in range(8):
        await world.submit(share)
        await leader.step()
        (task,) = await take(world, first)
        if place == 4:
            await world.run_task(first, task)
            await world.end_task(first, task)
        else:
            await fail(world, first, task)
    for _ in range(6):  # jobs that cannot work anywhere
        await world.submit(share, retry=RetrySpec(max=1, on=(RetryReason.FAILED,)))
        await leader.step()
        (task,) = await take(world, first)
        await fail(world, first, task)
        await leader.step()
        (task,) = await take(world, second)
        await fail(world, second, task)
        await world.value("UPDATE fast_failure SET forgiven = true WHERE job_id <> $1 RETURNING 1", task.job_id)
    assert await world.events("node_quarantined") == []


async def test_nodes_when_starts_fail_everywhere_then_the_share_that_is_closed_is_bounded_h11(world: World) -> None:
    nodes = [(await world.add_node(cpu=1000)).node_id for _ in range(4)]
    share, leader = await world.add_virtual_pool(), world.leader()
    for _ in range(12):
        await world.submit(share, count=4)
        await leader.step()
        for node in nodes:
            for task in await take(world, node):
                refused = world.make_report(
                    task, ReportKind.REFUSED, reason=EndReason.START_FAILED, message="no such folder"
                )
                await world.report(node, refused)
        await world.value("UPDATE fast_failure SET job_id = gen_random_uuid() RETURNING 1")  # as if of other jobs
    assert len(await world.events("node_quarantined")) == 1
    assert await world.value("SELECT count(*) FROM node_guard WHERE open") == 3


async def test_node_when_it_is_the_only_one_then_bad_jobs_do_not_close_it_h11(world: World) -> None:
    node = (await world.add_node()).node_id
    share, leader = await world.add_virtual_pool(), world.leader()
    for _ in range(7):
        await world.submit(share)
        await leader.step()
        (task,) = await take(world, node)
        await fail(world, node, task)
    assert await world.events("node_quarantined") == []
    assert await world.value("SELECT open FROM node_guard")
