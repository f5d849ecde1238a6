"""NVIDIA devices through `nvidia-smi -q -x`, for machines whose NVML cannot be loaded; read in the probe only.

The XML changes between drivers: elements are renamed, missing, or filled with words in place of numbers. Such a reading
has no value and says why; it is never a number that the tool did not print.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from xml.etree import ElementTree

from millpond_contracts.ecosystem import Ecosystem
from millpond_contracts.resources import Device, FieldState, Reading
from millpond_node_agent.hardware.bounded import TimeBudget
from millpond_node_agent.hardware.nvidia_device import VENDOR, build_device
from millpond_node_agent.hardware.pci import normal_address
from millpond_node_agent.hardware.report import (
    ProbeOutcome,
    ProbeReport,
    absent,
    clip,
    memory_ratio,
    ok,
    text_of,
    version_of,
)

# What the tool prints in place of a value, in lower case without brackets; each is a fact of its own.
_WORDS: dict[str, FieldState] = {
    "": FieldState.UNREADABLE,
    "n/a": FieldState.NOT_APPLICABLE,
    "-": FieldState.NOT_APPLICABLE,
    "none": FieldState.NOT_APPLICABLE,
    "not supported": FieldState.UNSUPPORTED,
    "requested functionality has been deprecated": FieldState.UNSUPPORTED,
    "insufficient permissions": FieldState.NO_PERMISSION,
    "gpu is lost": FieldState.LOST,
    "unknown error": FieldState.UNREADABLE,
    "err!": FieldState.UNREADABLE,
    "unknown": FieldState.UNREADABLE,
}
_NUMBER = re.compile(r"^(-?\d+(?:\.\d+)?)\s*(\S*)$")

_TEXTS: dict[str, str] = {
    "name": "product_name",
    "uuid": "uuid",
    "serial": "serial",
    "board_part_number": "board_part_number",
    "vbios_version": "vbios_version",
}
# Reading -> paths of which the first that exists counts (driver 535 renamed the power elements), unit, factor.
_NUMBERS: dict[str, tuple[tuple[str, ...], str, float]] = {
    "minor_number": (("minor_number",), "", 1),
    "memory_total_mib": (("fb_memory_usage/total",), "MiB", 1),
    "memory_reserved_mib": (("fb_memory_usage/reserved",), "MiB", 1),
    "memory_used_mib": (("fb_memory_usage/used",), "MiB", 1),
    "utilization_ratio": (("utilization/gpu_util",), "%", 0.01),
    "temperature_c": (("temperature/gpu_temp",), "C", 1),
    "power_w": (
        (
            *("gpu_power_readings/average_power_draw", "gpu_power_readings/instant_power_draw"),
            *("gpu_power_readings/power_draw", "power_readings/power_draw"),
        ),
        "W",
        1,
    ),
    "power_limit_w": (
        (
            *("gpu_power_readings/current_power_limit", "gpu_power_readings/power_limit"),
            *("power_readings/current_power_limit", "power_readings/power_limit"),
        ),
        "W",
        1,
    ),
    "pcie_width": (("pci/pci_gpu_link_info/link_widths/current_link_width",), "x", 1),
    "pcie_max_width": (("pci/pci_gpu_link_info/link_widths/max_link_width",), "x", 1),
}
_SWITCHES = {"ecc_mode": "ecc_mode/current_ecc", "mig_mode": "mig_mode/current_mig"}
_FLAGS = {
    "row_remap_pending": "remapped_rows/remapped_row_pending",
    "row_remap_failure": "remapped_rows/remapped_row_failure",
}
_ON_OFF = {"Enabled": "enabled", "Disabled": "disabled"}
_YES_NO = {"Yes": 1, "No": 0}


class AnswerUnreadableError(Exception):
    """The tool's answer is not the XML that it prints when all is well."""


