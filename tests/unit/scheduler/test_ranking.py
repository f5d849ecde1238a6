"""Best fit and its ties."""

import random
from dataclasses import replace

import pytest

from millpond_contracts.ids import DeviceId, NodeId
from tests.unit.scheduler.world import World, node, request

pytestmark = pytest.mark.unit


def placed_on(world: World) -> list[str]:
    nodes = {record.id: record.name for _, record in world.snapshot.list_nodes()}
    return [nodes[placement.holding.node] for placement in world.run().placements]


def test_rank_when_a_slice_fits_a_partial_device_then_takes_the_tightest() -> None:
    world = World.of(node(1, gpus=2), node(2, gpus=2))
    world.submit(request(count=1, milli=400))
    world.submit(request(count=1, milli=700))
    assert placed_on(world) == ["n1", "n1"]
    world.submit(request(count=1, milli=300))
    (placement,) = world.run().placements
    assert placement.holding.devices[0].device == DeviceId(int=1001)  # beside 700, not beside 400


def test_rank_when_whole_devices_are_asked_then_fills_the_emptiest_node_last() -> None:
    world = World.of(node(1, gpus=8), node(2, gpus=8))
    world.submit(request(count=1), 9)
    assert placed_on(world) == ["n1"] * 8 + ["n2"]


def test_rank_when_a_task_needs_no_device_then_leaves_nodes_with_devices_alone() -> None:
    world = World.of(node(1, gpus=8, cpu=2_000), node(2, cpu=64_000))
    world.submit(request())
    assert placed_on(world) == ["n2"]


def test_rank_when_only_cpu_differs_then_takes_the_tightest_node() -> None:
    world = World.of(node(1, cpu=64_000), node(2, cpu=8_000))
    world.submit(request(cpu=4_000))
    assert placed_on(world) == ["n2"]


def test_rank_when_nodes_are_equal_then_the_oldest_id_wins_whatever_the_order_of_rows() -> None:
    numbers = list(range(1, 30))
    random.Random(3).shuffle(numbers)
    world = World.of(*(node(number, gpus=1) for number in numbers))
    world.submit(request(count=1), 5)
    assert placed_on(world) == ["n1", "n2", "n3", "n4", "n5"]


def test_rank_when_ids_differ_only_in_low_bits_then_still_the_lowest_wins() -> None:
    high = replace(node(1, gpus=1), id=NodeId(int=(5 << 65) + 9), name="high")
    low = replace(node(2, gpus=1), id=NodeId(int=(5 << 65) + 4), name="low")
    world = World.of(high, low)
    world.submit(request(count=1))
    assert placed_on(world) == ["low"]
