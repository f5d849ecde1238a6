"""The snapshot: nodes that come, change and go under their holdings, and undo."""

import weakref
from dataclasses import replace

import pytest

from millpond_contracts.bodies.nodes import NodeState
from millpond_contracts.ids import DeviceId, JobId, NodeId, TaskId
from millpond_scheduler.domain.neighbours import Selector
from millpond_scheduler.domain.plans import DevicePick, Holding
from millpond_scheduler.domain.requests import Kin
from millpond_scheduler.domain.snapshot import Snapshot
from tests.unit.scheduler.world import RIVAL, TENANT, World, contents, node, request

pytestmark = pytest.mark.unit


# task, node, tenant; the first two nodes are here and ready, the third is not ready, the ninth not here
HELD = ((1, 1, TENANT), (2, 1, TENANT), (3, 2, RIVAL), (4, 2, TENANT), (5, 3, RIVAL), (6, 9, TENANT), (7, 2, RIVAL))


def holding(task: int, record_number: int = 1, milli: int = 500, tenant: object = TENANT) -> Holding:
    pick = DevicePick(DeviceId(int=record_number * 1000), milli, 1_000)
    return Holding(TaskId(int=task), NodeId(int=record_number << 65), tenant, 2_000, 4_096, (pick,))  # type: ignore[arg-type]


def test_allocation_when_applied_twice_then_is_charged_once() -> None:
    snapshot = Snapshot()
    snapshot.upsert_node(node(1, gpus=1))
    snapshot.apply_allocation(holding(1))
    before = contents(snapshot)
    snapshot.apply_allocation(holding(1))
    assert contents(snapshot) == before
    snapshot.release_allocation(TaskId(int=1))
    assert snapshot.release_allocation(TaskId(int=1)) is None
    assert snapshot.columns.device_milli_free[0, 0] == 1000


def test_allocations_when_applied_together_then_as_one_by_one() -> None:
    """Also where a node is not here, a device left it, or a task held something else before."""
    one_by_one, together = Snapshot(), Snapshot()
    held = [
        *(
            replace(holding(task, record, milli=100, tenant=tenant), kin=Kin(JobId(int=task)))
            for task, record, tenant in HELD
        ),
        replace(holding(90, 2), devices=()),
        replace(holding(91, 2), devices=(DevicePick(DeviceId(int=1), 500, 1_000, "3g.40gb", 0x70),)),
    ]
    for snapshot in (one_by_one, together):
        for number in (1, 2, 3):
            snapshot.upsert_node(node(number, gpus=2, state=NodeState.READY if number < 3 else NodeState.UNREACHABLE))
        snapshot.apply_allocation(holding(4, 3))
        snapshot.neighbours.count(Selector(TENANT))
    for each in held:
        one_by_one.apply_allocation(each)
    together.apply_allocations(held)
    assert contents(together) == contents(one_by_one)
    assert (together.sums.total, together.sums.free) == (one_by_one.sums.total, one_by_one.sums.free)
    assert set(together.list_holdings()) == set(one_by_one.list_holdings())
    assert together.neighbours.count(Selector(TENANT)) == one_by_one.neighbours.count(Selector(TENANT))
    for each in held:
        together.release_allocation(each.task)
        one_by_one.release_allocation(each.task)
    assert contents(together) == contents(one_by_one)
    assert together.sums.free == one_by_one.sums.free


def test_snapshot_when_nobody_refers_to_it_then_is_gone_without_the_collector() -> None:
    """A leader that forgets a large one would else wait for the collector."""
    snapshot = Snapshot()
    snapshot.upsert_node(node(1, gpus=1))
    snapshot.apply_allocation(holding(1))
    seen = weakref.ref(snapshot)
    del snapshot
    assert seen() is None


def test_node_when_upserted_under_its_holdings_then_they_stay_charged() -> None:
    snapshot = Snapshot()
    snapshot.upsert_node(node(1, gpus=2))
    snapshot.apply_allocation(holding(1))
    snapshot.upsert_node(node(1, gpus=4, cpu=8_000, version=2))
    assert snapshot.columns.cpu_free[0] == 6_000
    assert snapshot.columns.device_milli_free[0].tolist() == [500, 1000, 1000, 1000]


