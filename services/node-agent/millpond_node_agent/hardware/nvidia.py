"""NVIDIA devices through NVML. Only the probe imports this module: the library can hang its caller for ever.

Every reading is taken by itself, so that a call which fails costs its own field and no other, and every device by
itself, so that one which is lost or hangs the library costs its own record and no other.
"""

import os
from collections.abc import Callable, Mapping
from ctypes import ArgumentError, byref
from functools import partial
from typing import TypeVar

import pynvml

from millpond_contracts.ecosystem import Ecosystem
from millpond_contracts.resources import Device, DeviceHealth, FieldState, Link, Reading
from millpond_node_agent.hardware.bounded import CallStuckError, TimeBudget, call_within
from millpond_node_agent.hardware.nvidia_device import SIGNAL_READINGS, VENDOR, build_device, identity_of
from millpond_node_agent.hardware.nvidia_partitions import Handle, list_makeable
from millpond_node_agent.hardware.pci import normal_address
from millpond_node_agent.hardware.report import (
    DeviceFailure,
    DeviceSample,
    ProbeOutcome,
    ProbeReport,
    absent,
    clip,
    memory_ratio,
    number_of,
    ok,
    text_of,
    version_of,
)

_MIB = 1024 * 1024
_MILLI = 1000
# NVML fills what it does not know with all bits set, in the width of the field.
_NOT_AVAILABLE = frozenset((0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF))

_STATES: dict[int, FieldState] = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: FieldState.UNSUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: FieldState.UNSUPPORTED,
    pynvml.NVML_ERROR_DEPRECATED: FieldState.UNSUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: FieldState.NO_PERMISSION,
    pynvml.NVML_ERROR_GPU_IS_LOST: FieldState.LOST,
}
_OUTCOMES: dict[int, ProbeOutcome] = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: ProbeOutcome.NO_LIBRARY,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: ProbeOutcome.NO_DRIVER,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: ProbeOutcome.MISMATCH,
    pynvml.NVML_ERROR_NO_PERMISSION: ProbeOutcome.NO_PERMISSION,
}
_RECOVERY_ACTIONS = (
    *("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset"),
    *("recover_imex_domain", "bus_reset", "system_reboot"),
)
_FABRIC_STATES = ("not_supported", "not_started", "in_progress", "completed")

# The longest that one device may hold up the others, in seconds.
_DEVICE_SECONDS = 4.0
_START_SECONDS = 15.0

Value = float | str | None
T = TypeVar("T")


class NvmlSession:
    """An initialised NVML: one per process, opened once and never closed, since closing it may hang as well."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self.device_count = int(pynvml.nvmlDeviceGetCount())
        self.library_version = text_of(read_field(pynvml.nvmlSystemGetNVMLVersion))
        cuda = number_of(read_field(pynvml.nvmlSystemGetCudaDriverVersion_v2))
        self.ecosystem = Ecosystem(
            runtime="cuda",
            # 12040 is 12.4: the newest CUDA that this driver runs, not the one that a job brings.
            runtime_version=None if cuda is None else f"{int(cuda) // 1000}.{int(cuda) % 1000 // 10}",
            driver_version=version_of(read_field(pynvml.nvmlSystemGetDriverVersion)),
        )


def probe_devices(budget: TimeBudget) -> ProbeReport:
    """What NVML says of this machine's devices, within the time budget; a lost or stuck one hides no other."""
    try:
        session = call_within(budget.left_seconds(), NvmlSession)
    except (pynvml.NVMLError, CallStuckError) as error:
        return _failed_report(error)
    devices, failures = [], []
    for index in range(session.device_count):
        readings: dict[str, Reading] = {}
        try:
            devices.append(_within_share(budget, partial(_read_device, index, session.ecosystem, readings)))
        except CallStuckError as error:
            stuck = _stuck_device(index, session.ecosystem, dict(readings), error)
            failures.append(_failure(index, error)) if stuck is None else devices.append(stuck)
        except (pynvml.NVMLError, ValueError) as error:  # or a value that the description language refuses
            failures.append(_failure(index, error))
    return ProbeReport(
        vendor=VENDOR,
        source="nvml",
        outcome=ProbeOutcome.OK,
        library_version=session.library_version,
        ecosystem=session.ecosystem,
        devices=tuple(devices),
        failures=tuple(failures),
    )


