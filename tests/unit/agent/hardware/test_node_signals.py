"""The node's load from two readings of /proc, and devices' values that are null when unknown."""

import math
from pathlib import Path

import pytest
from tests.factories.machines import MachineTree

from millpond_contracts.resources import Device, FieldState, Reading
from millpond_node_agent.hardware.signals import NodeSampler, device_signals

pytestmark = pytest.mark.unit


@pytest.fixture
def machine(tmp_path: Path) -> MachineTree:
    tree = MachineTree(tmp_path)
    tree.add_memory(16_384, 12_288)
    return tree


def sample(sampler: NodeSampler) -> dict[str, float | None]:
    return {signal.name: signal.value for signal in sampler.sample(7)}


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ("cpu 150 0 50 850 50 0 0 0 0 0", 0.5),  # 100 busy of 200 ticks
        ("cpu 100 0 0 1000 100 0 0 0 0 0", 0.0),  # waiting for a disk is idle
        ("cpu 200 0 100 800 0 0 0 0 200 0", 1.0),  # a guest's ticks are in user time already
        ("cpu 100 0 0 800 0 0 0 0 0 0", None),  # no time passed
        ("cpu garbage", None),
        ("", None),
    ],
)
def test_sample_counts_cpu_from_one_sample_to_the_next(
    machine: MachineTree, second: str, expected: float | None
) -> None:
    machine.write("proc/stat", "cpu 100 0 0 800 0 0 0 0 0 0\ncpu0 1 1 1 1\n")
    sampler = NodeSampler(machine.root)
    machine.write("proc/stat", second + "\n")

    values = sample(sampler)

    assert values["cpu_utilization_ratio"] == expected
    assert values["memory_utilization_ratio"] == 0.25
    assert values["memory_used_mib"] == 4096


def test_sample_where_proc_says_nothing_is_null(tmp_path: Path) -> None:
    assert set(sample(NodeSampler(tmp_path)).values()) == {None}


@pytest.mark.parametrize(
    "reading",
    [
        None,
        Reading(state=FieldState.UNSUPPORTED, error="NVML 3"),
        Reading(state=FieldState.OK, value="37 %"),
        Reading(state=FieldState.OK, value=math.nan),
        Reading(state=FieldState.OK, value=math.inf),
    ],
)
def test_device_signals_without_a_finite_number_are_null(reading: Reading | None) -> None:
    device = Device(identity="nvidia/GPU-1", index=0, vendor="nvidia")
    samples = {"nvidia/GPU-1": {"power_w": reading}} if reading is not None else {}

    signals = device_signals([device], samples, 5)

    assert [signal.value for signal in signals] == [None] * 5
    assert {signal.target for signal in signals} == {"nvidia/GPU-1"}
