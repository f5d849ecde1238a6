"""Hardware partitions: legal starts, the place that spoils least, one mode at a time, words for what is lacking."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_contracts.bodies.pools import DeviceSharing
from millpond_contracts.bodies.tenants import Limit
from millpond_contracts.ids import DeviceId, TaskId
from millpond_contracts.partitions import Geometry, PartitionProfile, find_geometry, list_geometries, mask_of
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.explain import explain
from millpond_scheduler.domain.mixes import find_class
from millpond_scheduler.domain.nodes import PoolRules
from millpond_scheduler.domain.partitions import NO_START, table_of
from millpond_scheduler.domain.plans import DevicePick, Holding
from millpond_scheduler.domain.verdicts import Reason
from tests.unit.scheduler.world import (
    RIVAL,
    TENANT,
    World,
    check_invariants,
    node,
    placed_tasks,
    request,
    virtual_pool,
)

pytestmark = pytest.mark.unit

A100 = "A100 SXM4 80GB"
GEOMETRIES = st.sampled_from(list_geometries())


def divided(number: int = 1, gpus: int = 1, model: str = A100, **given_: Any) -> Any:
    return node(number, gpus, divided=model, **given_)


def run(world: World, *profiles: str) -> list[TaskId]:
    """Submit and place partitions one after the other."""
    made = []
    for profile in profiles:
        made += world.submit(request(profile=profile))
        world.run()
    return made


def slots(world: World, tasks: list[TaskId]) -> list[int]:
    """The first slice of each task's partition, or NO_START."""
    held = [world.snapshot.find_holding(task) for task in tasks]
    return [
        NO_START if one is None else (one.devices[0].slots & -one.devices[0].slots).bit_length() - 1 for one in held
    ]


@pytest.mark.parametrize(
    ("profiles", "starts"),
    [
        (("1g.10gb",) * 8, [6, 4, 5, 0, 1, 2, 3, NO_START]),  # seven, though there are eight slices
        (("2g.20gb",) * 4, [4, 0, 2, NO_START]),
        (("1g.20gb",) * 5, [6, 4, 0, 2, NO_START]),
        (("3g.40gb", "4g.40gb"), [4, 0]),  # the other way round the same
        (("4g.40gb", "3g.40gb", "1g.10gb"), [0, 4, NO_START]),
        (("4g.40gb", "4g.40gb"), [0, NO_START]),  # only one start, though four slices are free
        (("1g.10gb", "7g.80gb"), [6, NO_START]),
        (("2g.20gb", "3g.40gb", "1g.10gb", "1g.10gb"), [4, 0, 6, NO_START]),
    ],
)
def test_partitions_when_placed_one_after_the_other_then_where_least_is_lost(
    profiles: tuple[str, ...], starts: list[int]
) -> None:
    world = World.of(divided())
    assert slots(world, run(world, *profiles)) == starts
    check_invariants(world)


def test_partition_when_several_devices_could_take_it_then_the_one_already_broken() -> None:
    world = World.of(divided(1), divided(2, gpus=2))
    first, second, third = run(world, "1g.10gb", "1g.10gb", "7g.80gb")
    one, two, whole = (world.snapshot.find_holding(task) for task in (first, second, third))
    assert one is not None
    assert two is not None
    assert whole is not None
    assert one.devices[0].device == two.devices[0].device != whole.devices[0].device


@given(GEOMETRIES, st.data())
def test_partition_when_a_device_is_filled_by_one_profile_then_as_many_as_its_count_says(
    geometry: Geometry, data: st.DataObject
) -> None:
    profile = data.draw(st.sampled_from(geometry.profiles))
    table, taken, made = table_of(geometry, profile), 0, 0
    while (start := int(table.starts[taken])) != NO_START:
        assert start in profile.starts
        assert not taken & profile.mask(start)
        taken |= profile.mask(start)
        made += 1
    assert made == table.counts[0]


@given(GEOMETRIES, st.data())
def test_partition_when_it_is_placed_then_no_other_start_keeps_more(geometry: Geometry, data: st.DataObject) -> None:
    profile = data.draw(st.sampled_from(geometry.profiles))
    taken = data.draw(st.integers(0, (1 << geometry.slices) - 1))

    def worth(mask: int) -> int:
        return sum(
            each.slices for each in geometry.profiles for start in each.starts if not mask_of(start, each.slices) & mask
        )

    free = [start for start in profile.starts if not profile.mask(start) & taken]
    best = min(free, key=lambda start: (worth(taken) - worth(taken | profile.mask(start)), start), default=NO_START)
    table = table_of(geometry, profile)
    assert table.starts[taken] == best
    if free:
        assert table.lost[taken] == worth(taken) - worth(taken | profile.mask(best))
    assert (table.counts[taken] > 0) == bool(free)


def test_mode_when_a_device_is_divided_then_never_whole_nor_in_shares_and_the_other_way_round() -> None:
    world = World.of(divided(1), node(2, gpus=1))
    whole, share, partition = (
        world.submit(wanted)[0]
        for wanted in (request(count=1), request(count=1, milli=250), request(profile="7g.80gb"))
    )
    plan = world.run()
    assert set(placed_tasks(plan)) == {whole, partition}
    assert plan.rejections[share].counts == {Reason.WRONG_DEVICE_MODE: 1, Reason.NOT_ENOUGH_DEVICES: 1}
    check_invariants(world)


