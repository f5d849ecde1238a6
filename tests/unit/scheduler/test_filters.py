"""Each filter with a node that fails it first, and that counts are of the pool's nodes and nothing else."""

from dataclasses import replace
from typing import Any

import pytest

from millpond_contracts.bodies.nodes import CordonReason, NodeState
from millpond_contracts.bodies.pools import DeviceSharing
from millpond_contracts.ecosystem import Ecosystem, EcosystemRequirement
from millpond_contracts.ids import NodeId
from millpond_contracts.resources import Isolation, Taint
from millpond_scheduler.domain.candidates import Candidates
from millpond_scheduler.domain.nodes import PoolRules
from millpond_scheduler.domain.verdicts import Reason, decide_dominant
from tests.unit.scheduler.world import OTHER_POOL, RIVAL, TENANT, World, node, placed_tasks, request

pytestmark = pytest.mark.unit

NEEDS_PYTORCH = EcosystemRequirement(runtime=("cuda", "cann"), frameworks={"pytorch": ">=2.1"})


@pytest.mark.parametrize(
    ("given", "wanted", "reason"),
    [
        ({}, {}, None),
        ({"state": NodeState.UNREACHABLE}, {}, Reason.NOT_SCHEDULABLE),
        ({"state": NodeState.JOINED}, {}, Reason.NOT_SCHEDULABLE),  # case 22: born unschedulable
        ({"cordons": frozenset({CordonReason.DRAIN})}, {}, Reason.CORDONED),
        ({}, {"labels": (("rack", "r1"),)}, Reason.LABEL_MISMATCH),
        ({"labels": {"rack": "r1", "row": "2"}}, {"labels": (("rack", "r1"),)}, None),
        ({"taints": (Taint(key="simulated"),)}, {}, Reason.TAINT),
        ({"taints": (Taint(key="simulated"),)}, {"tolerations": frozenset({"simulated"})}, Reason.TAINT),
        ({"taints": (Taint(key="simulated"),)}, {"simulated": True}, None),
        ({"taints": (Taint(key="simulated"), Taint(key="use"))}, {"simulated": True}, Reason.TAINT),
        ({}, {"simulated": True}, Reason.NOT_SIMULATED),
        ({"taints": (Taint(key="use"),)}, {"simulated": True}, Reason.NOT_SIMULATED),
        ({"taints": (Taint(key="use", value="ml"),)}, {"tolerations": frozenset({"use=io"})}, Reason.TAINT),
        ({"taints": (Taint(key="use", value="ml"),)}, {"tolerations": frozenset({"use=ml"})}, None),
        ({"architecture": "aarch64"}, {"architectures": frozenset({"x86_64"})}, Reason.WRONG_ARCHITECTURE),
        ({"architecture": None}, {"architectures": frozenset({"x86_64"})}, Reason.WRONG_ARCHITECTURE),
        ({"architecture": None}, {"architectures": frozenset({"x86_64"}), "allow_unknown": True}, None),
        ({}, {"needs_image": True}, Reason.NO_CONTAINER_RUNTIME),
        ({"runtimes": frozenset({"process", "docker"})}, {"needs_image": True}, None),
        ({}, {"count": 1}, Reason.NO_MATCHING_DEVICE),
        ({"gpus": 1}, {"count": 1, "flavors": ["t4"]}, Reason.NO_MATCHING_DEVICE),
        ({"gpus": 1}, {"count": 1, "flavors": ["t4", "a100"]}, None),
        ({"ecosystem": Ecosystem(runtime="rocm")}, {"ecosystem": NEEDS_PYTORCH}, Reason.INCOMPATIBLE_RUNTIME),
        (
            {"ecosystem": Ecosystem(runtime="cuda", frameworks={"pytorch": "2.0.1"})},
            {"ecosystem": NEEDS_PYTORCH},
            Reason.INCOMPATIBLE_VERSION,
        ),
        ({"ecosystem": Ecosystem(runtime="cuda")}, {"ecosystem": NEEDS_PYTORCH}, Reason.UNKNOWN_ECOSYSTEM),
        ({"ecosystem": Ecosystem(runtime="cuda")}, {"ecosystem": NEEDS_PYTORCH, "allow_unknown": True}, None),
        ({"ecosystem": Ecosystem()}, {"ecosystem": NEEDS_PYTORCH}, Reason.UNKNOWN_ECOSYSTEM),
        ({"gpus": 1}, {"count": 1, "minima": (("fp8_tflops", 1.0),)}, Reason.MISSING_ATTRIBUTE),
        ({"gpus": 1}, {"count": 1, "minima": (("fp8_tflops", 1.0),), "allow_unknown": True}, None),
        ({"gpus": 1}, {"count": 1, "minima": (("bf16_tflops", 313.0),)}, Reason.ATTRIBUTE_TOO_LOW),
        ({"gpus": 1}, {"count": 1, "minima": (("bf16_tflops", 312.0),)}, None),
        ({"gpus": 1, "device_memory": 16_384}, {"count": 1, "slice_memory": 40_960}, Reason.ATTRIBUTE_TOO_LOW),
        ({"gpus": 1, "device_memory": None}, {"count": 1, "slice_memory": 1_024}, Reason.MISSING_ATTRIBUTE),
        ({"cpu": 999}, {}, Reason.NOT_ENOUGH_CPU),
        ({"cpu": 1_000}, {}, None),
        ({"memory": 1_023}, {}, Reason.NOT_ENOUGH_MEMORY),
        ({"gpus": 3}, {"count": 4}, Reason.NOT_ENOUGH_DEVICES),
        ({"gpus": 4}, {"count": 4}, None),
    ],
)
def test_filter_when_a_node_fails_it_first_then_it_is_the_reason(
    given: dict[str, Any], wanted: dict[str, Any], reason: Reason | None
) -> None:
    world = World.of(node(1, **given))
    (task,) = world.submit(request(**wanted))
    plan = world.plan()
    if reason is None:
        assert placed_tasks(plan) == [task]
    else:
        assert plan.rejections[task].reason is reason
        assert plan.rejections[task].counts == {reason: 1}


