"""A job from its submit to its end, through the leader and an agent."""

import json
from datetime import timedelta

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.jobs import JobBatch, JobBatchView, RetryReason, RetrySpec
from millpond_contracts.bodies.work import ReportKind
from millpond_contracts.events.scheduler import JobSubmitted
from millpond_kernel.db import TenantScope
from millpond_kernel.leases import LeaseLost
from millpond_scheduler.usecases.jobs import submit_jobs
from tests.integration.scheduler.world import ONE_DEVICE, SECRET, World, make_spec, member

pytestmark = pytest.mark.integration


async def test_job_when_placed_run_and_ended_then_every_state_and_event_follows(world: World) -> None:
    node = await world.add_node(devices=2)
    share = await world.add_virtual_pool()
    leader = world.leader()
    job = await world.submit(share, devices=ONE_DEVICE)
    await leader.step()
    answer = await world.poll(node.node_id)
    assert [item.job_id for item in answer.assignments] == [job.job_id]
    task = answer.assignments[0]
    assert (task.command, task.env) == (("/bin/true", SECRET), {"TOKEN": SECRET})
    assert [share.milli for share in task.devices] == [1000]
    world.clock_ms += 1500
    await world.run_task(node.node_id, task)
    assert await world.job_state(job.job_id) == "running"
    await world.end_task(node.node_id, task)
    assert await world.job_state(job.job_id) == "succeeded"
    states = [event["job"]["state"] for event in await world.events("job_state_changed")]
    assert states == ["running", "succeeded"]
    released = (await world.events("allocation_released"))[0]["allocation"]
    assert (released["reason"], released["exit_code"], released["generation"]) == ("completed", 0, 3)
    await world.assert_counters_are_true()
    assert await world.value("SELECT sum(used) FROM usage") == 0
    guard = (await world.fetch("SELECT free_milli, free_cpu_milli FROM node_guard"))[0]
    assert (list(guard["free_milli"]), guard["free_cpu_milli"]) == ([1000, 1000], 8000)


async def test_jobs_when_submitted_together_then_event_audit_and_answer_are_what_their_models_say(world: World) -> None:
    """Each job is written once for the three of them."""
    share = await world.add_virtual_pool()
    labels = {"team": 'quo"te'}
    specs = tuple(make_spec(share.virtual_pool_id, name=name, count=2, labels=labels) for name in ("one", "two"))
    async with world.database.begin(TenantScope(share.tenant_id)) as unit:
        made = await submit_jobs(unit, member(share.tenant_id), JobBatch(jobs=specs))
    assert JobBatchView.model_validate_json(made.model_dump_json()) == JobBatchView(jobs=made.jobs)
    assert made.model_dump_json() == JobBatchView(jobs=made.jobs).model_dump_json()
    rows = await world.fetch("SELECT * FROM outbox ORDER BY id")
    assert [row["body"] for row in rows] == [json.loads(JobSubmitted(job=job).model_dump_json()) for job in made.jobs]
    assert [(row["type"], row["subject"], row["tenant_id"], row["generation"], row["happened_at"]) for row in rows] == [
        (JobSubmitted.type, str(job.job_id), job.tenant_id, 1, job.created_at) for job in made.jobs
    ]
    audited = await world.fetch("SELECT action, object, after FROM audit ORDER BY id")
    assert [(row["action"], row["object"], row["after"]) for row in audited] == [
        ("job.submit", str(job.job_id), json.loads(job.model_dump_json())) for job in made.jobs
    ]