def test_mode_when_work_of_another_mode_is_still_there_then_nothing_of_the_device_until_it_ends() -> None:
    """The agent's report of a mode wins, and what is still booked on the device keeps everybody else away."""
    for held, wanted in (
        ({"profile": "1g.10gb"}, {"count": 1, "milli": 100}),
        ({"count": 1, "milli": 100}, {"profile": "1g.10gb"}),
    ):
        before, after = (divided(1), node(1, gpus=1)) if "profile" in held else (node(1, gpus=1), divided(1))
        world = World.of(before)
        (first,) = world.submit(request(**held))
        world.run()
        world.snapshot.upsert_node(after)
        (second,) = world.submit(request(**wanted))
        assert world.run().rejections[second].counts in (
            {Reason.LARGEST_FREE_BLOCK_TOO_SMALL: 1},
            {Reason.NO_LEGAL_START: 1},
        )
        world.snapshot.release_allocation(first)
        assert placed_tasks(world.run()) == [second]


def test_partition_when_its_model_counts_it_otherwise_then_by_the_slices_of_the_device() -> None:
    small = divided(1, model="A100 SXM4 40GB", device_memory=40_960, cpu=1_000)
    world = World.of(small, divided(2, cpu=1_000), divided(3, model="A30", device_memory=24_576))
    tasks = [*world.submit(request(profile="1g.10gb"), 2), *world.submit(request(profile="2g.12gb"))]
    world.run()
    picks = [holding.devices[0] for task in tasks if (holding := world.snapshot.find_holding(task)) is not None]
    assert sorted((pick.milli, pick.memory_mib) for pick in picks) == [(125, 10_240), (250, 10_240), (500, 12_288)]


def test_partition_when_the_device_has_another_tenants_then_the_pools_rule_on_sharing_decides() -> None:
    world = World.of(divided())
    run(world, "1g.10gb")
    (task,) = world.submit(request(profile="1g.10gb", tenant=RIVAL))
    assert world.run().rejections[task].reason is Reason.DEVICE_SHARED_WITH_OTHER_TENANT


def test_explain_when_no_legal_start_is_free_then_says_so_with_the_largest_that_is() -> None:
    world = World.of(divided(1), node(3, gpus=1))
    run(world, "7g.80gb")
    world.snapshot.upsert_node(divided(2))
    run(world, "2g.20gb", "2g.20gb")  # at 4 and 0: four slices are free, and no four next to one another
    (task,) = world.submit(request(profile="3g.40gb"))
    rejection = world.run().rejections[task]
    assert rejection.counts == {Reason.NO_LEGAL_START: 1, Reason.NOT_ENOUGH_DEVICES: 1, Reason.WRONG_DEVICE_MODE: 1}
    told = explain(world.snapshot, world.submitted[task], world.pools, rejection=rejection)
    assert (told.largest_free_profile, told.largest_free_devices) == ("2g.20gb", None)
    assert told.dominant in rejection.counts
    assert any("where a 3g.40gb may begin" in each.action for each in told.would_unblock)


def test_reclaim_when_lent_partitions_leave_no_legal_start_then_the_fewest_that_make_one_stop() -> None:
    pools = [
        virtual_pool(1, TENANT, devices={"a100": Limit(borrow=1_000)}),
        virtual_pool(2, RIVAL, devices={"a100": Limit(guaranteed=1_000, lend=1_000)}),
    ]
    world = World.of(divided(), pools=pools, rules=PoolRules(DeviceSharing.ANY))
    upper, lower = run(world, "2g.20gb", "2g.20gb")  # at 4 and 0: half of the device is free, and no half has a start
    (claimant,) = world.submit(request(profile="3g.40gb", tenant=RIVAL))
    (reclaim,) = world.run().reclaims
    assert reclaim.claimant == claimant
    assert len(reclaim.victims) == 1
    assert set(reclaim.victims) < {upper, lower}
    world.snapshot.release_allocation(reclaim.victims[0])
    assert placed_tasks(world.run()) == [claimant]
    check_invariants(world)


def test_gang_when_it_asks_for_partitions_then_all_of_them_or_none() -> None:
    world = World.of(divided(1), divided(2))
    world.submit_gang(request(profile="3g.40gb"), 5)
    assert world.run().placements == ()
    world.queue.clear()
    world.submit_gang(request(profile="3g.40gb"), 4)
    assert len(world.run().placements) == 4
    check_invariants(world)


def test_mix_when_partitions_come_then_they_are_no_class_of_it() -> None:
    assert find_class(World.of(divided()).snapshot, request(profile="1g.10gb")) is None


def test_candidates_when_devices_of_a_flavor_differ_then_limits_expect_the_most() -> None:
    world = World.of(divided(1), divided(2, model="A100 SXM4 40GB", device_memory=40_960))
    candidates = Candidates(world.snapshot, request(profile="1g.10gb"))
    assert {flavor: candidates.milli_of(flavor) for flavor in candidates.flavors} == {"a100": 250}


def test_holding_when_it_is_taken_and_undone_then_the_mask_is_what_it_was() -> None:
    world = World.of(divided())
    run(world, "2g.20gb")
    before = int(world.snapshot.columns.device_slots[0, 0])
    mark = world.snapshot.mark()
    pick = DevicePick(DeviceId(int=1000), 125, 10_240, "1g.10gb", 1)
    world.snapshot.place(Holding(TaskId(int=99), node(1).id, TENANT, 0, 0, (pick,)))
    assert world.snapshot.columns.device_slots[0, 0] == before | 1
    world.snapshot.undo_to(mark)
    assert world.snapshot.columns.device_slots[0, 0] == before


def test_geometry_when_profiles_are_listed_then_each_fits_its_device_and_counts_exactly() -> None:
    for geometry in list_geometries():
        assert geometry.slice_milli * geometry.slices == 1000
        for profile in geometry.profiles:
            assert all(start + profile.slices <= geometry.slices for start in profile.starts)
    assert find_geometry("Tesla T4") is None
    assert PartitionProfile("x", 1, 2, (4,)).mask(4) == 0b110000