def test_filter_when_enough_is_free_only_in_sum_then_the_block_is_too_small() -> None:
    world = World.of(node(1, gpus=2))
    world.submit(request(count=1, milli=600), 2)
    world.run()
    (slice_task,) = world.submit(request(count=1, milli=500))
    (whole_task,) = world.submit(request(count=1))
    rejections = world.run().rejections
    assert rejections[slice_task].reason is Reason.LARGEST_FREE_BLOCK_TOO_SMALL
    assert rejections[whole_task].reason is Reason.NOT_ENOUGH_DEVICES


def test_filter_when_devices_of_several_flavors_are_free_then_one_task_never_mixes_them() -> None:
    large = node(1, gpus=2)
    world = World.of(replace(large, devices=large.devices + node(2, gpus=2, flavor="t4").devices))
    (three,) = world.submit(request(count=3))
    two = world.submit(request(count=2), 2)
    plan = world.run()
    assert plan.rejections[three].reason is Reason.LARGEST_FREE_BLOCK_TOO_SMALL
    assert placed_tasks(plan) == two
    assert {placement.flavor for placement in plan.placements} == {"a100", "t4"}


def test_filter_when_a_device_is_shared_with_another_tenant_then_only_the_pool_rule_opens_it() -> None:
    for sharing, placed in ((DeviceSharing.SAME_TENANT, 0), (DeviceSharing.ANY, 1)):
        world = World.of(node(1, gpus=1), rules=PoolRules(device_sharing=sharing))
        world.submit(request(count=1, milli=300))
        world.run()
        (task,) = world.submit(request(count=1, milli=300, tenant=RIVAL))
        plan = world.run()
        assert len(plan.placements) == placed
        if not placed:
            assert plan.rejections[task].reason is Reason.DEVICE_SHARED_WITH_OTHER_TENANT


def test_filter_when_a_node_has_no_isolation_then_one_tenant_at_a_time_unless_the_pool_allows() -> None:
    for allowed, placed in ((False, 0), (True, 1)):
        world = World.of(node(1, isolation=Isolation.NONE), rules=PoolRules(allow_shared_users=allowed))
        (mine,) = world.submit(request())
        world.run()
        (task,) = world.submit(request(tenant=RIVAL))
        plan = world.run()
        assert len(plan.placements) == placed
        if not placed:
            assert plan.rejections[task].reason is Reason.NO_ISOLATION
            world.snapshot.release_allocation(mine)
            assert placed_tasks(world.run()) == [task]


