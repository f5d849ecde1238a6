"""What a placement spoils: the table against the definition, class by class, and what the policy makes of it."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond_contracts.bodies.pools import DeviceSharing
from millpond_contracts.ids import DeviceId, TaskId
from millpond_contracts.resources import DeviceKind
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.fragmentation import DemandClass, DemandMix, Packing, PackingTable, Price
from millpond_scheduler.domain.mixes import find_class, find_mixes
from millpond_scheduler.domain.nodes import DeviceProfile, DeviceRecord, NodeRecord
from millpond_scheduler.domain.plans import DevicePick, Holding
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.views import RowView
from tests.unit.scheduler.test_ranking import placed_on
from tests.unit.scheduler.world import POOL, RIVAL, World, node, request

pytestmark = pytest.mark.unit

FLAVORS = ("a100", "t4")
SHARES = (100, 250, 500, 810, 1000)


def usable_by_definition(mix: DemandMix, snapshot: Snapshot, row: int) -> int:
    """Class by class, as the paper defines it; devices of one task are of one flavor here."""
    columns, record = snapshot.columns, snapshot.record_at(row)
    total = 0
    for wanted, weight in mix.classes:
        if columns.cpu_free[row] < wanted.cpu_milli:
            continue
        room: Counter[str] = Counter()
        count: Counter[str] = Counter()
        for slot, device in enumerate(record.devices):
            free, flavor = int(columns.device_milli_free[row, slot]), device.profile.flavor
            if flavor in wanted.flavors and device.usable and free >= wanted.milli:
                room[flavor] += free
                count[flavor] += 1
        if wanted.count == 1:
            total += weight * sum(room.values())
        else:
            total += weight * sum(room[flavor] for flavor in room if count[flavor] >= wanted.count)
    return total


@st.composite
def mixes(draw: st.DrawFn) -> DemandMix:
    counts: Counter[DemandClass] = Counter()
    for _ in range(draw(st.integers(1, 6))):
        count = draw(st.sampled_from((1, 1, 2, 4)))
        milli = draw(st.sampled_from(SHARES)) if count == 1 else 1000
        flavors = draw(st.sampled_from((FLAVORS, FLAVORS[:1], FLAVORS[1:])))
        counts[DemandClass(draw(st.sampled_from((0, 1000, 4000, 9000))), count, milli, flavors)] += draw(
            st.integers(1, 50)
        )
    return DemandMix.of(counts)


@st.composite
def nodes(draw: st.DrawFn, number: int) -> NodeRecord:
    flavors = draw(st.lists(st.sampled_from(FLAVORS), max_size=5))
    devices = tuple(
        DeviceRecord(
            DeviceId(int=number * 1000 + slot),
            DeviceProfile(DeviceKind.GPU, flavor, 10_000),
            usable=draw(st.integers(0, 9)) > 0,
        )
        for slot, flavor in enumerate(flavors)
    )
    return replace(node(number, cpu=draw(st.sampled_from((2_000, 8_000, 16_000)))), devices=devices)


@st.composite
def clusters(draw: st.DrawFn) -> Snapshot:
    snapshot = Snapshot()
    for number in range(1, draw(st.integers(1, 4)) + 1):
        record = draw(nodes(number))
        snapshot.upsert_node(record)
        cpu = draw(st.sampled_from((0, 1000, 5000)))
        picks = tuple(
            DevicePick(device.id, milli, milli)
            for device in record.devices
            if (milli := draw(st.sampled_from((0, 0, 190, 500, 750, 1000))))
        )
        snapshot.apply_allocation(Holding(TaskId(int=number), record.id, RIVAL, min(cpu, record.cpu_milli), 0, picks))
    return snapshot


requests = st.builds(
    request,
    st.sampled_from((0, 1000, 3000, 8000)),
    count=st.sampled_from((0, 1, 2)),
    milli=st.just(1000),
    flavors=st.sampled_from(((), ("a100",))),
) | st.builds(
    request, st.sampled_from((0, 1000)), count=st.just(1), milli=st.sampled_from((100, 300, 810)), flavors=st.just(())
)


@given(clusters(), mixes(), requests)
@settings(max_examples=40, deadline=None)
def test_spoil_when_a_task_is_placed_then_is_what_the_classes_can_use_less(
    snapshot: Snapshot, mix: DemandMix, wanted: RequestClass
) -> None:
    snapshot.set_rules(POOL, replace(snapshot.rules_of(POOL), device_sharing=DeviceSharing.ANY))
    snapshot.set_packing(POOL, Packing(mix))
    candidates = Candidates(snapshot, wanted)
    for row in np.flatnonzero(candidates.codes == 0).tolist():
        before = usable_by_definition(mix, snapshot, row)
        spoil = RowView(snapshot, candidates.fits, np.array([row])).spoil()
        mark, record = snapshot.mark(), snapshot.record_at(row)
        snapshot.place(
            Holding(TaskId(int=99), record.id, wanted.tenant, wanted.cpu_milli, 0, candidates.pick_devices(row))
        )
        spoiled = before - usable_by_definition(mix, snapshot, row)
        snapshot.undo_to(mark)
        assert int(spoil.weighted[0]) == spoiled
        if spoil.slot[0] >= 0:  # and no other device would have been better
            for slot in np.flatnonzero(RowView(snapshot, candidates.fits, np.array([row])).admissible[0]).tolist():
                pick = DevicePick(record.devices[slot].id, int(spoil.milli[0]), 0)
                snapshot.place(Holding(TaskId(int=99), record.id, wanted.tenant, wanted.cpu_milli, 0, (pick,)))
                assert before - usable_by_definition(mix, snapshot, row) >= spoiled
                snapshot.undo_to(mark)


def usual(*classes: tuple[int, int, int, int]) -> Packing:
    """A packing of classes of (cpu, count, milli, weight) on any flavor, with quanta of one milli."""
    return Packing(DemandMix.of({DemandClass(*each[:3], FLAVORS): each[3] for each in classes}), quantum_milli=1)


def test_rank_when_a_sliver_would_be_left_then_the_slice_goes_where_the_rest_is_of_use() -> None:
    world = World.of(node(1, gpus=1), node(2, gpus=1))
    world.submit(request(count=1, milli=400))
    world.submit(request(count=1, milli=250))
    world.run()  # by best fit, nothing is known yet: both lie on the first node
    world.submit(request(count=1, milli=700))
    world.run()
    assert world.snapshot.columns.device_milli_free[:2, 0].tolist() == [350, 300]
    world.snapshot.set_packing(POOL, usual((1000, 1, 150, 1), (1000, 1, 300, 1)))
    world.submit(request(count=1, milli=200))  # best fit would choose the second: 100 of it nothing could use
    assert placed_on(world) == ["n1"]


def test_rank_when_cpu_is_short_beside_idle_devices_then_cpu_is_taken_elsewhere() -> None:
    world = World.of(node(1, gpus=4, cpu=32_000), node(2, gpus=4, cpu=64_000))
    world.snapshot.set_packing(POOL, usual((8_000, 1, 1000, 10)))
    world.submit(request(cpu=8_000, count=0))
    assert placed_on(world) == ["n2"]  # the first has just enough for its devices


def test_rank_when_several_devices_are_usual_then_a_single_one_is_taken_from_a_broken_node() -> None:
    world = World.of(node(1, gpus=4), node(2, gpus=4))
    world.snapshot.set_packing(POOL, usual((0, 4, 1000, 3), (0, 1, 1000, 1)))
    world.submit(request(count=1), 5)
    assert placed_on(world) == ["n1"] * 4 + ["n2"]


def test_rank_when_a_flavor_is_wanted_by_the_usual_tasks_then_those_that_may_take_the_other_do() -> None:
    world = World.of(node(1, gpus=1, flavor="a100"), node(2, gpus=1, flavor="t4"))
    mix = DemandMix.of({DemandClass(0, 1, 1000, ("a100",)): 5, DemandClass(0, 1, 1000, FLAVORS): 5})
    world.snapshot.set_packing(POOL, Packing(mix))
    world.submit(request(count=1))
    assert placed_on(world) == ["n2"]


def test_rank_when_a_size_of_nodes_has_a_price_then_another_is_taken() -> None:
    world = World.of(node(1, gpus=1), node(2, gpus=1, cpu=96_000))
    packing = usual((1000, 1, 1000, 1))
    world.snapshot.set_packing(POOL, packing)
    world.submit(request(count=1))
    assert placed_on(world) == ["n1"]
    world.release(*world.submitted)
    size = world.snapshot.record_at(0).size
    world.snapshot.set_packing(POOL, replace(packing, prices={size: Price(core=2_000)}))
    world.submit(request(count=1))
    assert placed_on(world) == ["n2"]


def test_rank_when_two_spoil_the_same_quanta_then_the_balanced_one_is_taken() -> None:
    world = World.of(node(1, gpus=2, cpu=16_000), node(2, gpus=2, cpu=64_000))
    world.snapshot.set_packing(POOL, replace(usual((1_000, 1, 1000, 1)), quantum_milli=100_000))
    world.submit(request(cpu=32_000 // 4, count=1))
    assert placed_on(world) == ["n1"]  # half of its CPU, half of its devices
    world.submit(request(cpu=32_000, count=1))
    assert placed_on(world) == ["n2"]


def test_describe_when_a_mix_is_known_then_the_fragmentation_is_told_in_milli() -> None:
    world = World.of(node(1, gpus=1))
    world.snapshot.set_packing(POOL, usual((0, 1, 500, 1)))
    told = dict(Candidates(world.snapshot, request(count=1, milli=600)).describe_ranks(0))
    assert told == {"fragmentation": 400, "imbalance": 5}  # 1000 could be used; 600 are taken, 400 left over


def test_mix_when_more_classes_come_than_are_kept_then_the_most_frequent_stay() -> None:
    counts = {DemandClass(cpu, 1, 1000, FLAVORS): cpu + 1 for cpu in range(200)}
    mix = DemandMix.of(counts)
    assert len(mix.classes) == 128
    assert min(weight for _, weight in mix.classes) == 73
    huge = DemandMix.of({DemandClass(0, 1, 1000, FLAVORS): 10**12, DemandClass(0, 1, 500, FLAVORS): 1}, 10**12)
    assert [weight for _, weight in huge.classes] == [65_535, 1]
    assert huge.cpu_alone_milli == 65_535


def test_mix_when_shares_move_then_the_change_is_told_in_thousandths() -> None:
    one, other = DemandClass(0, 1, 1000, FLAVORS), DemandClass(0, 1, 500, FLAVORS)
    assert DemandMix.of({one: 1}).measure_change(DemandMix.of({one: 7})) == 0
    assert DemandMix.of({one: 3, other: 1}).measure_change(DemandMix.of({one: 2, other: 2})) == 250
    assert DemandMix.of({one: 1}).measure_change(DemandMix()) == 1000
    assert DemandMix().measure_change(DemandMix()) == 0
    # Tasks without devices ask for a tenth more of the CPU than before, or for the first.
    busy = DemandMix.of({DemandClass(1_000, 1, 1000, FLAVORS): 4}, cpu_alone_milli=5_000)
    assert busy.measure_change(DemandMix.of({DemandClass(1_000, 1, 1000, FLAVORS): 8}, cpu_alone_milli=12_000)) == 100
    assert DemandMix.of({one: 1}, cpu_alone_milli=1).measure_change(DemandMix.of({one: 1})) == 1000


def test_class_when_minima_exclude_a_flavor_then_it_is_not_among_those_it_can_use() -> None:
    weak = (("bf16_tflops", 65.0),)
    world = World.of(
        node(1, gpus=1), node(2, gpus=1, flavor="t4", device_memory=16_384, attributes=weak), node(3, gpus=0)
    )

    def find(wanted: RequestClass) -> DemandClass | None:
        return find_class(world.snapshot, wanted)

    assert find(request(count=2)) == DemandClass(1_000, 2, 1000, ("a100", "t4"))
    assert find(request(count=1, minima=(("bf16_tflops", 100.0),))) == DemandClass(1_000, 1, 1000, ("a100",))
    # By memory alone: the share of the smallest device that has so much.
    assert find(request(count=1, milli=None, slice_memory=4_096)) == DemandClass(1_000, 1, 250, ("a100", "t4"))
    assert find(request(count=1, milli=None, slice_memory=20_480)) == DemandClass(1_000, 1, 250, ("a100",))
    assert find(request()) is None
    assert find(request(count=1, flavors=("h100",))) is None


def test_mixes_when_tenants_ask_alike_then_they_count_together() -> None:
    world = World.of(node(1, gpus=1))
    counts = {request(count=1): 2, request(count=1, tenant=RIVAL, memory=9): 3, request(): 4}
    expected = DemandMix(((DemandClass(1_000, 1, 1000, ("a100",)), 5),), cpu_alone_milli=4_000)
    assert find_mixes(world.snapshot, counts) == {POOL: expected}


def test_table_when_a_flavor_comes_later_then_it_is_made_anew() -> None:
    world = World.of(node(1, gpus=1))
    world.snapshot.set_packing(POOL, usual((0, 1, 1000, 1)))
    cached = Candidates(world.snapshot, request(count=1))
    assert cached.find_best() == 0
    world.snapshot.upsert_node(node(2, gpus=1, flavor="t4"))
    world.snapshot.upsert_node(node(3, gpus=1, flavor="h100"))
    assert cached.scores.tolist() == Candidates(world.snapshot, request(count=1)).scores.tolist()
    table = world.snapshot.table_of(POOL)
    assert isinstance(table, PackingTable)
    assert table.known == (3, 3)
