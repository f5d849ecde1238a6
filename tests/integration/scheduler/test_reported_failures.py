"""Failures that users of other systems reported, replayed; named after the rows of the list of cases."""

import asyncio
from functools import partial
from typing import Any

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.groups import DeviceRequest
from millpond_contracts.bodies.jobs import JobBatch, JobView, RetrySpec
from millpond_contracts.bodies.tenants import VirtualPoolView
from millpond_contracts.bodies.work import Assignment, ReportKind
from millpond_contracts.resources import DeviceHealth
from millpond_kernel.consuming import ConsumerRunner
from millpond_kernel.db import SYSTEM, TenantScope
from millpond_kernel.rebuild import rebuild
from millpond_kernel.worker import WorkerKernel, connected_kernel, run_worker
from millpond_quota.store.virtual_pools import save_pool
from millpond_scheduler.consumers.quota import quota_consumer
from millpond_scheduler.usecases.jobs import submit_jobs
from millpond_scheduler.usecases.leases import find_expired, give_up
from millpond_scheduler.usecases.recount import recount
from millpond_scheduler.usecases.stopping import stop
from tests.integration.databases import MigratedDatabase
from tests.integration.scheduler.test_leases import pass_time
from tests.integration.scheduler.world import ONE_DEVICE, World, make_device, make_spec, member
from tests.integration.services import Services, run_services
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def test_slices_when_their_memory_would_pass_the_devices_then_one_waits_q6(world: World) -> None:
    node = await world.add_node(cpu=64_000, memory=64_000)
    await world.change_node(node.node_id, devices=(make_device(memory_mib=46_068),))
    share = await world.add_virtual_pool()
    await world.submit(share, count=24, cpu=100, memory=64, devices=DeviceRequest(milli=40, memory_mib=2000))
    await world.leader().step()
    assert await world.value("SELECT count(*) FROM allocation") == 23
    assert await world.value("SELECT count(*) FROM task WHERE state = 'pending'") == 1
    assert await world.value("SELECT free_mib[1] FROM node_guard WHERE device_count = 1") == 46_068 - 23 * 2000


async def test_device_when_others_use_it_then_nothing_is_placed_there_until_they_are_gone_q12(world: World) -> None:
    node = (await world.add_node(devices=1, cpu=64_000, memory=640_000)).node_id
    (device,) = world.nodes[node].devices
    used = device.model_copy(update={"health": DeviceHealth.UNKNOWN, "health_reason": "used_by_others: about 80 GiB"})
    share, leader = await world.add_virtual_pool(), world.leader()
    await world.change_node(node, devices=(used,))
    await world.submit(share, devices=DeviceRequest(milli=500, memory_mib=4_000))
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation") == 0
    await world.change_node(node, devices=(device,))
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation") == 1
    assert await world.value("SELECT free_milli[1] FROM node_guard") == 500


async def test_ends_when_four_come_at_once_then_everything_is_free_q8(world: World, migrated: MigratedDatabase) -> None:
    await world.database.close()
    world.database = migrated.database("scheduler", 12)
    await world.database.open()
    node = (await world.add_node(devices=4)).node_id
    share = await world.add_virtual_pool()
    leader = world.leader()
    for _ in range(5):
        for _ in range(4):
            await world.submit(share, devices=ONE_DEVICE)
        await leader.step()
        tasks = (await world.poll(node)).assignments
        assert len(tasks) == 4
        for task in tasks:
            await world.run_task(node, task)
        reports = [world.make_report(task, ReportKind.RELEASED, exit_code=0) for task in tasks]
        await asyncio.gather(*(world.report(node, report) for report in reports for _ in range(2)))
        guard = (await world.fetch("SELECT free_milli, free_cpu_milli FROM node_guard"))[0]
        assert (list(guard["free_milli"]), guard["free_cpu_milli"]) == ([1000] * 4, 8000)
        assert await world.value("SELECT sum(used) FROM usage") == 0
        await world.assert_counters_are_true()


async def test_submits_when_fifty_want_the_last_memory_at_once_then_exactly_one_runs_q11(
    world: World, migrated: MigratedDatabase
) -> None:
    await world.database.close()
    world.database = migrated.database("scheduler", 24)
    await world.database.open()
    node = await world.add_node(cpu=640_000, memory=640_000)
    await world.change_node(node.node_id, devices=(make_device(memory_mib=11_264),))
    share = await world.add_virtual_pool()
    wanted = DeviceRequest(milli=500, memory_mib=6144)
    leaders = [world.leader(batch_tasks=7) for _ in range(2)]
    await asyncio.gather(*(world.submit(share, devices=wanted) for _ in range(50)))
    for _ in range(3):
        for leader in leaders:  # only one of them holds the lease
            await leader.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE state <> 'released'") == 1
    assert await world.value("SELECT count(*) FROM task WHERE state = 'pending'") == 49
    await world.assert_counters_are_true()


