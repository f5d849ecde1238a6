"""`nvidia-smi -q -x` from Pascal to Blackwell: what it says is read, what it does not say is not invented."""

from pathlib import Path

import pytest

from millpond_contracts.resources import Device, DeviceHealth, FieldState
from millpond_node_agent.hardware.nvidia_smi import AnswerUnreadableError, explain_failure, parse_answer
from millpond_node_agent.hardware.report import ProbeOutcome

pytestmark = pytest.mark.unit

SAMPLES = Path(__file__).parent / "samples"


def sample(name: str) -> str:
    return (SAMPLES / f"nvidia-smi-{name}.xml").read_text()


def devices_of(name: str) -> list[Device]:
    return parse_answer(sample(name))[1]


def test_parse_answer_of_h100_gives_both_devices_whole() -> None:
    ecosystem, (first, second) = parse_answer(sample("h100"))

    assert (ecosystem.runtime, ecosystem.runtime_version, ecosystem.driver_version) == ("cuda", "13.0", "580.105.08")
    assert first.identity == "nvidia/GPU-c2c6e0ae-ae56-40f7-8817-1aa124ea0690"
    assert (first.slot.pci, second.slot.pci) == ("0000:53:00.0", "0000:64:00.0")
    assert (first.model_key, first.memory.usable_mib, first.memory.ecc) == ("H100 SXM5 80GB", 81_559 - 480, True)
    assert (first.power_limit_w, first.fields["power_w"].value) == (700, 68.57)
    assert first.fields["recovery_action"].value == "none"
    assert first.health is DeviceHealth.HEALTHY


def test_parse_answer_of_a_lost_gpu_marks_it_and_leaves_its_neighbour() -> None:
    neighbour, lost = devices_of("gpu-lost")

    assert lost.health is DeviceHealth.LOST
    assert lost.memory.usable_mib is None
    assert not lost.memory.unified
    assert lost.fields["temperature_c"].state is FieldState.LOST
    assert lost.fields["row_remap_pending"].state is FieldState.LOST
    assert neighbour.health is not DeviceHealth.LOST
    assert neighbour.fields["temperature_c"].value == 63


def test_case6_parse_answer_with_uncorrectable_errors_makes_the_device_unhealthy() -> None:
    failing, sound = devices_of("ecc-uncorrectable")

    assert failing.fields["ecc_uncorrectable_count"].value == 5
    assert failing.health is DeviceHealth.UNHEALTHY
    assert sound.health is DeviceHealth.HEALTHY


def test_case27_parse_answer_in_mig_mode_has_no_utilisation_rather_than_zero() -> None:
    (device,) = devices_of("a100-mig")

    assert device.fields["utilization_ratio"].state is FieldState.NOT_APPLICABLE
    assert device.fields["utilization_ratio"].value is None
    assert device.partitioning.current == "mig"
    assert (device.model_key, device.fields["power_w"].value) == ("A100 SXM4 80GB", 67.03)


def test_parse_answer_of_an_old_consumer_card_leaves_missing_elements_unreadable() -> None:
    (device,) = devices_of("gtx1070ti")

    assert device.memory.usable_mib == 4096
    assert device.memory.ecc is None
    assert device.model_key is None
    assert device.power_limit_w is None
    assert device.fields["serial"].state is FieldState.UNREADABLE
    assert device.fields["power_w"].state is FieldState.NOT_APPLICABLE


def test_parse_answer_with_a_word_in_place_of_a_group_takes_the_word_for_its_members() -> None:
    (device,) = devices_of("t4")

    assert device.fields["row_remap_pending"].state is FieldState.NOT_APPLICABLE
    assert device.fields["power_w"].value == 33.51  # average N/A, instant read


@pytest.mark.parametrize(
    ("old", "new", "field", "state"),
    [
        ("<total>15360 MiB</total>", "<total>15 GiB</total>", "memory_total_mib", FieldState.UNREADABLE),
        ("<total>15360 MiB</total>", "<total>-1 MiB</total>", "memory_total_mib", FieldState.UNREADABLE),
        ("<total>15360 MiB</total>", "<whole>15360 MiB</whole>", "memory_total_mib", FieldState.UNREADABLE),
        ("<total>15360 MiB</total>", "<total>[Unknown Error]</total>", "memory_total_mib", FieldState.UNREADABLE),
        ("<total>15360 MiB</total>", "<total></total>", "memory_total_mib", FieldState.UNREADABLE),
        ("<gpu_temp>33 C</gpu_temp>", "<gpu_temp>[Not Supported]</gpu_temp>", "temperature_c", FieldState.UNSUPPORTED),
        ("<gpu_temp>33 C</gpu_temp>", "<gpu_temp>ERR!</gpu_temp>", "temperature_c", FieldState.UNREADABLE),
        (
            "<gpu_temp>33 C</gpu_temp>",
            "<gpu_temp>Insufficient Permissions</gpu_temp>",
            "temperature_c",
            FieldState.NO_PERMISSION,
        ),
    ],
)
def test_case15_parse_answer_with_a_changed_element_has_a_reason_and_never_a_wrong_number(
    old: str, new: str, field: str, state: FieldState
) -> None:
    text = sample("t4")
    assert old in text

    (device,) = parse_answer(text.replace(old, new, 1))[1]

    assert device.fields[field].state is state
    assert device.fields[field].value is None
    assert device.fields[field].error
    if field == "memory_total_mib":
        assert device.memory.usable_mib is None
        assert device.health is DeviceHealth.UNKNOWN


def test_h7_parse_answer_without_memory_of_its_own_marks_it_unified() -> None:
    text = sample("t4").replace("<total>15360 MiB</total>", "<total>N/A</total>", 1)

    (device,) = parse_answer(text)[1]

    assert device.memory.unified
    assert device.memory.usable_mib is None
    assert device.health is DeviceHealth.HEALTHY


@pytest.mark.parametrize(
    "text", ["", "NVIDIA-SMI has failed", "<other/>", "<nvidia_smi_log><gpu>", "\x00", "<nvidia_smi_log>" * 3]
)
def test_parse_answer_of_something_else_raises_with_what_was_found(text: str) -> None:
    with pytest.raises(AnswerUnreadableError, match="expected"):
        parse_answer(text)


@pytest.mark.parametrize(
    ("exit_code", "message", "outcome"),
    [
        (
            18,
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144",
            "driver_mismatch",
        ),
        (9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", "driver_not_loaded"),
        (4, "Failed to initialize NVML: Insufficient Permissions", "no_permission"),
        (255, "Failed to initialize NVML: Unknown Error", "probe_failed"),
    ],
)
def test_explain_failure_names_the_outcome(exit_code: int, message: str, outcome: str) -> None:
    report = explain_failure(exit_code, message)

    assert report.outcome is ProbeOutcome(outcome)
    assert report.error is not None
    assert message.split("\n")[0] in report.error
