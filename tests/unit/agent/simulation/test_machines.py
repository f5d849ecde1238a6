"""The inventory and signals of a simulated node: what the catalogue says, and nothing that it does not."""

from typing import Any

import pytest

from millpond_contracts.fleets import NodeEntry
from millpond_contracts.resources import SIMULATED_TAINT, DeviceHealth, DeviceKind
from millpond_node_agent.runtimes.protocol import DeviceGrant, Simulation, TaskTerms
from millpond_node_agent.simulation.acting import Act
from millpond_node_agent.simulation.machines import build_inventory, device_signals, node_signals, task_signals

pytestmark = pytest.mark.unit

NOW = 90_000


def entry(**more: Any) -> NodeEntry:
    return NodeEntry.model_validate({"name": "gpu", "cpu_milli": 64_000, "memory_mib": 8_192, **more})


def running(milli: int = 1000, memory_mib: int | None = None, **signals: tuple[tuple[float, float], ...]) -> Act:
    grant = DeviceGrant("nvidia/SIM-t-0", "nvidia", 0, "SIM-t-0", milli, memory_mib)
    terms = TaskTerms(f"alloc-{milli}", "job", "task", "tenant", 1, 1, 16_000, 2_048, (grant,), 1)
    return Act(terms, Simulation(40, 0, 0, signals), None, "boot", NOW - 10_000)


def test_inventory_when_the_model_is_known_then_as_the_catalogue_says() -> None:
    inventory = build_inventory(entry(model="A100 SXM4 80GB", devices=2, zone="z1", labels={"a": "b"}), "gpu-0", "t")
    first, second = inventory.devices
    assert (first.model_key, first.memory.usable_mib, first.compute.bf16_tflops) == ("A100 SXM4 80GB", 81_920, 312)
    assert (first.kind, first.health, first.ecosystem.runtime) == (DeviceKind.GPU, DeviceHealth.HEALTHY, "cuda")
    assert first.identity != second.identity
    assert [taint.key for taint in inventory.taints] == [SIMULATED_TAINT]
    assert (inventory.topology.zone, inventory.labels, inventory.allocatable_cpu_milli) == ("z1", {"a": "b"}, 64_000)


def test_inventory_when_an_npu_then_kind_and_runtime_are_its_own() -> None:
    (device,) = build_inventory(entry(model="Ascend 910B3"), "npu", "t").devices
    assert (device.kind, device.vendor, device.ecosystem.runtime) == (DeviceKind.NPU, "huawei", "cann")


def test_inventory_when_the_model_is_unlisted_then_its_name_and_nothing_else() -> None:
    (device,) = build_inventory(entry(model="G2", vendor="nvidia", unlisted=True), "g2", "t").devices
    assert (device.model, device.model_key, device.memory.usable_mib, device.compute.bf16_tflops) == (
        "G2",
        None,
        None,
        None,
    )


def test_signals_when_tasks_run_then_their_shares_add_up() -> None:
    inventory = build_inventory(entry(model="A100 SXM4 80GB", devices=2), "gpu", "t")
    tasks = [running(250, utilization_ratio=((0, 0.5),)), running(500, memory_mib=1_024)]
    first, second = inventory.devices
    busy = {name: value for _, name, value in device_signals(first, tasks, NOW)}
    assert busy == {
        "utilization_ratio": pytest.approx(0.625),
        "memory_utilization_ratio": pytest.approx((20_480 + 1_024) / 81_920),
        "memory_used_mib": pytest.approx(21_504),
    }
    assert {value for _, _, value in device_signals(second, tasks, NOW)} == {0.0}
    assert [value for _, _, value in node_signals(inventory, tasks, NOW)] == pytest.approx([0.5, 0.5, 4_096])


def test_signals_when_the_memory_is_unknown_then_null_and_not_zero() -> None:
    (device,) = build_inventory(entry(model="G2", vendor="nvidia", unlisted=True), "g2", "t").devices
    values = {name: value for _, name, value in device_signals(device, [], NOW)}
    assert values == {"utilization_ratio": 0.0, "memory_utilization_ratio": None, "memory_used_mib": None}


def test_signals_when_a_task_has_curves_then_its_own_ones_and_its_progress() -> None:
    told = task_signals(running(loss=((0, 2.0), (20, 1.0)), utilization_ratio=((0, 0.5),)), NOW)
    assert told == [("alloc-1000", "progress_ratio", 0.25), ("alloc-1000", "loss", 1.5)]
