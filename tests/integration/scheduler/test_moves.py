"""Plans of moves through the real rows: whom they serve, who may be moved, and that nothing is changed."""

import pytest

from millpond_contracts.bodies.jobs import DeviceRequest, RetryReason, RetrySpec
from millpond_contracts.bodies.moves import MovePlanView
from millpond_contracts.ids import JobId
from millpond_kernel.db import SYSTEM
from millpond_kernel.problem import ProblemError
from millpond_scheduler.usecases.mirror import Mirror, refresh_mirror
from millpond_scheduler.usecases.moves import find_moves, read_question
from tests.integration.scheduler.world import ONE_DEVICE, World

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
        return find_moves(mirror, await read_question(unit, job, max_moves))


async def test_moves_when_free_devices_are_scattered_then_says_which_job_moves_where_and_what_it_costs_f1(
    world: World,
) -> None:
    """Three nodes of four devices with 3, 2 and 3 in use, and a job that needs four on one."""
    nodes = [(await world.add_node(devices=4)).node_id for _ in range(3)]
    share = await world.add_virtual_pool()
    await world.submit(share, count=12, devices=ONE_DEVICE, retry=AGAIN, name="many")
    leader = world.leader()
    await leader.step()
    for node, stays in zip(nodes, (3, 2, 3), strict=True):
        tasks = (await world.poll(node)).assignments
        for place, task in enumerate(tasks):
            await world.run_task(node, task)
            if place >= stays:
                await world.end_task(node, task)
    head = await world.submit(share, devices=DeviceRequest(count=4))
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
