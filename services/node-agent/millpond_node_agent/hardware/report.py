"""What a probe prints: one JSON document per run, so that the agent reads a vendor's answer without its library."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from millpond_contracts.ecosystem import Ecosystem
from millpond_contracts.resources import Device, FieldState, Reading, Text

_TEXT_LIMIT = 256
_VERSION_LIMIT = 64


class ProbeOutcome(StrEnum):
    """Why a vendor's library or tool did, or did not, answer."""

    OK = "ok"
    NO_LIBRARY = "no_library"  # no driver is installed: normal on a machine without the vendor's devices
    NO_DRIVER = "driver_not_loaded"
    MISMATCH = "driver_mismatch"  # the library was upgraded under a loaded kernel module; only a reboot mends it
    NO_PERMISSION = "no_permission"
    FAILED = "probe_failed"
    STUCK = "probe_stuck"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeviceFailure(_Document):
    """A device that the vendor's library counts and cannot open; its slot is not known to it."""

    index: int = Field(ge=0, le=1023)
    state: FieldState
    error: Text


class DeviceSample(_Document):
    """The second-by-second readings of one device, by signal name."""

    identity: Annotated[str, Field(min_length=1, max_length=128)]
    readings: dict[Text, Reading]


class ProbeReport(_Document):
    """One vendor's answer. `samples` is filled when signals were asked for, `devices` otherwise."""

    format: Literal["millpond.probe/v1"] = "millpond.probe/v1"
    vendor: Text
    source: Literal["nvml", "nvidia-smi", "none"]
    outcome: ProbeOutcome
    error: Text | None = None
    library_version: Text | None = None
    ecosystem: Ecosystem = Ecosystem()
    devices: tuple[Device, ...] = ()
    samples: tuple[DeviceSample, ...] = ()
    failures: tuple[DeviceFailure, ...] = ()


def ok(value: float | str) -> Reading:
    """A reading that has a value; text is cut to the length that the description language carries."""
    return Reading(state=FieldState.OK, value=value[:_TEXT_LIMIT] if isinstance(value, str) else value)


def absent(state: FieldState, error: str) -> Reading:
    """A reading without a value and the reason."""
    return Reading(state=state, error=clip(error))


def clip(text: str) -> str:
    """The text on one line, cut to the length that the description language carries."""
    return " ".join(text.split())[:_TEXT_LIMIT]


def number_of(reading: Reading | None) -> float | None:
    """The number of an `ok` reading, else None."""
    value = reading.value if reading is not None and reading.state is FieldState.OK else None
    return float(value) if isinstance(value, int | float) else None


def text_of(reading: Reading | None) -> str | None:
    """The text of an `ok` reading, else None."""
    value = reading.value if reading is not None and reading.state is FieldState.OK else None
    return value if isinstance(value, str) else None


def version_of(reading: Reading) -> str | None:
    """The version in an `ok` reading, cut to the length of a version in the description language, else None."""
    version = text_of(reading)
    return version[:_VERSION_LIMIT] if version else None


def memory_ratio(readings: Mapping[str, Reading]) -> Reading:
    """Used over usable memory (0 to 1) from the readings of total, reserved and used MiB."""
    total, used = number_of(readings.get("memory_total_mib")), number_of(readings.get("memory_used_mib"))
    if total is None or used is None:
        missing = readings["memory_used_mib" if total is not None else "memory_total_mib"]
        return absent(missing.state, missing.error or "not read")
    usable = total - (number_of(readings.get("memory_reserved_mib")) or 0)
    return ok(min(used / usable, 1.0)) if usable > 0 else absent(FieldState.UNREADABLE, "no usable memory reported")