def probe_tool(budget: TimeBudget) -> ProbeReport:
    """What `nvidia-smi -q -x` says of this machine's devices, within the time budget."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return _failed(ProbeOutcome.NO_LIBRARY, "nvidia-smi is not on the PATH")
    try:
        answer = subprocess.run(
            [program, "-q", "-x"], capture_output=True, timeout=max(0.1, budget.left_seconds()), check=False
        )
    except subprocess.TimeoutExpired:
        return _failed(ProbeOutcome.STUCK, "nvidia-smi gave no answer in time")
    except OSError as error:
        return _failed(ProbeOutcome.FAILED, f"nvidia-smi does not start: {error}")
    if answer.returncode != 0:
        return explain_failure(answer.returncode, (answer.stderr + answer.stdout).decode("utf-8", "replace"))
    try:
        ecosystem, devices = parse_answer(answer.stdout.decode("utf-8", "replace"))
    except AnswerUnreadableError as error:
        return _failed(ProbeOutcome.FAILED, str(error))
    return ProbeReport(
        vendor=VENDOR, source="nvidia-smi", outcome=ProbeOutcome.OK, ecosystem=ecosystem, devices=tuple(devices)
    )


def explain_failure(exit_code: int, message: str) -> ProbeReport:
    """The report for a run that failed, from the words that the tool printed."""
    words = message.lower()
    outcome = ProbeOutcome.FAILED
    if "version mismatch" in words:
        outcome = ProbeOutcome.MISMATCH
    elif exit_code == 9 or "couldn't communicate with the nvidia driver" in words:
        outcome = ProbeOutcome.NO_DRIVER
    elif "insufficient permissions" in words:
        outcome = ProbeOutcome.NO_PERMISSION
    return _failed(outcome, f"nvidia-smi exit {exit_code}: {message}")


def parse_answer(text: str) -> tuple[Ecosystem, list[Device]]:
    """The driver's software stack and the devices of an `nvidia-smi -q -x` answer.

    Raises:
        AnswerUnreadableError: the text is not such an answer.
    """
    try:
        log = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise AnswerUnreadableError(f"expected nvidia-smi's XML, found {clip(text)[:80]!r}: {error}") from error
    if log.tag != "nvidia_smi_log":
        raise AnswerUnreadableError(f"expected the element nvidia_smi_log, found {log.tag[:80]!r}")
    ecosystem = Ecosystem(
        runtime="cuda",
        runtime_version=version_of(_text(log, "cuda_version")),
        driver_version=version_of(_text(log, "driver_version")),
    )
    return ecosystem, [
        build_device(index, _readings(gpu), (), ecosystem) for index, gpu in enumerate(log.findall("gpu"))
    ]


def _readings(gpu: ElementTree.Element) -> dict[str, Reading]:
    readings = {name: _text(gpu, path) for name, path in _TEXTS.items()}
    readings["pci"] = _address(gpu)
    readings |= {name: _number(gpu, *rule) for name, rule in _NUMBERS.items()}
    readings |= {name: _choice(gpu, path, _ON_OFF) for name, path in _SWITCHES.items()}
    readings |= {name: _choice(gpu, path, _YES_NO) for name, path in _FLAGS.items()}
    readings["ecc_uncorrectable_count"] = _uncorrectable(gpu)
    readings["recovery_action"] = _recovery_action(gpu)
    readings["memory_utilization_ratio"] = memory_ratio(readings)
    return readings


def _text(parent: ElementTree.Element, path: str) -> Reading:
    element = parent.find(path)
    above, slash, _ = path.rpartition("/")
    if element is None and slash and _text(parent, above).state is not FieldState.OK:
        return _text(parent, above)  # one word in place of a whole group: <remapped_rows>N/A</remapped_rows>
    if element is None:
        return absent(FieldState.UNREADABLE, f"no element {path} in the tool's answer")
    content = " ".join((element.text or "").split())
    state = _WORDS.get(content.strip("[]").lower())
    return ok(content) if state is None else absent(state, content or f"element {path} is empty")


def _number(gpu: ElementTree.Element, paths: Sequence[str], unit: str, factor: float) -> Reading:
    found = [reading for path in paths if (reading := _text(gpu, path)) and gpu.find(path) is not None]
    best = next((reading for reading in found if reading.state is FieldState.OK), None)
    if best is None:
        return found[0] if found else _text(gpu, paths[0])
    match = _NUMBER.match(str(best.value))
    if match is None or match[2] != unit:
        return absent(FieldState.UNREADABLE, f"expected a number of {unit or 'no unit'}, found {best.value!r}")
    value = float(match[1]) * factor
    if value < 0 and unit != "C":
        return absent(FieldState.UNREADABLE, f"expected no negative number, found {best.value!r}")
    return ok(value)


def _choice(gpu: ElementTree.Element, path: str, meaning: dict[str, str] | dict[str, int]) -> Reading:
    reading = _text(gpu, path)
    if reading.state is not FieldState.OK:
        return reading
    value = meaning.get(str(reading.value))
    if value is None:
        return absent(FieldState.UNREADABLE, f"expected one of {', '.join(meaning)}, found {reading.value!r}")
    return ok(value)


def _address(gpu: ElementTree.Element) -> Reading:
    reported = text_of(_text(gpu, "pci/pci_bus_id")) or gpu.get("id") or ""
    address = normal_address(reported)
    return ok(address) if address else absent(FieldState.UNREADABLE, f"expected a PCI address, found {reported!r}")


def _uncorrectable(gpu: ElementTree.Element) -> Reading:
    """The uncorrectable errors since the driver was loaded: the sum of all memories that the tool names."""
    volatile = gpu.find("ecc_errors/volatile")
    if volatile is None:
        return absent(FieldState.NOT_APPLICABLE, "no element ecc_errors/volatile in the tool's answer")
    counts = [_number(volatile, (element.tag,), "", 1) for element in volatile if "uncorrectable" in element.tag]
    for state in (FieldState.LOST, FieldState.UNREADABLE):
        for count in counts:
            if count.state is state:
                return count
    known = [float(count.value) for count in counts if isinstance(count.value, int | float)]
    return ok(sum(known)) if known else absent(FieldState.NOT_APPLICABLE, "no count of uncorrectable errors")


def _recovery_action(gpu: ElementTree.Element) -> Reading:
    element = gpu.find("gpu_recovery_action")
    if element is not None and (element.text or "").strip() == "None":
        return ok("none")  # here the word is the answer, not the lack of one
    reading = _text(gpu, "gpu_recovery_action")
    action = text_of(reading)
    return ok(re.sub(r"\W+", "_", action.lower())) if action else reading


def _failed(outcome: ProbeOutcome, error: str) -> ProbeReport:
    return ProbeReport(vendor=VENDOR, source="nvidia-smi", outcome=outcome, error=clip(error))