async def test_events_when_a_job_ran_then_none_carries_command_or_environment(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    await world.end_task(node.node_id, task)
    rows = await world.fetch("SELECT body FROM outbox")
    assert len(rows) >= 5
    assert SECRET not in json.dumps([row["body"] for row in rows])


async def test_leader_when_it_restarts_then_running_work_is_adopted_and_room_stays_taken_v3(world: World) -> None:
    node = await world.add_node(devices=1)
    share = await world.add_virtual_pool()
    await world.submit(share, devices=ONE_DEVICE)
    first = world.leader()
    await first.step()
    second_job = await world.submit(share, devices=ONE_DEVICE)
    await world.value("UPDATE lease SET expires_at = clock_timestamp() RETURNING 1")
    second = world.leader()
    await second.step()
    assert second.lease is not None
    assert first.lease is not None
    assert second.lease.epoch == first.lease.epoch + 1
    assert await world.job_state(second_job.job_id) == "pending"
    with pytest.raises(LeaseLost):
        await first.step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    await world.end_task(node.node_id, task)
    await second.step()
    answer = await world.poll(node.node_id)
    assert [item.job_id for item in answer.assignments] == [second_job.job_id]


async def test_report_when_epoch_is_stale_then_rejected_alone(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    await world.submit(share, count=2)
    await world.leader().step()
    first, second = (await world.poll(node.node_id)).assignments
    answer = await world.report(
        node.node_id,
        world.make_report(first, ReportKind.ACTIVE, epoch=first.epoch - 1),
        world.make_report(second, ReportKind.ACTIVE),
    )
    assert answer.accepted == 1
    assert [(item.allocation_id, item.code) for item in answer.rejected] == [
        (first.allocation_id, "scheduler.allocation.epoch_stale")
    ]
    states = await world.fetch("SELECT state FROM allocation ORDER BY id")
    assert sorted(row["state"] for row in states) == ["active", "bound"]


async def test_reports_when_sent_twice_and_late_then_the_effect_is_once(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    job = await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    reports = [
        world.make_report(task, ReportKind.STARTING),
        world.make_report(task, ReportKind.ACTIVE),
        world.make_report(task, ReportKind.RELEASED, exit_code=3),
    ]
    await world.report(node.node_id, *reports)
    again = await world.report(node.node_id, *reversed(reports))
    assert (again.accepted, again.rejected) == (3, [])
    assert await world.job_state(job.job_id) == "failed"
    assert len(await world.events("allocation_released")) == 1
    assert len(await world.events("allocation_activated")) == 1
    await world.assert_counters_are_true()


async def test_end_when_reported_anew_under_a_later_number_then_nothing_is_given_back_twice(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    await world.submit(share)
    await world.submit(share)
    await world.leader().step()
    first, second = (await world.poll(node.node_id)).assignments
    for task in (first, second):
        await world.run_task(node.node_id, task)
    for _ in range(2):
        # An agent that is told to stop what has ended tells its end again, with the next number.
        await world.report(node.node_id, world.make_report(first, ReportKind.RELEASED, exit_code=0))
    await world.assert_counters_are_true()
    await world.end_task(node.node_id, second)
    await world.assert_counters_are_true()
    assert len(await world.events("allocation_released")) == 2


async def test_report_when_the_agent_refuses_then_the_attempt_failed_and_was_never_billed(world: World) -> None:
    node = await world.add_node(devices=1)
    share = await world.add_virtual_pool()
    job = await world.submit(share, devices=ONE_DEVICE)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.report(node.node_id, world.make_report(task, ReportKind.REFUSED, message="no container runtime"))
    row = (await world.fetch("SELECT state, reason, message FROM job WHERE id = $1", job.job_id))[0]
    assert (row["state"], row["reason"]) == ("failed", "refused")
    assert "no container runtime" in row["message"]
    assert (await world.events("allocation_released"))[0]["allocation"]["active_at"] is None
    await world.assert_counters_are_true()


async def test_report_when_the_agent_stops_a_task_for_the_provider_then_it_is_waived_from_there(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    await world.submit(share)
    await world.leader().step()
    task = (await world.poll(node.node_id)).assignments[0]
    await world.run_task(node.node_id, task)
    await world.report(node.node_id, world.make_report(task, ReportKind.STOPPING, reason=EndReason.DRAINED))
    await world.end_task(node.node_id, task, -15, reason=EndReason.DRAINED)
    row = (await world.fetch("SELECT state, reason, waived_from, released_at FROM allocation"))[0]
    assert (row["state"], row["reason"]) == ("released", "drained")
    assert row["waived_from"] <= row["released_at"]


async def test_job_when_a_running_attempt_is_retried_then_the_job_goes_on_running(world: World) -> None:
    node = await world.add_node()
    share = await world.add_virtual_pool()
    job = await world.submit(share, retry=RetrySpec(max=1, on=(RetryReason.FAILED,)))
    leader = world.leader()
    for exit_code in (1, 0):
        await leader.step()
        task = (await world.poll(node.node_id)).assignments[0]
        await world.run_task(node.node_id, task)
        assert await world.job_state(job.job_id) == "running"
        await world.end_task(node.node_id, task, exit_code)
    states = [event["job"]["state"] for event in await world.events("job_state_changed")]
    assert states == ["running", "succeeded"]


async def test_price_when_one_is_in_force_then_the_allocation_names_the_tenants_own_before_the_list(
    world: World,
) -> None:
    node = await world.add_node()
    share, other = await world.add_virtual_pool(), await world.add_virtual_pool()
    listed = await world.add_price()
    own = await world.add_price(tenant=share.tenant_id)
    await world.add_price(valid_from=await world.database.now() + timedelta(hours=1))
    for each in (share, other):
        await world.submit(each)
    await world.leader().step()
    found = {
        row["tenant_id"]: row["price_version_id"]
        for row in await world.fetch("SELECT tenant_id, price_version_id FROM allocation")
    }
    assert found == {share.tenant_id: own, other.tenant_id: listed}
    assert len((await world.poll(node.node_id)).assignments) == 2
