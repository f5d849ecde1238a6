"""The node's load from two readings of /proc, and devices' values that are null when unknown."""

import math
from pathlib import Path

import pytest

from millpond_contracts.resources import Device, FieldState, Reading
from millpond_node_agent.hardware.signals import NodeSampler, device_signals
from tests.factories.machines import MachineTree

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
    ("version", "files"),
    [
        (
            2,
            {
                "cpu.max": "200000 100000",
                "cpu.stat": "usage_usec {usec}\nuser_usec 1",
                "memory.max": str(2048 * 1024**2),
                "memory.current": str(1536 * 1024**2),
                "memory.stat": f"anon 1\ninactive_file {512 * 1024**2}",
            },
        ),
        (
            1,
            {
                "cpu.cfs_quota_us": "200000",
                "cpu.cfs_period_us": "100000",
                "cpuacct.usage": "{usec}000",
                "memory.limit_in_bytes": str(2048 * 1024**2),
                "memory.usage_in_bytes": str(1536 * 1024**2),
                "memory.stat": f"inactive_file 1\ntotal_inactive_file {512 * 1024**2}",
            },
        ),
    ],
)
def test_sample_in_a_container_counts_its_own_use_against_its_limits(
    machine: MachineTree, version: int, files: dict[str, str]
) -> None:
    machine.write("proc/stat", "cpu 100 0 0 800 0 0 0 0 0 0\n")
    machine.write("proc/self/cgroup", "0::/\n" if version == 2 else "4:memory:/\n3:cpu,cpuacct:/\n")

    def write(usec: int) -> None:
        for name, text in files.items():
            folder = "" if version == 2 else "memory/" if name.startswith("memory") else "cpu,cpuacct/"
            machine.write(f"sys/fs/cgroup/{folder}{name}", text.replace("{usec}", str(usec)) + "\n")

    write(5_000_000)
    now = 10.0
    sampler = NodeSampler(machine.root, clock=lambda: now)
    write(5_500_000)
    now = 11.0

    values = sample(sampler)

    assert values["cpu_utilization_ratio"] == pytest.approx(0.25)  # half a second of the two that a second holds
    assert values["memory_used_mib"] == 1024
    assert values["memory_utilization_ratio"] == 0.5


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
