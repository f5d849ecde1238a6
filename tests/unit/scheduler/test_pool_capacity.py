"""The capacity formula: it adds up, and fragments are what the reference task cannot use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_contracts.bodies.nodes import CordonReason
from millpond_contracts.capacity import (
    DeviceRoom,
    FlavorTally,
    HostRoom,
    sum_tallies,
    tally_node,
    tell_capacity,
    tell_host_capacity,
)
from millpond_contracts.partitions import find_geometry
from millpond_scheduler.domain.admission import CPU, MEMORY, device
from millpond_scheduler.domain.capacity import sum_free
from tests.unit.scheduler.world import POOL, World, node, request

pytestmark = pytest.mark.unit

ROOMS = st.lists(
    st.builds(
        DeviceRoom,
        flavor=st.sampled_from(["a100", "t4"]),
        free_milli=st.integers(-200, 1000),
        schedulable=st.booleans(),
        geometry=st.sampled_from([None, find_geometry("A30"), find_geometry("A100 SXM4 80GB")]),
        taken=st.integers(0, 15),
    ),
    max_size=8,
)


@given(nodes=st.lists(ROOMS, max_size=6), reserved=st.integers(0, 20_000), reference=st.integers(1, 8_000))
def test_capacity_when_anything_is_counted_then_adds_up_and_is_never_negative(
    nodes: list[list[DeviceRoom]], reserved: int, reference: int
) -> None:
    for flavor, tally in sum_tallies(tally_node(rooms, reference) for rooms in nodes).items():
        told = tell_capacity(flavor, tally, reserved)
        parts = (told.unschedulable, told.allocated, told.reserved, told.fragmented, told.available)
        assert sum(parts) == told.total == 1000 * sum(room.flavor == flavor for rooms in nodes for room in rooms)
        assert min(parts) >= 0


@given(rooms=ROOMS, other=ROOMS)
def test_tallies_when_a_node_is_added_and_taken_away_then_are_as_before(
    rooms: list[DeviceRoom], other: list[DeviceRoom]
) -> None:
    mine, theirs = (tally_node(one).get("a100", FlavorTally()) for one in (rooms, other))
    assert mine + theirs - theirs == mine


def test_capacity_when_devices_are_in_every_condition_then_each_milli_has_one_place() -> None:
    first = [DeviceRoom("a100", free, True) for free in (1000, 1000, 1000, 400)]
    second = [DeviceRoom("a100", 1000, True), DeviceRoom("a100", 600, False)]
    told = tell_capacity("a100", sum_tallies([tally_node(first), tally_node(second)])["a100"], reserved_milli=1000)
    assert told.model_dump() == {
        "flavor": "a100",
        "total": 6000,
        "unschedulable": 600,
        "allocated": 1000,
        "reserved": 1000,
        "fragmented": 400,
        "available": 3000,
        "fits": {"250": 17, "500": 8, "1000": 4, "2x1000": 1, "4x1000": 0, "8x1000": 0},
        "fragmented_by_size": {
            "250": 150,  # of the 400
            "500": 400,
            "1000": 400,
            "2x1000": 2400,
            "4x1000": 4400,
            "8x1000": 4400,
        },
        "partitions": {},
    }


def test_capacity_when_devices_are_divided_then_each_is_counted_in_one_mode_case_26() -> None:
    """Never eight whole devices and fifty-six slices of the same eight; and never a profile of the former mode."""
    geometry = find_geometry("A100 SXM4 80GB")
    whole = [DeviceRoom("a100", 1000, True) for _ in range(8)]
    divided = [DeviceRoom("a100", 1000, True, geometry) for _ in range(8)]
    before, after = (tell_capacity("a100", tally_node(rooms)["a100"]) for rooms in (whole, divided))
    assert (before.fits["1000"], before.partitions) == (8, {})
    assert set(after.fits.values()) == {0}
    assert after.partitions == {
        "1g.10gb": 56,
        "1g.20gb": 32,
        "2g.20gb": 24,
        "3g.40gb": 16,
        "4g.40gb": 8,
        "7g.80gb": 8,
    }
    assert before.total == after.total == before.available == after.available == 8000
    # Seven small ones leave a slice where nothing may begin any more.
    full = tell_capacity("a100", tally_node([DeviceRoom("a100", 125, True, geometry, 0b01111111)])["a100"])
    assert (full.available, full.fragmented, full.partitions) == (0, 125, {})


@pytest.mark.parametrize(("reference", "available"), [(1000, 3000), (2000, 2000), (4000, 0), (300, 3000), (400, 2800)])
def test_fragmented_when_the_reference_task_differs_then_is_what_it_cannot_use(reference: int, available: int) -> None:
    rooms = [DeviceRoom("a100", free, True) for free in (1000, 1000, 1000, 350)]
    told = tell_capacity("a100", tally_node(rooms, reference)["a100"])
    if reference == 300:  # three times three tasks of 300 on whole devices, and one more
        assert told.available == 3 * 900 + 300
    elif reference == 400:  # two on each whole device
        assert told.available == 3 * 800
    else:
        assert told.available == available
    assert told.fragmented == 3350 - told.available


def test_reserved_when_it_exceeds_what_is_free_then_only_what_is_free_is_kept() -> None:
    told = tell_capacity("a100", tally_node([DeviceRoom("a100", 500, True)])["a100"], reserved_milli=5000)
    assert (told.reserved, told.fragmented, told.available) == (500, 0, 0)


def test_host_capacity_when_a_node_is_shut_then_its_free_part_is_unschedulable() -> None:
    told = tell_host_capacity("cpu", [HostRoom(8_000, 3_000, True), HostRoom(4_000, 1_000, False)], reserved=500)
    assert (told.total, told.unschedulable, told.allocated, told.reserved, told.available) == (
        12_000,
        1_000,
        8_000,
        500,
        2_500,
    )


def test_free_sums_when_tasks_run_and_a_node_is_cordoned_then_follow_the_snapshot() -> None:
    shut = node(2, gpus=2, cordons=frozenset({CordonReason.HEALTH}))
    world = World.of(node(1, gpus=4), shut, node(3, gpus=1, flavor="t4"))
    world.submit(request(cpu=2_000, memory=1_000, count=1, milli=700, flavors=["a100"]))
    world.run()
    assert sum_free(world.snapshot, POOL) == {
        CPU: 126_000,
        MEMORY: 2 * 262_144 - 1_000,
        device("a100"): 3_300,
        device("t4"): 1_000,
    }