def test_filter_when_the_pool_is_dedicated_then_its_tenant_alone() -> None:
    for owner, reason in ((TENANT, Reason.PLACEABLE), (RIVAL, Reason.DEDICATED_TO_OTHERS)):
        world = World.of(node(1), rules=PoolRules(dedicated_to=owner))
        (task,) = world.submit(request())
        plan = world.plan()
        assert (task in plan.rejections) == (reason is Reason.DEDICATED_TO_OTHERS)
        if task in plan.rejections:
            assert (plan.rejections[task].reason, plan.rejections[task].counts) == (reason, {reason: 1})


def test_counts_when_nodes_fail_differently_then_sum_to_the_pool() -> None:
    world = World.of(
        node(1),
        node(2, gpus=8, cordons=frozenset({CordonReason.OPERATOR})),
        node(3, gpus=8, ecosystem=Ecosystem(runtime="rocm")),
        node(4, gpus=8, taints=(Taint(key="simulated"),)),
        node(5, gpus=4),
        node(6, gpus=8, pool=OTHER_POOL),
    )
    (task,) = world.submit(request(count=8, ecosystem=NEEDS_PYTORCH))
    rejection = world.plan().rejections[task]
    assert rejection.counts == {
        Reason.NO_MATCHING_DEVICE: 1,
        Reason.CORDONED: 1,
        Reason.INCOMPATIBLE_RUNTIME: 1,
        Reason.TAINT: 1,
        Reason.NOT_ENOUGH_DEVICES: 1,
    }
    assert rejection.reason is Reason.NOT_ENOUGH_DEVICES


@pytest.mark.parametrize(
    ("counts", "matching", "expected"),
    [
        (
            {Reason.INCOMPATIBLE_RUNTIME: 900, Reason.LARGEST_FREE_BLOCK_TOO_SMALL: 1},
            False,
            "largest_free_block_too_small",
        ),
        ({Reason.INCOMPATIBLE_RUNTIME: 900, Reason.CORDONED: 1}, True, "cordoned"),
        ({Reason.INCOMPATIBLE_RUNTIME: 900, Reason.CORDONED: 1}, False, "incompatible_runtime"),
        ({Reason.NOT_ENOUGH_CPU: 3, Reason.NOT_ENOUGH_DEVICES: 3}, False, "not_enough_devices"),
        ({Reason.CORDONED: 2}, False, "cordoned"),
        ({Reason.PLACEABLE: 1, Reason.NOT_ENOUGH_CPU: 9}, False, "placeable"),
        ({}, False, "pool_empty"),
    ],
)
def test_dominant_reason_when_several_apply_then_is_the_nearest_to_a_start(
    counts: dict[Reason, int], matching: bool, expected: str
) -> None:
    assert decide_dominant(counts, unavailable_would_match=matching) == expected


def test_remembered_verdicts_when_nodes_and_rules_change_then_equal_fresh_ones() -> None:
    world = World.of(node(1, gpus=2), node(2, gpus=2))
    wanted = request(count=1, milli=400, tenant=RIVAL)
    kept = Candidates(world.snapshot, wanted)
    world.submit(request(count=1, milli=700), 4)

    def same() -> bool:
        fresh = Candidates(world.snapshot, wanted)
        return kept.count_reasons() == fresh.count_reasons() and kept.scores.tolist() == fresh.scores.tolist()

    assert same()
    world.run()
    assert same()
    world.snapshot.set_rules(node(1).pool, PoolRules(device_sharing=DeviceSharing.ANY))
    assert same()
    world.snapshot.upsert_node(node(3, gpus=16, flavor="t4", labels={"a": "b"}))
    assert same()
    world.snapshot.remove_node(NodeId(int=2 << 65))
    assert same()
    for number in range(10, 200):
        world.snapshot.upsert_node(node(number, gpus=1))
    assert same()