class NvmlSampler:
    """Second-by-second readings of all devices from one NVML session."""

    def __init__(self) -> None:
        self._session: NvmlSession | None = None
        self._stuck: dict[int, CallStuckError] = {}

    def sample(self, seconds: float) -> ProbeReport:
        """One sample, within `seconds`, of every device that answers; a stuck or lost one is among the failures.

        A device whose last call still hangs is not asked again, so that it costs one thread and holds nobody up.
        """
        try:
            # The first answer includes the driver's start, seconds where nothing keeps it loaded.
            self._session = self._session or call_within(_START_SECONDS, NvmlSession)
        except (pynvml.NVMLError, CallStuckError) as error:
            return _failed_report(error)
        samples, failures = [], []
        budget = TimeBudget(seconds)
        for index in range(self._session.device_count):
            try:
                samples.append(self._sample_one(index, budget))
            except (pynvml.NVMLError, CallStuckError, ValueError) as error:
                failures.append(_failure(index, error))
        return ProbeReport(
            vendor=VENDOR, source="nvml", outcome=ProbeOutcome.OK, samples=tuple(samples), failures=tuple(failures)
        )

    def _sample_one(self, index: int, budget: TimeBudget) -> DeviceSample:
        hanging = self._stuck.get(index)
        if hanging is not None and hanging.thread.is_alive():
            raise hanging
        self._stuck.pop(index, None)
        try:
            return _within_share(budget, partial(_sample_device, index))
        except CallStuckError as error:
            self._stuck[index] = error
            raise


def read_field(call: Callable[[], float | str | None]) -> Reading:
    """One reading: the call's value, or the state and error that tell why there is none. Never raises."""
    try:
        value = call()
    except pynvml.NVMLError as error:
        return absent(_STATES.get(error.value, FieldState.UNREADABLE), f"NVML {error.value}: {error}")
    except (AttributeError, ArgumentError, IndexError, OSError, TypeError, ValueError) as error:
        return absent(FieldState.UNREADABLE, f"{type(error).__name__}: {error}")
    if value is None or value in _NOT_AVAILABLE:
        return absent(FieldState.NOT_APPLICABLE, "NVML has no value")
    return ok(value)


def _within_share(budget: TimeBudget, function: Callable[[], T]) -> T:
    # Half of what is left, so that a device that hangs leaves time for the next.
    return call_within(min(_DEVICE_SECONDS, budget.left_seconds() / 2), function)