async def test_use_when_a_thousand_jobs_come_and_go_while_quota_restarts_then_is_what_lives_q14(
    world: World, migrated: MigratedDatabase
) -> None:
    """Quota's worker ends and begins again and again; each life tells other limits, and our view is loaded anew."""
    await world.database.close()
    world.database = migrated.database("scheduler", 16)
    await world.database.open()
    await world.add_node(devices=8, cpu=64_000, memory=64_000)
    async with migrated.opened("quota", 1) as database, database.begin(SYSTEM) as unit:
        await save_pool(unit, world.pool, deleted=False)
    leader, over, drifts = world.leader(), asyncio.Event(), 0

    async def restart_quota(services: Services, follower: WorkerKernel, path: str) -> None:
        quota = services.make_worker("quota")
        for device_milli in (8000, 4000, 8000, 4000):
            stop, body = asyncio.Event(), {"limits": at_most(device_milli)}
            life = asyncio.create_task(run_worker(quota, stop))
            told = (await services.as_key()("PATCH", path, body, headers={"If-Match": "*"}, expect=200)).json()
            await eventually(partial(is_known, world, told["generation"]), 30)
            await rebuild(follower.database, follower.clients["quota"], quota_consumer(leader.wake))
            stop.set()
            await life

    async def lead() -> None:
        while not over.is_set():
            await leader.step()
            await asyncio.sleep(0.01)

    async def come_and_go(share: VirtualPoolView) -> None:
        nonlocal drifts
        caller = member(share.tenant_id)
        await eventually(partial(is_known, world, 2), 30)
        for number in range(1, 11):
            specs = tuple(make_spec(share.virtual_pool_id, cpu=10, memory=8, devices=ONE_DEVICE) for _ in range(100))
            async with world.database.begin(TenantScope(share.tenant_id)) as unit:
                made = await submit_jobs(unit, caller, JobBatch(jobs=specs))
            await eventually(partial(has_bound, world, 4 * number), 30)
            for start in range(0, 100, 10):
                await asyncio.gather(*(world.cancel(share, job.job_id) for job in made.jobs[start : start + 10]))
            async with world.database.begin(SYSTEM) as unit:
                drifts += await recount(unit)

    async with run_services(migrated, ("quota", "scheduler"), workers=False) as services, asyncio.timeout(120):
        operator = services.as_key()
        tenant = (await operator("POST", "/v1/tenants", {"name": "acme"}, expect=201)).json()["tenant_id"]
        body = {"name": "share", "tenant_id": tenant, "pool_id": str(world.pool.pool_id), "limits": at_most(8000)}
        made = await operator("POST", "/v1/virtual-pools", body, expect=201)
        share = VirtualPoolView.model_validate_json(made.text)
        scheduler = services.make_worker("scheduler")
        async with connected_kernel(scheduler) as kernel, asyncio.TaskGroup() as group:
            consumer, prefix = quota_consumer(leader.wake), migrated.redis_prefix
            follower = ConsumerRunner(kernel.database, kernel.redis, kernel.clients["quota"], consumer, prefix=prefix)
            group.create_task(follower.run(over))
            group.create_task(lead())
            path = f"/v1/virtual-pools/{share.virtual_pool_id}"
            await asyncio.gather(restart_quota(services, kernel, path), come_and_go(share))
            over.set()
    assert drifts == 0
    assert await world.value("SELECT count(*) FROM job WHERE state = 'cancelled'") == 1000
    live = await world.value("SELECT count(*) FROM allocation WHERE state <> 'released'")
    used = await world.value("SELECT used FROM usage WHERE resource = 'device'")
    assert used == live * 1000 == 0
    await world.assert_counters_are_true()


def at_most(device_milli: int) -> dict[str, Any]:
    return {
        "cpu": {"borrow": 1_000_000},
        "memory": {"borrow": 1_000_000},
        "devices": {"t4": {"borrow": device_milli}},
    }


