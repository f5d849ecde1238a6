"""From readings to a device record: identity, health, memory."""

import pytest

from millpond_contracts.resources import DeviceHealth, FieldState, Reading
from millpond_node_agent.hardware.nvidia_device import build_device, identity_of, judge_health
from millpond_node_agent.hardware.report import absent, ok

pytestmark = pytest.mark.unit


def readings(**changes: Reading | float | str) -> dict[str, Reading]:
    """What a sound H100 answers, with changes."""
    sound: dict[str, Reading | float | str] = {
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-1",
        "pci": "0000:18:00.0",
        "memory_total_mib": 81_559,
        "memory_reserved_mib": 480,
        "row_remap_pending": 0,
        "row_remap_failure": 0,
        "ecc_uncorrectable_count": 0,
        "recovery_action": "none",
        "fabric_state": "completed",
    }
    merged = {**sound, **changes}
    return {name: value if isinstance(value, Reading) else ok(value) for name, value in merged.items()}


@pytest.mark.parametrize(
    ("changes", "health", "reason"),
    [
        ({}, DeviceHealth.HEALTHY, None),
        ({"power_w": absent(FieldState.LOST, "NVML 15")}, DeviceHealth.LOST, "GPU is lost"),
        ({"recovery_action": "gpu_reset"}, DeviceHealth.UNHEALTHY, "driver_asks_for_gpu_reset"),
        ({"row_remap_failure": 1}, DeviceHealth.UNHEALTHY, "row_remap_failure"),
        ({"ecc_uncorrectable_count": 2}, DeviceHealth.UNHEALTHY, "ecc_uncorrectable: 2"),
        ({"row_remap_pending": 1}, DeviceHealth.DEGRADED, "row_remap_pending"),
        ({"fabric_state": "in_progress"}, DeviceHealth.DEGRADED, "fabric_in_progress"),
        ({"fabric_state": "not_supported"}, DeviceHealth.HEALTHY, None),
        (
            {"power_w": absent(FieldState.UNREADABLE, "NVML 16: GPU requires restart")},
            DeviceHealth.UNHEALTHY,
            "reset_required",
        ),
        ({"uuid": absent(FieldState.UNREADABLE, "NVML 999")}, DeviceHealth.UNKNOWN, "uuid not readable"),
        ({"memory_total_mib": absent(FieldState.UNREADABLE, "NVML 999")}, DeviceHealth.UNKNOWN, "memory not readable"),
        ({"memory_total_mib": absent(FieldState.UNSUPPORTED, "NVML 3")}, DeviceHealth.HEALTHY, None),
        ({"temperature_c": absent(FieldState.UNREADABLE, "NVML 999")}, DeviceHealth.HEALTHY, None),
    ],
)
def test_judge_health_by_the_worst_evidence(
    changes: dict[str, Reading | float | str], health: DeviceHealth, reason: str | None
) -> None:
    judged, why = judge_health(readings(**changes))

    assert judged is health
    assert (why is None) == (reason is None)
    assert reason is None or reason in (why or "")


def test_case9_judge_health_when_everything_answers_999_then_is_unknown_and_not_lost() -> None:
    unknown = {name: absent(FieldState.UNREADABLE, "NVML 999: Unknown Error") for name in readings()}

    assert judge_health(unknown)[0] is DeviceHealth.UNKNOWN


@pytest.mark.parametrize(
    ("uuid", "pci", "identity"),
    [
        ("GPU-1", "0000:18:00.0", "nvidia/GPU-1"),
        (None, "0000:18:00.0", "pci/0000:18:00.0"),
        (None, None, "nvidia/index-3"),
    ],
)
def test_identity_of_takes_what_lasts_longest(uuid: str | None, pci: str | None, identity: str) -> None:
    assert identity_of(3, uuid, pci) == identity


def test_build_device_with_no_readings_at_all_is_unknown_without_figures() -> None:
    device = build_device(0, {})

    assert device.health is DeviceHealth.UNKNOWN
    assert device.memory.usable_mib is None
    assert not device.memory.unified
    assert device.model_key is None
