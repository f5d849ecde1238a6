"""Jobs whose groups wait for groups, through the leader and agents: what starts when, what ends, what is told."""

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.groups import GroupSpec
from millpond_contracts.bodies.jobs import JobView, RetryReason, RetrySpec
from millpond_contracts.bodies.tenants import VirtualPoolView
from millpond_contracts.bodies.verdicts import Explanation
from millpond_contracts.bodies.work import Assignment
from millpond_contracts.ids import JobId, NodeId
from millpond_kernel.db import SYSTEM, TenantScope
from millpond_scheduler.loops.leader import Leader
from millpond_scheduler.usecases.jobs import explain_job, submit_job
from tests.integration.scheduler.world import ONE_DEVICE, World, make_spec, member

pytestmark = pytest.mark.integration

AGAIN = RetrySpec(max=1, on=(RetryReason.FAILED,))


async def submit_graph(
    world: World, share: VirtualPoolView, retry: RetrySpec, *groups: tuple[str, int, str]
) -> JobView:
    """A job of groups by name, count and, separated by spaces, the groups that each waits for."""
    spec = make_spec(share.virtual_pool_id, devices=ONE_DEVICE, retry=retry)
    made: list[GroupSpec] = [
        spec.groups[0].model_copy(update={"name": name, "count": count, "after": tuple(after.split())})
        for name, count, after in groups
    ]
    async with world.database.begin(TenantScope(share.tenant_id)) as unit:
        return await submit_job(unit, member(share.tenant_id), spec.model_copy(update={"groups": tuple(made)}))


async def submit_diamond(world: World, share: VirtualPoolView, retry: RetrySpec = RetrySpec()) -> JobView:
    groups = ("prepare", 2, ""), ("left", 1, "prepare"), ("right", 2, "prepare"), ("join", 1, "left right")
    return await submit_graph(world, share, retry, *groups)


async def begin(world: World, leader: Leader, node: NodeId) -> dict[str, list[Assignment]]:
    """What the leader gave the node since, running; by group."""
    await leader.step()
    found: dict[str, list[Assignment]] = {}
    for task in (await world.poll(node)).assignments:
        await world.run_task(node, task)
        found.setdefault(task.group, []).append(task)
    return found


async def states(world: World) -> dict[str, list[str]]:
    rows = await world.fetch("SELECT group_name, state FROM task ORDER BY group_name, index")
    found: dict[str, list[str]] = {}
    for row in rows:
        found.setdefault(row["group_name"], []).append(row["state"])
    return found


async def explained(world: World, job: JobId) -> Explanation:
    async with world.database.begin(SYSTEM) as unit:
        return await explain_job(unit, job)


async def test_graph_when_groups_succeed_then_those_behind_them_start_in_parallel_and_only_what_is_ready_counts(
    world: World,
) -> None:
    node = (await world.add_node(devices=8)).node_id
    share, leader = await world.add_virtual_pool(), world.leader()
    job = await submit_diamond(world, share)
    assert {group.name: group.by_state for group in job.groups} == {
        "prepare": {"pending": 2},
        "left": {"blocked": 1},
        "right": {"blocked": 2},
        "join": {"blocked": 1},
    }
    first = await begin(world, leader, node)
    assert {name: len(tasks) for name, tasks in first.items()} == {"prepare": 2}
    assert await world.value("SELECT used FROM usage WHERE resource = 'device'") == 2000
    told = await explained(world, job.job_id)
    assert told.dominant == "dependencies"
    assert "group left waits for prepare (0 of 2 tasks succeeded)" in told.message
    await world.end_task(node, first["prepare"][0])
    assert await begin(world, leader, node) == {}
    await world.end_task(node, first["prepare"][1])
    second = await begin(world, leader, node)
    assert {name: len(tasks) for name, tasks in second.items()} == {"left": 1, "right": 2}
    # They queue from the moment on at which they could start.
    assert await world.value("SELECT count(*) FROM task WHERE queued_at > (SELECT created_at FROM job)") == 3
    for task in [*second["left"], *second["right"]]:
        await world.end_task(node, task)
    (last,) = (await begin(world, leader, node))["join"]
    assert (await explained(world, job.job_id)).dependencies == []
    await world.end_task(node, last)
    assert await world.job_state(job.job_id) == "succeeded"
    await world.assert_counters_are_true()


