"""What many nodes report, and the orders they wait for, in one transaction: each is answered as if it came alone."""

import pytest

from millpond_contracts.bodies.work import Assignment, HeldAllocation, ReportBatch, ReportKind
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import NodeId
from millpond_kernel.db import SYSTEM
from millpond_kernel.problem import ProblemError
from millpond_scheduler.usecases.reports import take_reports
from millpond_scheduler.usecases.work import NodeCall, OrdersAsked, read_orders
from tests.integration.scheduler.world import ONE_DEVICE, World

pytestmark = pytest.mark.integration


async def place_on_each(world: World, count: int) -> list[tuple[NodeId, Assignment]]:
    """Nodes of one device each, with a task that each was told of."""
    nodes = [(await world.add_node(devices=1)).node_id for _ in range(count)]
    share = await world.add_virtual_pool()
    for _ in nodes:
        await world.submit(share, devices=ONE_DEVICE)
    await world.leader().step()
    return [(node, (await world.poll(node)).assignments[0]) for node in nodes]


def told(
    world: World, node: NodeId, task: Assignment, *kinds: ReportKind, incarnation: int = 1
) -> tuple[NodeCall, ReportBatch]:
    reports = [world.make_report(task, kind, exit_code=0) for kind in kinds]
    batch = ReportBatch(boot_id="boot-1", sent_monotonic_ms=world.clock_ms, reports=reports)
    return NodeCall(node, world.pool.pool_id, incarnation), batch


async def test_reports_when_many_nodes_tell_at_once_then_each_has_its_own_answer_and_all_is_written(
    world: World,
) -> None:
    (first, ended), (second, running), (third, untold), (_, foreign) = await place_on_each(world, 4)
    await world.poll(third, incarnation=2)
    async with world.database.begin(SYSTEM) as unit:
        answers = await take_reports(
            unit,
            [
                told(world, first, ended, ReportKind.STARTING, ReportKind.ACTIVE),
                told(world, second, running, ReportKind.ACTIVE),
                told(world, third, untold, ReportKind.ACTIVE),
                told(world, second, foreign, ReportKind.ACTIVE),
                told(world, first, ended, ReportKind.RELEASED),
            ],
        )
    over = answers.pop(2)
    assert isinstance(over, ProblemError)
    assert over.code is ErrorCode.NODE_SUPERSEDED
    accepted = [None if isinstance(one, ProblemError) else (one.accepted, len(one.rejected)) for one in answers]
    assert accepted == [(2, 0), (1, 0), (0, 1), (1, 0)]
    rows = await world.fetch("SELECT id, state FROM allocation")
    assert {row["id"]: row["state"] for row in rows} == {
        ended.allocation_id: "released",
        running.allocation_id: "active",
        untold.allocation_id: "bound",
        foreign.allocation_id: "bound",
    }
    changed = {event["job"]["job_id"]: event["job"]["state"] for event in await world.events("job_state_changed")}
    assert changed == {str(ended.job_id): "succeeded", str(running.job_id): "running"}
    await world.assert_counters_are_true()


async def test_orders_when_many_nodes_wait_for_them_then_each_gets_its_own_once(world: World) -> None:
    (first, one), (second, other) = await place_on_each(world, 2)
    await world.value("UPDATE allocation SET order_sent_at = NULL RETURNING 1")
    idle = (await world.add_node()).node_id
    stranger = [HeldAllocation(allocation_id=other.allocation_id, epoch=other.epoch)]
    asked = [
        OrdersAsked(first, (), 300.0, fresh_only=True),
        OrdersAsked(second, (), 200.0, fresh_only=True),
        OrdersAsked(idle, (), 300.0, fresh_only=True),
    ]
    async with world.database.begin(SYSTEM) as unit:
        answers = await read_orders(unit, asked)
    found = [
        None if each is None else (each.lease_seconds, [task.allocation_id for task in each.assignments])
        for each in answers
    ]
    assert found == [(300.0, [one.allocation_id]), (200.0, [other.allocation_id]), None]
    async with world.database.begin(SYSTEM) as unit:
        again = await read_orders(unit, [*asked, OrdersAsked(idle, stranger, 300.0, fresh_only=True)])
    assert again[:3] == [None, None, None]
    assert again[3] is not None
    assert [stop.allocation_id for stop in again[3].stops] == [other.allocation_id]
