"""Ending a job by its owner, in every state that it can be in."""

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.jobs import JobState, RetryReason, RetrySpec
from millpond_contracts.bodies.work import ReportKind
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import TenantId
from millpond_kernel.db import SYSTEM
from millpond_kernel.problem import ProblemError
from millpond_scheduler.usecases.jobs import cancel_job
from tests.integration.scheduler.world import World, member

pytestmark = pytest.mark.integration


async def test_cancel_when_pending_then_ended_at_once_and_never_placed(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    leader = world.leader()
    job = await world.submit(share, count=3, cpu=100_000)
    await leader.step()
    view = await world.cancel(share, job.job_id)
    assert (view.state, view.reason, view.groups[0].by_state) == (
        JobState.CANCELLED,
        EndReason.CANCELLED,
        {"cancelled": 3},
    )
    await leader.step()
    assert leader.shard is not None
    assert leader.shard.waiting == {}
    assert (await world.poll(node.node_id)).assignments == []


async def test_cancel_when_bound_but_never_told_then_room_is_back_at_once(world: World) -> None:
    await world.add_node(devices=0)
    share = await world.add_virtual_pool()
    job = await world.submit(share)
    await world.leader().step()
    assert (await world.cancel(share, job.job_id)).state is JobState.CANCELLED
    assert await world.value("SELECT sum(used) FROM usage") == 0
    released = (await world.events("allocation_released"))[0]["allocation"]
    assert (released["reason"], released["active_at"]) == ("cancelled", None)
    await world.assert_counters_are_true()


async def test_cancel_when_told_or_running_then_the_agent_is_ordered_to_stop(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    job = await world.submit(share, count=2)
    await world.leader().step()
    told, running = (await world.poll(node.node_id)).assignments
    await world.run_task(node.node_id, running)
    assert (await world.cancel(share, job.job_id)).state is JobState.RUNNING
    stops = (await world.poll(node.node_id, [running])).stops
    assert {stop.allocation_id for stop in stops} == {told.allocation_id, running.allocation_id}
    assert {(stop.grace_seconds, stop.reason) for stop in stops} == {(7, EndReason.CANCELLED)}
    await world.end_task(node.node_id, running, -15, reason=EndReason.CANCELLED)
    await world.report(node.node_id, world.make_report(told, ReportKind.RELEASED, reason=EndReason.CANCELLED))
    assert await world.job_state(job.job_id) == "cancelled"
    events = await world.events("allocation_stop_requested")
    assert [event["allocation"]["waived_from"] for event in events] == [None, None]
    await world.assert_counters_are_true()


async def test_cancel_when_stopping_already_then_it_changes_nothing(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    job = await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    first = await world.cancel(share, job.job_id)
    assert (await world.cancel(share, job.job_id)).generation == first.generation
    assert len(await world.events("allocation_stop_requested")) == 1


async def test_cancel_when_the_task_ends_well_before_the_stop_reaches_it_then_it_succeeded(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    job = await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    await world.cancel(share, job.job_id)
    await world.end_task(node.node_id, task, 0, reason=EndReason.COMPLETED)
    assert await world.job_state(job.job_id) == "succeeded"


async def test_cancel_when_the_agent_stops_the_task_by_itself_then_its_own_reason_stands(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    job = await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    await world.report(node.node_id, world.make_report(task, ReportKind.STOPPING, reason=EndReason.TIME_LIMIT))
    assert (await world.cancel(share, job.job_id)).state is JobState.RUNNING
    assert [stop.allocation_id for stop in (await world.poll(node.node_id, [task])).stops] == [task.allocation_id]
    await world.end_task(node.node_id, task, -15, reason=EndReason.TIME_LIMIT)
    row = (await world.fetch("SELECT state, reason FROM allocation"))[0]
    assert (row["state"], row["reason"]) == ("released", "time_limit")
    assert await world.job_state(job.job_id) == "cancelled"
    await world.assert_counters_are_true()


async def test_cancel_when_ended_or_foreign_then_refused(world: World) -> None:
    share = await world.add_virtual_pool()
    job = await world.submit(share)
    async with world.database.begin(SYSTEM) as unit:
        with pytest.raises(ProblemError) as foreign:
            await cancel_job(unit, member(TenantId.new()), job.job_id)
    assert foreign.value.code is ErrorCode.JOB_NOT_FOUND
    await world.cancel(share, job.job_id)
    with pytest.raises(ProblemError) as ended:
        await world.cancel(share, job.job_id)
    assert ended.value.code is ErrorCode.JOB_ENDED


async def test_cancel_when_retries_are_left_then_none_follows(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    job = await world.submit(share, retry=RetrySpec(max=3, on=(RetryReason.FAILED,)))
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    await world.cancel(share, job.job_id)
    await world.end_task(node.node_id, task, 1, reason=EndReason.EXIT_CODE)
    assert await world.job_state(job.job_id) == "cancelled"


async def test_stop_order_when_the_agent_never_had_the_task_then_the_room_comes_back(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    job = await world.submit(share)
    await world.leader().step()
    await world.poll(node.node_id)  # the answer with the assignment is lost
    await world.cancel(share, job.job_id)
    await world.value(
        "UPDATE allocation SET stop_requested_at = stop_requested_at - interval '1 minute', bound_at = bound_at"
        " - interval '2 minutes' RETURNING 1"
    )
    await world.poll(node.node_id)
    assert await world.job_state(job.job_id) == "cancelled"
    await world.assert_counters_are_true()


async def test_retry_when_a_task_fails_then_it_waits_in_its_old_place_until_tries_are_over(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    leader = world.leader()
    job = await world.submit(share, retry=RetrySpec(max=1, on=(RetryReason.FAILED,)))
    for attempt in (1, 2):
        await leader.step()
        task = (await world.poll(node.node_id)).assignments[0]
        assert task.attempt == attempt
        await world.run_task(node.node_id, task)
        await world.report(node.node_id, world.make_report(task, ReportKind.RELEASED, exit_code=9, message="it broke"))
    row = (await world.fetch("SELECT state, reason, message FROM job WHERE id = $1", job.job_id))[0]
    assert (row["state"], row["reason"]) == ("failed", "retries_exhausted")
    assert "it broke in attempt 2" in row["message"]
    released = await world.events("allocation_released")
    assert [event["allocation"]["attempt"] for event in released] == [1, 2]
    await world.assert_counters_are_true()