async def test_graph_when_a_task_fails_for_good_then_what_is_behind_it_ends_and_says_why_and_the_rest_goes_on(
    world: World,
) -> None:
    node = (await world.add_node(devices=8)).node_id
    share, leader = await world.add_virtual_pool(), world.leader()
    job = await submit_diamond(world, share)
    first = await begin(world, leader, node)
    await world.end_task(node, first["prepare"][0])
    await world.end_task(node, first["prepare"][1])
    second = await begin(world, leader, node)
    await world.end_task(node, second["right"][0], exit_code=3)
    assert (await states(world))["join"] == ["failed"]
    row = (await world.fetch("SELECT reason, message FROM task WHERE group_name = 'join'"))[0]
    assert (row["reason"], row["message"]) == ("dependency_failed", "group right, which it waited for, did not succeed")
    assert await world.job_state(job.job_id) == "running"
    await world.end_task(node, second["left"][0])
    await world.end_task(node, second["right"][1])
    row = (await world.fetch("SELECT state, reason, message FROM job"))[0]
    assert (row["state"], row["reason"]) == ("failed", "exit_code")
    assert row["message"].startswith("task right/0 ")
    assert await begin(world, leader, node) == {}


async def test_graph_when_a_task_is_tried_again_then_what_is_behind_it_waits_for_that(world: World) -> None:
    node = (await world.add_node(devices=8)).node_id
    share, leader = await world.add_virtual_pool(), world.leader()
    await submit_graph(world, share, AGAIN, ("prepare", 1, ""), ("train", 1, "prepare"))
    first = await begin(world, leader, node)
    await world.end_task(node, first["prepare"][0], exit_code=1)
    assert await states(world) == {"prepare": ["pending"], "train": ["blocked"]}
    second = await begin(world, leader, node)
    assert list(second) == ["prepare"]
    await world.end_task(node, second["prepare"][0])
    assert list(await begin(world, leader, node)) == ["train"]


async def test_job_when_none_of_its_groups_waits_then_the_version_before_can_read_it(world: World) -> None:
    share = await world.add_virtual_pool()
    await world.submit(share)
    await submit_graph(world, share, AGAIN, ("prepare", 1, ""), ("train", 1, "prepare"))
    rows = await world.fetch("SELECT jsonb_path_query_array(spec, '$.groups[*].after') AS after FROM job ORDER BY id")
    assert [row["after"] for row in rows] == [[], [[], ["prepare"]]]


async def test_graph_when_cancelled_then_nothing_of_it_ever_starts(world: World) -> None:
    node = (await world.add_node(devices=8)).node_id
    share, leader = await world.add_virtual_pool(), world.leader()
    job = await submit_diamond(world, share)
    first = await begin(world, leader, node)
    await world.cancel(share, job.job_id)
    assert (await states(world))["join"] == ["cancelled"]
    for task in first["prepare"]:
        await world.end_task(node, task, exit_code=-15, reason=EndReason.CANCELLED)
    assert await world.job_state(job.job_id) == "cancelled"
    assert await begin(world, leader, node) == {}
    assert {state for found in (await states(world)).values() for state in found} == {"cancelled"}


async def test_graph_when_a_gang_waits_in_it_then_the_gang_starts_whole_once_it_is_ready(world: World) -> None:
    node = (await world.add_node(devices=2)).node_id
    share, leader = await world.add_virtual_pool(), world.leader()
    spec = make_spec(share.virtual_pool_id, devices=ONE_DEVICE, gang=True, count=2)
    gang = spec.groups[0].model_copy(update={"after": ("prepare",)})
    prepare = gang.model_copy(update={"name": "prepare", "gang": False, "count": 1, "after": ()})
    async with world.database.begin(TenantScope(share.tenant_id)) as unit:
        await submit_job(unit, member(share.tenant_id), spec.model_copy(update={"groups": (prepare, gang)}))
    first = await begin(world, leader, node)
    assert list(first) == ["prepare"]
    await world.end_task(node, first["prepare"][0])
    second = await begin(world, leader, node)
    assert {name: len(tasks) for name, tasks in second.items()} == {"main": 2}
    assert await world.value("SELECT count(DISTINCT bound_at) FROM allocation WHERE gang") == 1