def test_node_when_an_older_version_comes_late_then_it_is_ignored_case_24() -> None:
    snapshot = Snapshot()
    snapshot.upsert_node(node(1, cpu=8_000, version=5))
    assert not snapshot.upsert_node(node(1, cpu=1_000, version=4))
    assert snapshot.columns.cpu_total[0] == 8_000


def test_node_when_removed_and_added_again_then_old_holdings_are_neither_lost_nor_invented_case_25() -> None:
    snapshot = Snapshot()
    snapshot.upsert_node(node(1, gpus=1))
    snapshot.apply_allocation(holding(1))
    snapshot.remove_node(NodeId(int=1 << 65))
    assert [one.task for one in snapshot.list_holdings()] == [TaskId(int=1)]
    snapshot.upsert_node(node(2, gpus=1))  # takes the empty row
    assert snapshot.columns.device_milli_free[0, 0] == 1000
    snapshot.upsert_node(node(1, gpus=1, incarnation=2))
    row = next(row for row, record in snapshot.list_nodes() if record.id == NodeId(int=1 << 65))
    assert snapshot.columns.device_milli_free[row, 0] == 500
    snapshot.release_allocation(TaskId(int=1))
    assert snapshot.columns.device_milli_free[row, 0] == 1000


def test_device_when_it_leaves_the_node_then_its_holding_can_still_be_released() -> None:
    snapshot = Snapshot()
    snapshot.upsert_node(node(1, gpus=2))
    snapshot.apply_allocation(holding(1))
    record = node(1, gpus=2, version=2)
    snapshot.upsert_node(replace(record, devices=record.devices[1:]))
    assert snapshot.columns.device_milli_free[0, 0] == 1000
    snapshot.release_allocation(TaskId(int=1))
    assert snapshot.columns.device_milli_free[0, 0] == 1000
    assert snapshot.columns.cpu_free[0] == 64_000


def test_holder_when_tenants_come_and_go_then_is_none_one_or_several() -> None:
    snapshot = Snapshot()
    snapshot.upsert_node(node(1, gpus=1))
    snapshot.apply_allocation(holding(1))
    mine = int(snapshot.columns.device_holder[0, 0])
    snapshot.apply_allocation(holding(2, milli=100, tenant=RIVAL))
    assert snapshot.columns.device_holder[0, 0] == -2
    snapshot.release_allocation(TaskId(int=2))
    assert snapshot.columns.device_holder[0, 0] == mine >= 0
    snapshot.release_allocation(TaskId(int=1))
    assert snapshot.columns.device_holder[0, 0] == snapshot.columns.holder[0] == -1


def test_undo_when_a_batch_was_placed_then_restores_everything() -> None:
    world = World.of(node(1, gpus=4), node(2, gpus=2))
    world.submit(request(count=1, milli=300), 5)
    world.run()
    before = contents(world.snapshot)
    world.submit(request(count=2), 2)
    world.submit(request(count=1, milli=None, slice_memory=2_000), 3)
    plan = world.plan()
    assert len(plan.placements) == 5
    assert contents(world.snapshot) != before
    world.snapshot.undo_to(plan.mark)
    assert contents(world.snapshot) == before


def test_undo_when_a_placed_task_was_released_meanwhile_then_leaves_it_alone() -> None:
    world = World.of(node(1))
    (task,) = world.submit(request())
    plan = world.plan()
    world.snapshot.release_allocation(task)
    world.snapshot.undo_to(plan.mark)
    assert world.snapshot.columns.cpu_free[0] == 64_000


def test_place_when_the_task_holds_something_then_is_refused() -> None:
    snapshot = Snapshot()
    snapshot.upsert_node(node(1, gpus=1))
    snapshot.place(holding(1))
    with pytest.raises(ValueError, match="placed already"):
        snapshot.place(holding(1))
