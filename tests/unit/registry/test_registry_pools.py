"""Which pool takes a node, names inside a pool, flavors, and devices after an inventory."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_contracts.bodies.nodes import FlavorSelector, FlavorView
from millpond_contracts.bodies.pools import NodeSelector, PoolSpec, PoolView
from millpond_contracts.catalogue import load_catalogue
from millpond_contracts.ids import PoolId
from millpond_contracts.resources import Device, DeviceHealth, DeviceMemory
from millpond_registry.domain.devices import MISSING_REASON, changed_health, device_view, merge_devices
from millpond_registry.domain.flavors import builtin_flavors, resolve_flavor
from millpond_registry.domain.pools import MAX_NAME_LENGTH, choose_pool, fits_selector, unique_name
from tests.factories.registry import gpu, inventory

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pool(name: str, priority: int = 0, **selector: Any) -> PoolView:
    spec = PoolSpec(name=name, priority=priority, selector=NodeSelector(**selector))
    return PoolView(pool_id=PoolId.new(), created_at=NOW, generation=1, **spec.model_dump())


def flavor(name: str, *, builtin: bool = False, **selector: Any) -> FlavorView:
    return FlavorView(name=name, kind="gpu", selector=FlavorSelector(**selector), builtin=builtin, generation=1)


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ({}, True),
        ({"vendor": "nvidia"}, True),
        ({"vendor": "amd"}, False),
        ({"vendor": "none"}, False),
        ({"model_key": "A100 SXM4 80GB"}, True),
        ({"arch": "x86_64", "region": "north", "zone": "north-a"}, True),
        ({"arch": "aarch64"}, False),
        ({"zone": "north-b"}, False),
        ({"labels": {"tier": "gold"}}, True),
        ({"labels": {"tier": "gold", "rack": "r1"}}, False),
    ],
)
def test_selector_when_parts_are_given_then_all_must_hold(selector: dict[str, Any], fits: bool) -> None:
    assert fits_selector(NodeSelector(**selector), inventory([gpu()]), {"tier": "gold"}) is fits


def test_selector_when_labels_say_where_it_stands_then_they_win_over_the_report() -> None:
    assert fits_selector(NodeSelector(region="north", zone="north-b"), inventory(), {"zone": "north-b"})
    assert not fits_selector(NodeSelector(zone="north-a"), inventory(), {"zone": "north-b"})
    assert fits_selector(NodeSelector(zone="north-a"), inventory(), {"zone": ""})


def test_selector_when_node_has_no_device_then_vendor_none_takes_it() -> None:
    assert fits_selector(NodeSelector(vendor="none"), inventory(), {})


def test_choose_pool_when_several_fit_then_priority_then_age() -> None:
    old, young, high, unfit = pool("old"), pool("young"), pool("high", 5, vendor="nvidia"), pool("x", 9, arch="riscv")
    assert choose_pool([young, old, unfit, high], inventory([gpu()]), {}) == high
    assert choose_pool([young, old, unfit, high], inventory(), {}) == old
    assert choose_pool([unfit], inventory(), {}) is None


@given(st.lists(st.sampled_from(["a", "a-2", "b", "x" * 63]), max_size=30))
def test_unique_name_when_names_collide_then_all_differ_and_fit(wanted: list[str]) -> None:
    taken: set[str] = set()
    for name in wanted:
        given_name = unique_name(name, taken)
        assert given_name not in taken
        assert len(given_name) <= MAX_NAME_LENGTH
        taken.add(given_name)


def test_flavors_when_built_from_the_catalogue_then_one_per_model() -> None:
    names = [item.name for item in builtin_flavors()]
    assert len(set(names)) == len(names) == len(load_catalogue())
    assert names == sorted(names)


def test_flavor_when_each_model_of_the_catalogue_is_reported_by_key_then_its_own() -> None:
    for entry in load_catalogue():
        device = Device(identity="x", index=0, vendor=entry.vendor, model_key=entry.model)
        found = resolve_flavor(device, builtin_flavors())
        assert found is not None
        assert found.name == entry.flavor


def test_flavor_when_selectors_compete_then_most_given_fields_then_operators_then_name() -> None:
    device = gpu()
    builtin = flavor("b", builtin=True, vendor="nvidia", model_key="A100 SXM4 80GB")
    same = flavor("z", vendor="nvidia", model_prefix="NVIDIA A100")
    narrow = flavor("n", vendor="nvidia", model_prefix="nvidia a100", memory_mib_min=1, memory_mib_max=81_920)
    too_small = flavor("t", vendor="nvidia", memory_mib_max=81_919)
    catch_all = flavor("a")
    for flavors, expected in (
        ([catch_all, builtin, same, narrow, too_small], "n"),
        ([catch_all, builtin, same, too_small], "z"),
        ([catch_all, builtin], "b"),
        ([catch_all, too_small], "a"),
        ([flavor("a2"), catch_all], "a"),
    ):
        for order in (flavors, list(reversed(flavors))):
            found = resolve_flavor(device, order)
            assert found is not None
            assert found.name == expected
    assert resolve_flavor(device, [flavor("unknown-nvidia", builtin=True, vendor="nvidia")]) is None


def test_flavor_when_memory_is_unknown_then_bounds_do_not_fit() -> None:
    device = gpu(memory=DeviceMemory())
    assert resolve_flavor(device, [flavor("f", memory_mib_min=0)]) is None


def test_merge_when_a_device_is_missing_then_lost_and_comes_back_as_itself() -> None:
    first = merge_devices((), [gpu(0), gpu(1)], lambda _: "f", NOW)
    second = merge_devices(first, [gpu(1)], lambda _: "f", NOW)
    by_identity = {device.report.identity: device for device in second}
    lost = by_identity[gpu(0).identity]
    assert (lost.health, lost.health_reason, lost.reported) == (DeviceHealth.LOST, MISSING_REASON, False)
    assert by_identity[gpu(1).identity] == next(d for d in first if d.report.identity == gpu(1).identity)
    assert changed_health(first, second) == (lost.id,)
    third = merge_devices(second, [gpu(0), gpu(1)], lambda _: "f", NOW)
    assert {device.id for device in third} == {device.id for device in first}
    assert changed_health(first, third) == ()


def test_view_when_machine_tells_nothing_then_nothing_is_invented() -> None:
    bare = Device(identity="pci/0000:01:00.0", index=0, vendor="acme")
    view = device_view(merge_devices((), [bare], lambda _: "unknown-acme", NOW)[0])
    assert (view.attributes, view.memory_mib, view.model_key) == ({}, None, None)
    assert view.health is DeviceHealth.UNKNOWN


def test_view_when_only_the_name_is_known_then_the_catalogue_tells_the_rates() -> None:
    view = device_view(merge_devices((), [gpu(compute={"fp16_tflops": 300.0})], lambda _: "f", NOW)[0])
    assert view.model_key == "A100 SXM4 80GB"
    assert (view.attributes["fp16_tflops"], view.attributes["bf16_tflops"]) == (300, 312)