def _read_device(index: int, ecosystem: Ecosystem, readings: dict[str, Reading]) -> Device:
    """The record of one device; `readings` is filled on the way, for the case that a call never returns."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    for name, call in {**_identity_calls(handle), **_state_calls(handle)}.items():
        readings[name] = read_field(call)
    readings |= _signal_readings(handle)
    return build_device(index, readings, _nvlinks(handle), ecosystem)


def _sample_device(index: int) -> DeviceSample:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    identity = {name: text_of(read_field(call)) for name, call in _identity_calls(handle).items()}
    readings = _signal_readings(handle)
    return DeviceSample(
        identity=identity_of(index, identity["uuid"], identity["pci"]),
        readings={name: readings[name] for name in SIGNAL_READINGS},
    )


def _stuck_device(
    index: int, ecosystem: Ecosystem, readings: Mapping[str, Reading], error: CallStuckError
) -> Device | None:
    """The record of a device that named itself before a call hung, else None."""
    if text_of(readings.get("uuid")) is None and text_of(readings.get("pci")) is None:
        return None
    device = build_device(index, readings, (), ecosystem)
    if device.health is DeviceHealth.LOST:
        return device
    reason = clip(f"{ProbeOutcome.STUCK}: {error} after {len(readings)} readings")
    return device.model_copy(update={"health": DeviceHealth.UNKNOWN, "health_reason": reason})


def _identity_calls(handle: Handle) -> dict[str, Callable[[], Value]]:
    return {
        "uuid": lambda: pynvml.nvmlDeviceGetUUID(handle),
        "pci": lambda: normal_address(_text(pynvml.nvmlDeviceGetPciInfo(handle).busId)),
    }


def _state_calls(handle: Handle) -> dict[str, Callable[[], Value]]:
    return {
        "name": lambda: pynvml.nvmlDeviceGetName(handle),
        "serial": lambda: pynvml.nvmlDeviceGetSerial(handle),
        "board_part_number": lambda: pynvml.nvmlDeviceGetBoardPartNumber(handle),
        "vbios_version": lambda: pynvml.nvmlDeviceGetVbiosVersion(handle),
        "minor_number": lambda: pynvml.nvmlDeviceGetMinorNumber(handle),
        "compute_capability": lambda: ".".join(map(str, pynvml.nvmlDeviceGetCudaComputeCapability(handle))),
        "power_limit_w": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / _MILLI,
        "pcie_width": lambda: pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "pcie_max_width": lambda: pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
        "ecc_mode": lambda: _switch(pynvml.nvmlDeviceGetEccMode(handle)[0]),
        "ecc_uncorrectable_count": lambda: pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        ),
        "row_remap_pending": lambda: pynvml.nvmlDeviceGetRemappedRows(handle)[2],
        "row_remap_failure": lambda: pynvml.nvmlDeviceGetRemappedRows(handle)[3],
        "mig_mode": lambda: _switch(pynvml.nvmlDeviceGetMigMode(handle)[0]),
        "mig_max_count": lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle),
        "mig_profiles": lambda: list_makeable(handle) if os.geteuid() == 0 else None,  # only root may make them
        "recovery_action": lambda: _recovery_action(handle),
        "fabric_state": lambda: _fabric_state(handle),
    }


def _signal_readings(handle: Handle) -> dict[str, Reading]:
    readings = _memory_readings(handle)
    readings["utilization_ratio"] = read_field(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
    readings["power_w"] = read_field(lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / _MILLI)
    readings["temperature_c"] = read_field(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
    return readings


def _memory_readings(handle: Handle) -> dict[str, Reading]:
    """Total, reserved and used memory from one call, the older form of it where the driver is old."""
    figures: dict[str, int | None] = {}

    def ask() -> Value:
        try:
            answer = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_ArgumentVersionMismatch):
            answer = pynvml.nvmlDeviceGetMemoryInfo(handle)
        if answer.total == 0:
            raise ValueError("NVML says 0 bytes of memory")
        for name in ("total", "reserved", "used"):
            amount = getattr(answer, name, None)
            figures[name] = None if amount is None or amount in _NOT_AVAILABLE else amount // _MIB
        return figures["total"]

    total = read_field(ask)
    readings = {"memory_total_mib": total}
    for name in ("reserved", "used"):
        readings[f"memory_{name}_mib"] = read_field(partial(figures.get, name)) if figures else total
    readings["memory_utilization_ratio"] = memory_ratio(readings)
    return readings


def _nvlinks(handle: Handle) -> tuple[Link, ...]:
    """The NVLink ports that the device has, with the PCI address at the other end (a peer's or a switch's)."""
    links = []
    for number in range(pynvml.NVML_NVLINK_MAX_LINKS):
        active = read_field(partial(pynvml.nvmlDeviceGetNvLinkState, handle, number))
        if active.state is not FieldState.OK:
            break
        peer = read_field(partial(_far_end, handle, number))
        links.append(Link(kind="nvlink", peer=text_of(peer), state="up" if active.value else "down"))
    return tuple(links)


def _far_end(handle: Handle, link: int) -> Value:
    return normal_address(_text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId))


def _recovery_action(handle: Handle) -> Value:
    field = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(field.nvmlReturn)
    return _RECOVERY_ACTIONS[field.value.uiVal]


def _fabric_state(handle: Handle) -> Value:
    info = pynvml.c_nvmlGpuFabricInfoV_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    state = _FABRIC_STATES[info.state]
    return f"failed_{info.status}" if state == "completed" and info.status != pynvml.NVML_SUCCESS else state


def _switch(value: int) -> str:
    return "enabled" if value else "disabled"


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _failure(index: int, error: Exception) -> DeviceFailure:
    if isinstance(error, CallStuckError):
        return DeviceFailure(index=index, state=FieldState.UNREADABLE, error=clip(f"{ProbeOutcome.STUCK}: {error}"))
    code = getattr(error, "value", None)
    if not isinstance(code, int):
        return DeviceFailure(index=index, state=FieldState.UNREADABLE, error=clip(f"{type(error).__name__}: {error}"))
    return DeviceFailure(
        index=index, state=_STATES.get(code, FieldState.UNREADABLE), error=clip(f"NVML {code}: {error}")
    )


def _failed_report(error: Exception) -> ProbeReport:
    if isinstance(error, CallStuckError):
        return ProbeReport(vendor=VENDOR, source="nvml", outcome=ProbeOutcome.STUCK, error=clip(f"NVML: {error}"))
    code = getattr(error, "value", None)
    outcome = _OUTCOMES.get(code, ProbeOutcome.FAILED) if isinstance(code, int) else ProbeOutcome.FAILED
    return ProbeReport(vendor=VENDOR, source="nvml", outcome=outcome, error=clip(f"NVML {code}: {error}"))
