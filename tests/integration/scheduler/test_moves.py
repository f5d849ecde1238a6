"""Plans of moves through the real rows: whom they serve, who may be moved, that nothing changes; carrying one out."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_contracts.bodies.groups import DeviceRequest
from millpond_contracts.bodies.jobs import JobView, RetryReason, RetrySpec
from millpond_contracts.bodies.moves import MoveOrderSpec, MoveOrderView, MovePlanView, MovePolicy
from millpond_contracts.bodies.nodes import CordonReason
from millpond_contracts.bodies.tenants import VirtualPoolView
from millpond_contracts.bodies.work import Assignment
from millpond_contracts.ids import JobId, NodeId
from millpond_kernel.db import SYSTEM
from millpond_kernel.problem import ProblemError
from millpond_scheduler.domain.defragmentation import MoveRules
from millpond_scheduler.loops.leader import Leader
from millpond_scheduler.store import moves
from millpond_scheduler.store.guards import GuardFailed
from millpond_scheduler.usecases.loading import refresh_shard
from millpond_scheduler.usecases.mirror import Mirror, refresh_mirror
from millpond_scheduler.usecases.moves import find_moves, plan_on, read_question
from millpond_scheduler.usecases.moving import commit_moves, order_moves, reclaim_of
from millpond_scheduler.usecases.nodes import take_pool
from millpond_scheduler.usecases.records import microseconds_of
from tests.integration.scheduler.world import ONE_DEVICE, World, member

pytestmark = pytest.mark.integration

AGED = (
    "UPDATE allocation SET bound_at = bound_at - interval '15 minutes', active_at = active_at - interval '15 minutes'"
    " WHERE state = 'active' RETURNING 1"
)
AGAIN = RetrySpec(max=3, on=(RetryReason.PREEMPTED,))


async def ask(world: World, job: JobId, max_moves: int = 8) -> MovePlanView:
    mirror = Mirror()
    async with world.database.begin(SYSTEM) as unit:
        await refresh_mirror(unit, mirror)
    async with world.database.begin(SYSTEM) as unit:
        return find_moves(mirror, await read_question(unit, job, MoveRules(max_moves=max_moves)))


async def scatter(world: World) -> tuple[Leader, VirtualPoolView, JobView, dict[NodeId, list[Assignment]]]:
    """Three nodes of four devices, 3, 2 and 3 in use by `many`; a job that needs four on one; and what runs where."""
    nodes = [(await world.add_node(devices=4)).node_id for _ in range(3)]
    share = await world.add_virtual_pool()
    await world.submit(share, count=12, devices=ONE_DEVICE, retry=AGAIN, name="many")
    leader = world.leader(poll_seconds=0.0)
    await leader.step()
    running: dict[NodeId, list[Assignment]] = {}
    for node, stays in zip(nodes, (3, 2, 3), strict=True):
        tasks = (await world.poll(node)).assignments
        for place, task in enumerate(tasks):
            await world.run_task(node, task)
            if place >= stays:
                await world.end_task(node, task)
        running[node] = tasks[:stays]
    head = await world.submit(share, devices=DeviceRequest(count=4), name="head")
    return leader, share, head, running


class Seen(NamedTuple):
    """A plan of moves for `head` as it was seen, beside what is scattered; `emptied` = the node that it would get."""

    leader: Leader
    share: VirtualPoolView
    head: JobView
    running: dict[NodeId, list[Assignment]]
    told: MovePlanView
    emptied: NodeId


async def see_moves(world: World) -> Seen:
    leader, share, head, running = await scatter(world)
    await world.value(AGED)
    told = await ask(world, head.job_id)
    (emptied,) = {move.from_node_id for move in told.moves}
    return Seen(leader, share, head, running, told, emptied)


async def leave(world: World, node: NodeId, tasks: Sequence[Assignment]) -> None:
    for task in tasks:
        await world.end_task(node, task, exit_code=-15, reason=EndReason.PREEMPTED)


async def order(world: World, told: MovePlanView, plan: str | None = None) -> MoveOrderView:
    async with world.database.begin(SYSTEM) as unit:
        return await order_moves(unit, member(None), told, MoveOrderSpec(plan=plan or told.plan or ""))


async def orders(world: World, job: JobId) -> list[MoveOrderView]:
    async with world.database.begin(SYSTEM) as unit:
        return await moves.list_orders(unit, job, None, 10)


async def test_moves_when_free_devices_are_scattered_then_says_which_job_moves_where_and_what_it_costs_f1(
    world: World,
) -> None:
    """Three nodes of four devices with 3, 2 and 3 in use, and a job that needs four on one."""
    _, _, head, _ = await scatter(world)
    told = await ask(world, head.job_id)
    assert (told.outcome, told.moves) == ("no_way", [])  # all of them started a moment ago
    await world.value(AGED)
    told = await ask(world, head.job_id)
    assert (told.outcome, told.largest_free_block, told.fragmentation_permille) == ("moves", 2, 1000)
    assert [(move.job, move.from_node) for move in told.moves] == [("many", "node-1")] * 2
    assert {move.to_node for move in told.moves} == {"node-0", "node-2"}
    assert told.nodes == ["node-1"]
    assert all(900 < move.lost_seconds < 1100 for move in told.moves)
    assert told.cost == 1000 * sum(move.lost_seconds for move in told.moves)
    assert (await ask(world, head.job_id, max_moves=1)).outcome == "no_way"
    assert await world.value("SELECT count(*) FROM allocation WHERE state <> 'active' AND state <> 'released'") == 0
    await world.assert_counters_are_true()


async def test_moves_when_running_jobs_allow_no_restart_or_nothing_waits_then_there_are_none(world: World) -> None:
    """Two nodes of two devices with one in use on each; a job needs both devices of one."""
    nodes = [(await world.add_node(devices=2)).node_id for _ in range(2)]
    share = await world.add_virtual_pool()
    stays = await world.submit(share, count=4, devices=ONE_DEVICE, retry=RetrySpec())
    leader = world.leader()
    await leader.step()
    for node in nodes:
        first, second = (await world.poll(node)).assignments
        await world.run_task(node, first)
        await world.run_task(node, second)
        await world.end_task(node, second)
    await world.value(AGED)
    with pytest.raises(ProblemError, match="waits"):
        await ask(world, stays.job_id)
    head = await world.submit(share, devices=DeviceRequest(count=2))
    assert (await ask(world, head.job_id)).outcome == "no_way"
    await world.value(
        "UPDATE job SET spec = jsonb_set(spec, '{retry}', $2::jsonb) WHERE id = $1 RETURNING 1",
        stays.job_id,
        AGAIN.model_dump(mode="json"),
    )
    assert (await ask(world, head.job_id)).outcome == "moves", "had they allowed it"


async def test_order_when_carried_out_then_targets_are_kept_tasks_move_there_and_the_job_starts_on_what_they_left(
    world: World,
) -> None:
    leader, _, head, running, told, emptied = await see_moves(world)
    made = await order(world, told)
    assert (made.state, made.ordered_by) == ("requested", "tester")
    await leader.step()
    # Its devices stay held and charged until the agent confirms; its place is kept from everybody else.
    assert await world.value("SELECT count(*) FROM allocation WHERE stop_reason = 'moved'") == 2
    assert await world.value("SELECT used FROM usage WHERE resource = 'device'") == 8000
    targets = {move.to_node_id for move in told.moves}
    assert (await ask(world, head.job_id)).outcome == "no_way"
    stops = (await world.poll(emptied)).stops
    assert {stop.reason for stop in stops} == {EndReason.PREEMPTED}  # as agents of the version before know it
    await leave(world, emptied, running[emptied][:1])
    await leader.step()
    assert {task.attempt for node in targets for task in (await world.poll(node)).assignments if task.attempt > 1} == {
        2
    }
    assert await world.job_state(head.job_id) == "pending"
    await leave(world, emptied, running[emptied][1:])
    await leader.step()
    ((job, _),) = [(task.job_id, task) for task in (await world.poll(emptied)).assignments]
    assert job == head.job_id
    moved = [task for node in targets for task in (await world.poll(node)).assignments]
    assert [task.attempt for task in moved] == [2, 2]
    assert await world.value("SELECT count(*) FROM allocation WHERE reason = 'moved' AND waived_from IS NOT NULL") == 2
    await leader.step()
    (after,) = await orders(world, head.job_id)
    assert (after.state, [move.result for move in after.moves]) == ("done", ["moved", "moved"])
    told_of = await world.events("move_ordered"), await world.events("move_ended")
    assert {each["served_job_id"] for events in told_of for each in events} == {str(head.job_id)}
    assert [len(events) for events in told_of] == [2, 2]
    await world.assert_counters_are_true()


async def test_order_when_the_plan_is_another_one_or_ordered_twice_then_refused_and_nothing_is_stopped(
    world: World,
) -> None:
    leader, _, head, _, told, _ = await see_moves(world)
    with pytest.raises(ProblemError, match="Look again"):
        await order(world, told, "0" * 16)
    await order(world, told)
    with pytest.raises(ProblemError, match="not over yet"):
        await order(world, told)
    # The leader decides once more, and finds other moves than those that were seen.
    await world.value("UPDATE move_order SET plan = repeat('0', 16) RETURNING 1")
    await leader.step()
    (after,) = await orders(world, head.job_id)
    assert (after.state, after.moves) == ("refused", [])
    assert after.message is not None
    assert "other tasks would move" in after.message
    assert len(await world.events("move_refused")) == 1
    assert await world.value("SELECT count(*) FROM allocation WHERE stop_requested_at IS NOT NULL") == 0


async def test_order_when_the_leader_is_replaced_in_between_then_the_next_one_keeps_the_places_and_finishes(
    world: World,
) -> None:
    leader, share, head, running, told, emptied = await see_moves(world)
    await order(world, told)
    await leader.step()
    leader.forget()
    await leave(world, emptied, running[emptied])
    other = await world.submit(share, devices=ONE_DEVICE, count=4, priority=99)
    await leader.step()
    await leader.step()
    assert await world.value("SELECT count(*) FROM allocation WHERE job_id = $1", head.job_id) == 1
    assert await world.value("SELECT count(*) FROM allocation WHERE job_id = $1", other.job_id) == 0
    (after,) = await orders(world, head.job_id)
    assert (after.state, [move.result for move in after.moves]) == ("done", ["moved", "moved"])


async def test_policy_when_a_pool_has_one_then_the_leader_moves_by_itself_within_budget_and_cool_down(
    world: World,
) -> None:
    leader, share, head, running = await scatter(world)
    await world.value(AGED)
    await leader.step()
    assert await orders(world, head.job_id) == []  # off by default
    await tell_policy(world, 2, MovePolicy(wait_seconds=0, moves_per_hour=2))
    for _ in range(2):
        await leader.step()
    (made,) = await orders(world, head.job_id)
    assert (made.ordered_by, made.state, len(made.moves)) == ("policy", "moving", 2)
    (emptied,) = {move.from_node_id for move in made.moves}
    await leave(world, emptied, running[emptied])
    await leader.step()
    (task,) = (await world.poll(emptied)).assignments
    assert task.job_id == head.job_id
    # Two places become free, each on another node, and a job that needs both waits: first the budget, then the
    # cool-down of the job that was moved stands in the way.
    for node in {move.to_node_id for move in made.moves}:
        await world.end_task(node, running[node][0])
    await world.submit(share, devices=DeviceRequest(count=2))
    await world.value(AGED)
    for generation, most, cool_down in ((3, 2, 0), (4, 9, 3600)):
        await tell_policy(
            world, generation, MovePolicy(wait_seconds=0, moves_per_hour=most, cool_down_seconds=cool_down)
        )
        for _ in range(2):
            await leader.step()
        assert await world.value("SELECT count(*) FROM move") == 2


async def tell_policy(world: World, generation: int, policy: MovePolicy) -> None:
    world.pool = world.pool.model_copy(update={"moves": policy, "generation": generation})
    async with world.database.begin(SYSTEM) as unit:
        await take_pool(unit, world.pool)


@pytest.mark.parametrize(
    ("meanwhile", "refused"),
    [
        ("UPDATE node_guard SET open = false RETURNING 1", "take no work"),
        ("UPDATE allocation SET claimed_by = job_id WHERE state = 'active' RETURNING 1", "cannot be claimed"),
        ("UPDATE task SET state = 'cancelled' WHERE state = 'pending' RETURNING 1", "no longer wait"),
        ("UPDATE move_order SET state = 'refused', settled_at = now() RETURNING 1", "settled"),
    ],
)
async def test_moves_when_something_has_changed_since_they_were_decided_then_none_is_stopped_and_nothing_is_kept(
    world: World, meanwhile: str, refused: str
) -> None:
    leader, _, head, _, told, _ = await see_moves(world)
    made = await order(world, told)
    assert leader.shard is not None
    assert leader.lease is not None
    async with world.database.begin(SYSTEM) as unit:
        await refresh_shard(unit, leader.lease, leader.shard)
        asked = await read_question(unit, head.job_id, MoveRules())
    now = await world.database.now()
    found = plan_on(leader.shard, asked, microseconds_of(now))
    await world.value(meanwhile)
    reclaim = reclaim_of([task.id for task in asked.unit], found)
    with pytest.raises(GuardFailed, match=refused):
        async with world.database.begin(SYSTEM) as unit:
            await commit_moves(unit, leader.lease, leader.shard, reclaim, found, made, now)
    assert await world.value("SELECT count(*) FROM move") == 0
    assert await world.value("SELECT count(*) FROM allocation WHERE stop_requested_at IS NOT NULL") == 0


async def test_move_when_its_place_is_gone_then_the_task_starts_elsewhere_and_the_order_says_so(world: World) -> None:
    leader, _, head, running, told, emptied = await see_moves(world)
    spare = (await world.add_node(devices=1, cpu=100)).node_id  # too few cores until later
    await order(world, told)
    await leader.step()
    first, second = told.moves
    await world.change_node(spare, cpu_milli=8000)
    await world.change_node(first.to_node_id, schedulable=False, cordon_reasons=(CordonReason.OPERATOR,))
    await leave(world, emptied, running[emptied])
    for _ in range(2):
        await leader.step()
    (after,) = await orders(world, head.job_id)
    results = {move.to_node_id: move.result for move in after.moves}
    assert (after.state, results) == ("done", {first.to_node_id: "elsewhere", second.to_node_id: "moved"})
    assert [task.attempt for task in (await world.poll(spare)).assignments] == [2]
    assert await world.value("SELECT count(*) FROM allocation WHERE job_id = $1", head.job_id) == 1
