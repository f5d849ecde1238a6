"""Nodes kept free, through the leader: who may use them meanwhile, and when whoever they are kept for can start."""

from datetime import datetime, timedelta

import pytest

from millpond_contracts.bodies.groups import DeviceRequest
from millpond_kernel.db import SYSTEM
from millpond_scheduler.domain.policy import Policy
from millpond_scheduler.usecases.jobs import explain_job
from millpond_scheduler.usecases.mirror import Mirror
from millpond_scheduler.usecases.records import LATE_SECONDS, START_SECONDS
from tests.integration.scheduler.test_plans import plan
from tests.integration.scheduler.world import ONE_DEVICE, World, make_spec

pytestmark = pytest.mark.integration

AT_ONCE = Policy(hold_after_seconds=0)
TWO = DeviceRequest(count=2)


async def test_backfill_when_a_job_ends_before_the_head_can_start_then_it_alone_uses_the_kept_node_case_32(
    world: World,
) -> None:
    node = (await world.add_node(devices=2)).node_id
    share = await world.add_virtual_pool()
    await world.submit(share, devices=ONE_DEVICE, time_limit=1000)
    leader = world.leader(policy=AT_ONCE)
    await leader.step()
    (running,) = (await world.poll(node)).assignments
    await world.run_task(node, running)
    head = await world.submit(share, devices=TWO)
    for limit in (None, 2000, 100):
        await world.submit(share, devices=ONE_DEVICE, time_limit=limit)
    await leader.step()
    started = [task for task in (await world.poll(node)).assignments if task.job_id != running.job_id]
    assert [task.time_limit_seconds for task in started] == [100]

    await leader.step()  # nothing more to place: the verdicts are written
    async with world.database.begin(SYSTEM) as unit:
        told = await explain_job(unit, head.job_id)
    bound: datetime = await world.value("SELECT bound_at FROM allocation WHERE job_id = $1", running.job_id)
    latest = bound + timedelta(seconds=START_SECONDS + 1000 + running.stop_grace_seconds + LATE_SECONDS)
    assert told.estimated_start is not None
    assert timedelta(0) <= told.estimated_start - latest < timedelta(seconds=1)
    asked = await plan(world, share, make_spec(share.virtual_pool_id, devices=ONE_DEVICE), Mirror(policy=AT_ONCE))
    assert asked.explanation is not None
    assert asked.explanation.dominant == "not_enough_devices"

    # The short one ends, what runs ends: the head is the next, though others came before that.
    for task in (started[0], running):
        await world.end_task(node, task)
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE job_id = $1", head.job_id) == 1
    await world.assert_counters_are_true()


async def test_plan_when_what_runs_has_a_limit_then_it_says_by_when_the_job_could_start(world: World) -> None:
    node = (await world.add_node(devices=2)).node_id
    share = await world.add_virtual_pool()
    await world.submit(share, devices=ONE_DEVICE, time_limit=500)
    await world.leader().step()
    assert (await world.poll(node)).assignments
    told = await plan(world, share, make_spec(share.virtual_pool_id, devices=TWO), Mirror())
    assert told.explanation is not None
    assert told.explanation.estimated_start is not None
    assert told.as_of + timedelta(seconds=500) < told.explanation.estimated_start < told.as_of + timedelta(seconds=600)