async def has_bound(world: World, tasks: int) -> bool:
    """Whether so many tasks have been bound, whatever became of them."""
    return bool(await world.value("SELECT count(*) >= $1 FROM allocation", tasks))


async def is_known(world: World, generation: int) -> bool:
    """Whether the virtual pool's change has reached the scheduler."""
    return (await world.value("SELECT max(generation) FROM virtual_pool_view") or 0) >= generation


async def test_job_when_its_pool_is_full_then_it_waits_with_a_reason_and_is_not_tried_again_and_again_s8(
    world: World,
) -> None:
    for _ in range(2):
        await world.add_node(devices=1)
    await world.tell_scaling_policy(max_nodes=2)
    share = await world.add_virtual_pool()
    await world.submit(share, count=2, devices=ONE_DEVICE)
    leader = world.leader()
    await leader.step()
    waiting = await world.submit(share, devices=ONE_DEVICE)
    await leader.step()
    # Of demand others hear when a second has passed, which may be now or later.
    told = "SELECT count(*) FROM outbox WHERE type <> 'scheduler.demand_changed.v1'"
    events = await world.value(told)
    written = await world.value("SELECT as_of FROM verdict")
    for _ in range(20):
        leader._is_dirty = True  # as if something had changed each time
        assert not await leader.step()
    assert await world.value("SELECT attempt FROM task WHERE job_id = $1", waiting.job_id) == 1
    assert await world.value("SELECT dominant FROM verdict") == "not_enough_devices"
    at_largest = "the pool is at its largest size, 2 of 2 nodes with t4"
    assert str(await world.value("SELECT message FROM verdict")).endswith(at_largest)
    assert await world.value(told) == events
    assert await world.value("SELECT as_of FROM verdict") == written
    assert await world.value("SELECT count(*) FROM change") == 0
    await world.tell_scaling_policy(max_nodes=3, generation=2)
    await leader.step()
    await leader.step()
    assert at_largest not in str(await world.value("SELECT message FROM verdict"))


async def test_node_when_cut_off_during_a_cancel_then_the_quota_is_free_at_a_stated_time_and_the_agent_told_n3(
    world: World,
) -> None:
    node = (await world.add_node(devices=1)).node_id
    share = await world.add_virtual_pool()
    job = await world.submit(share, devices=ONE_DEVICE)
    await world.leader().step()
    (task,) = (await world.poll(node)).assignments
    await world.run_task(node, task)
    await world.cancel(share, job.job_id)
    given_up, used = [], []
    for seconds in (320, 20):  # lease and stop grace are 330 s, and no poll comes
        await pass_time(world, seconds)
        now = await world.database.now()
        async with world.database.begin(SYSTEM) as unit:
            given_up.append(await give_up(unit, await find_expired(unit, now), now))
        used.append(await world.value("SELECT used FROM usage WHERE resource = 'device'"))
    assert (given_up, used) == ([0, 1], [1000, 0])
    (stop,) = (await world.poll(node, [task])).stops
    assert (stop.allocation_id, stop.grace_seconds) == (task.allocation_id, 0)
    await world.assert_counters_are_true()


async def test_job_when_preempted_and_cancelled_at_once_then_it_is_cancelled_and_nothing_is_left_n7(
    world: World,
) -> None:
    node = (await world.add_node()).node_id
    share, leader = await world.add_virtual_pool(), world.leader()
    retry = RetrySpec(max=5)
    for is_cancelled_first in (False, True):
        job = await world.submit(share, retry=retry)
        await leader.step()
        (task,) = (await world.poll(node)).assignments
        await world.run_task(node, task)
        preempting = [stop_for_drain(world, task), cancel(world, share, job)]
        for act in reversed(preempting) if is_cancelled_first else preempting:
            await act
        await world.end_task(node, task, exit_code=-15)
        await leader.step()
        assert await world.job_state(job.job_id) == "cancelled"
        assert (await world.poll(node)).assignments == []
    assert await world.value("SELECT count(*) FROM task WHERE state IN ('pending', 'stopping')") == 0
    assert await world.value("SELECT count(*) FROM allocation WHERE state <> 'released'") == 0
    await world.assert_counters_are_true()


async def stop_for_drain(world: World, task: Assignment) -> None:
    async with world.database.begin(SYSTEM) as unit:
        await stop(unit, [task.allocation_id], EndReason.DRAINED, await unit.fetchval("SELECT clock_timestamp()"))


async def cancel(world: World, share: VirtualPoolView, job: JobView) -> None:
    await world.cancel(share, job.job_id)
