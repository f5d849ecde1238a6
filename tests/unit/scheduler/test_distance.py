"""The weighted distance between hardware and what a task needs: compatible first, then nearest, then best fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_contracts.bodies.groups import TaskKind
from millpond_contracts.ids import DeviceId, NodeId
from millpond_contracts.resources import DeviceKind
from millpond_scheduler.domain.candidates import CandidateCache
from millpond_scheduler.domain.distance import DEFAULT_PROFILES, DistanceRules, Wish, measure_distance, wishes_of
from millpond_scheduler.domain.nodes import DeviceProfile, DeviceRecord, NodeRecord
from millpond_scheduler.domain.policy import Policy
from tests.unit.scheduler.world import PLENTY, POOL, World, node, request, virtual_pool

pytestmark = pytest.mark.unit

# Figures of the catalogue: bf16 TFLOPS, int8 TOPS, GB/s of memory and of the interconnect.
T4 = (("fp16_tflops", 65.0), ("int8_tops", 130.0), ("memory_bandwidth_gbs", 320.0))
A10 = (("bf16_tflops", 125.0), ("int8_tops", 250.0), ("memory_bandwidth_gbs", 600.0))
A100 = (("bf16_tflops", 312.0), ("int8_tops", 624.0), ("interconnect_gbs", 600.0), ("memory_bandwidth_gbs", 2039.0))
H100 = (("bf16_tflops", 989.0), ("int8_tops", 1979.0), ("interconnect_gbs", 900.0), ("memory_bandwidth_gbs", 3350.0))

MODELS = {"t4": (T4, 15_360), "a10": (A10, 23_028), "a100": (A100, 81_920), "h100": (H100, 81_559)}


def model(number: int, flavor: str, gpus: int = 8) -> NodeRecord:
    attributes, memory = MODELS[flavor]
    return node(number, gpus=gpus, flavor=flavor, attributes=attributes, device_memory=memory)


def world_of(*nodes: NodeRecord) -> World:
    return World.of(*nodes, pools=[virtual_pool(devices=dict.fromkeys(MODELS, PLENTY))])


def placed_flavors(world: World) -> list[str | None]:
    return [placement.flavor for placement in world.run().placements]


def test_rank_when_a_minimum_is_met_by_several_then_the_nearest_is_taken_although_another_fits_tighter() -> None:
    world = world_of(model(1, "h100", gpus=1), model(2, "a100", gpus=8))
    world.submit(request(count=1, minima=(("bf16_tflops", 300.0),)))
    assert placed_flavors(world) == ["a100"]


def test_rank_when_the_nearest_is_full_then_the_next_nearest_is_taken() -> None:
    world = world_of(model(1, "h100", gpus=1), model(2, "a100", gpus=1))
    world.submit(request(count=1, minima=(("bf16_tflops", 300.0),)), 2)
    assert placed_flavors(world) == ["a100", "h100"]


def test_rank_when_nothing_is_asked_of_the_hardware_then_best_fit_alone_decides() -> None:
    world = world_of(model(1, "t4", gpus=8), model(2, "h100", gpus=1))
    world.submit(request(count=1))
    assert placed_flavors(world) == ["h100"]


def test_rank_when_hardware_is_within_one_step_then_best_fit_decides() -> None:
    nearly = node(2, gpus=1, flavor="a100", attributes=(("bf16_tflops", 330.0),))
    world = world_of(node(1, gpus=8, flavor="a100", attributes=(("bf16_tflops", 312.0),)), nearly)
    world.submit(request(count=1, minima=(("bf16_tflops", 312.0),)))
    (placement,) = world.run().placements
    assert placement.holding.node == nearly.id


@pytest.mark.parametrize(
    ("kind", "nearest"), [(TaskKind.TRAINING, "a100"), (TaskKind.INFERENCE, "a10"), (TaskKind.IO, "a100")]
)
def test_rank_when_a_kind_is_said_then_what_is_typical_of_it_is_taken(kind: TaskKind, nearest: str) -> None:
    world = world_of(*(model(number, flavor) for number, flavor in enumerate(MODELS, 1)))
    world.submit(request(count=1, task_kind=kind))
    assert placed_flavors(world) == [nearest]


def test_rank_when_an_operator_sets_other_weights_then_they_decide() -> None:
    # Inference that only looks at the rate of int8, and wants much of it.
    rules = DistanceRules({**DEFAULT_PROFILES, TaskKind.INFERENCE: {"int8_tops": Wish(1, 1979)}})
    world = world_of(*(model(number, flavor) for number, flavor in enumerate(MODELS, 1)))
    world.policy = Policy(distance=rules)
    world.submit(request(count=1, task_kind=TaskKind.INFERENCE))
    assert placed_flavors(world) == ["h100"]


def test_rank_when_one_step_holds_all_then_distance_never_decides() -> None:
    world = world_of(model(1, "h100", gpus=1), model(2, "a100", gpus=8))
    world.policy = Policy(distance=DistanceRules(step_permille=1001))
    world.submit(request(count=1, minima=(("bf16_tflops", 300.0),)))
    assert placed_flavors(world) == ["h100"]


def test_rank_when_a_device_does_not_tell_what_is_wanted_then_it_is_asked_last() -> None:
    silent = node(1, gpus=1, flavor="t4", attributes=())
    world = world_of(silent, model(2, "h100"))
    world.submit(request(count=1, minima=(("bf16_tflops", 300.0),), allow_unknown=True), 9)
    assert placed_flavors(world) == ["h100"] * 8 + ["t4"]


def mixed_node(*flavors: str) -> NodeRecord:
    devices = tuple(
        DeviceRecord(DeviceId(int=slot + 1), DeviceProfile(DeviceKind.GPU, name, MODELS[name][1], MODELS[name][0]))
        for slot, name in enumerate(flavors)
    )
    return NodeRecord(NodeId(int=7 << 65), POOL, 64_000, 262_144, devices, name="mixed")


@pytest.mark.parametrize("milli", [1000, 400])
def test_pick_when_a_node_has_several_flavors_then_the_nearest_device_is_taken(milli: int) -> None:
    world = world_of(mixed_node("h100", "h100", "a100"))
    world.submit(request(count=1, milli=milli, minima=(("bf16_tflops", 300.0),)))
    (placement,) = world.run().placements
    assert (placement.flavor, placement.holding.devices[0].device) == ("a100", DeviceId(int=3))


def test_rank_when_the_near_devices_of_a_mixed_node_are_taken_then_another_node_is_nearer() -> None:
    world = world_of(mixed_node("h100", "h100", "a100"), model(1, "a100", gpus=1))
    world.submit(request(count=1, minima=(("bf16_tflops", 300.0),)), 3)
    assert sorted(str(flavor) for flavor in placed_flavors(world)) == ["a100", "a100", "h100"]


def test_pick_when_too_few_of_the_nearest_are_free_then_enough_of_the_next_are_taken() -> None:
    world = world_of(mixed_node("h100", "h100", "a100"))
    world.submit(request(count=2, minima=(("bf16_tflops", 300.0),)))
    assert placed_flavors(world) == ["h100"]


def test_wishes_when_a_slice_is_asked_then_the_device_s_memory_does_not_count() -> None:
    rules = DistanceRules()
    assert "memory_gib" in wishes_of(rules, request(count=1, task_kind=TaskKind.TRAINING))
    assert "memory_gib" not in wishes_of(rules, request(count=1, milli=250, task_kind=TaskKind.TRAINING))
    assert wishes_of(rules, request(task_kind=TaskKind.TRAINING)) == {}


def test_wishes_when_a_minimum_is_stated_then_it_replaces_what_is_typical_and_keeps_the_weight() -> None:
    wishes = wishes_of(
        DistanceRules(),
        request(count=1, slice_memory=40_960, minima=(("bf16_tflops", 150.0),), task_kind=TaskKind.TRAINING),
    )
    assert wishes["bf16_tflops"] == Wish(4, 150.0)
    assert wishes["memory_gib"] == Wish(3, 40.0)


def test_measure_when_explained_then_the_parts_make_the_whole() -> None:
    device = DeviceProfile(DeviceKind.GPU, "h100", 81_920, H100)
    found = measure_distance(DistanceRules(), {"bf16_tflops": Wish(3, 300), "int8_tops": Wish(1, 3958)}, device)
    by_name = {part.attribute: part for part in found.parts}
    assert by_name["bf16_tflops"].permille == (989 - 300) * 1000 // (989 * 4)  # a quarter of what is not needed
    assert by_name["int8_tops"].permille == 500  # half of what is wanted is missing
    assert found.permille == (3 * by_name["bf16_tflops"].permille + 500) // 4
    assert found.step == found.permille // 50


figures = st.floats(min_value=0, max_value=1e6, allow_nan=False)


@given(st.dictionaries(st.sampled_from("abcd"), st.tuples(st.integers(1, 9), figures), min_size=1), st.data())
def test_measure_when_anything_is_compared_then_from_0_to_1000_and_0_for_the_same(
    wanted: dict[str, tuple[int, float]], data: st.DataObject
) -> None:
    wishes = {name: Wish(weight, value) for name, (weight, value) in wanted.items()}
    offered = data.draw(st.dictionaries(st.sampled_from("abcd"), figures))
    device = DeviceProfile(DeviceKind.GPU, "x", None, tuple(sorted(offered.items())))
    assert 0 <= measure_distance(DistanceRules(), wishes, device).permille <= 1000
    same = DeviceProfile(DeviceKind.GPU, "x", None, tuple(sorted((name, wish.wanted) for name, wish in wishes.items())))
    assert measure_distance(DistanceRules(), wishes, same).permille == 0


def test_scores_when_shapes_come_later_then_they_are_those_of_a_fresh_look() -> None:
    world = world_of(model(1, "a100"))
    wanted = request(count=1, minima=(("bf16_tflops", 300.0),))
    cache = CandidateCache(world.snapshot)
    before = cache.get(wanted).scores.copy()
    world.snapshot.upsert_node(model(2, "h100"))
    world.snapshot.upsert_node(mixed_node("h100", "a100"))
    after = cache.get(wanted).scores
    assert after.tolist() == CandidateCache(world.snapshot).get(wanted).scores.tolist()
    assert after[0] == before[0]
