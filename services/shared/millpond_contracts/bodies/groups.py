"""A group of a job: what each of its tasks holds, demands, prefers and runs."""

import re
from enum import StrEnum
from typing import Annotated

from pydantic import (
    AfterValidator,
    Field,
    StrictInt,
    StringConstraints,
    ValidationInfo,
    field_validator,
    model_validator,
)

from millpond_contracts.bodies.places import AntiAffinity, NodeAffinity, TopologySpread
from millpond_contracts.bodies.shapes import Incoming
from millpond_contracts.ecosystem import EcosystemRequirement
from millpond_contracts.partitions import list_profile_names
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI, Count, CpuMilli, DeviceMilli, Labels, MemoryMib, Name
from millpond_contracts.resources import DeviceKind, Text, TopologyLevel

_AT_LEAST = re.compile(r"^>=\s*(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?$")


def _check_minimum(text: str) -> str:
    if not _AT_LEAST.match(text):
        raise ValueError(f"expected a minimum such as '>=300', found {text[:40]!r}")
    return text


Minimum = Annotated[str, StringConstraints(max_length=32), AfterValidator(_check_minimum)]
AttributeName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,64}$")]


def minimum_value(text: str) -> float:
    """The number in a minimum such as `>=300`."""
    return float(text.removeprefix(">=").strip())


class DeviceRequest(Incoming):
    """Devices of one task. `milli` = share of each device in thousandths; a share below 1000 needs `count` 1.

    `memory_mib` bounds the slice of a shared device, or is the least memory of a whole one.
    `flavors` names acceptable flavors; none named = every flavor of the kind that meets the requirements.
    `profile` asks for one hardware partition (MIG) instead, such as `2g.20gb`: it alone says how much of the device.
    """

    kind: DeviceKind = DeviceKind.GPU
    count: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    milli: Annotated[DeviceMilli, Field(ge=1, le=WHOLE_DEVICE_MILLI)] = WHOLE_DEVICE_MILLI
    memory_mib: Annotated[MemoryMib, Field(ge=1)] | None = None
    flavors: Annotated[tuple[Name, ...], Field(max_length=32)] = ()
    profile: Text | None = None

    @field_validator("profile")
    @classmethod
    def _known_profile(cls, profile: str | None, info: ValidationInfo) -> str | None:
        if profile is None:
            return None
        if profile not in list_profile_names():
            raise ValueError(f"no model of the accelerator catalogue has the partition profile {profile[:40]!r}")
        if info.data.get("count", 1) != 1:
            raise ValueError("a task gets one partition, count 1; ask for several tasks instead")
        if info.data.get("milli", WHOLE_DEVICE_MILLI) != WHOLE_DEVICE_MILLI or info.data.get("memory_mib") is not None:
            raise ValueError("a profile says how much of the device it is: leave out milli and memory_mib")
        return profile

    @model_validator(mode="after")
    def _fraction_of_one(self) -> "DeviceRequest":
        if self.milli < WHOLE_DEVICE_MILLI and self.count != 1:
            raise ValueError("a fraction of a device needs count 1; ask for several tasks instead")
        return self


class Resources(Incoming):
    """What one task holds while it runs."""

    cpu_milli: Annotated[CpuMilli, Field(ge=1)]
    memory_mib: Annotated[MemoryMib, Field(ge=1)]
    devices: Annotated[tuple[DeviceRequest, ...], Field(max_length=1)] = ()


def _is_absent(value: object) -> bool:
    """What was not asked for is not written: a version before that knew no such word can read the job."""
    return not value


class Requirements(Incoming):
    """Hard demands on a node and its place; unknown counts as unfit unless `allow_unknown` (never of a place).

    `pack` is of gangs: all tasks of the groups that ask for it stand in one domain of that level.
    """

    attributes: Annotated[dict[AttributeName, Minimum], Field(max_length=16)] = Field(default_factory=dict)
    ecosystem: EcosystemRequirement = Field(default_factory=EcosystemRequirement)
    labels: Labels = Field(default_factory=dict)
    arch: Annotated[tuple[Text, ...], Field(max_length=8)] = ()
    allow_unknown: bool = False
    affinity: Annotated[tuple[NodeAffinity, ...], Field(max_length=16)] = Field((), exclude_if=_is_absent)
    anti_affinity: Annotated[tuple[AntiAffinity, ...], Field(max_length=8)] = Field((), exclude_if=_is_absent)
    spread: Annotated[tuple[TopologySpread, ...], Field(max_length=8)] = Field((), exclude_if=_is_absent)
    pack: TopologyLevel | None = Field(None, exclude_if=_is_absent)


class Toleration(Incoming):
    """Accepts nodes with the taint `key` (any value when `value` is null)."""

    key: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._/-]{0,62}$")]
    value: str | None = Field(None, max_length=128)


EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
EnvValue = Annotated[str, StringConstraints(max_length=32_768, pattern=r"^[^\x00]*$")]
Argument = Annotated[str, StringConstraints(max_length=131_072, pattern=r"^[^\x00]*$")]


class CurvePoint(Incoming):
    """A point of a signal's curve: between two points it is a straight line, before and after them level."""

    at_seconds: float = Field(ge=0, le=31_536_000)
    value: float = Field(ge=0, le=1e15, allow_inf_nan=False)


SignalName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]{1,64}$")]
Curve = Annotated[tuple[CurvePoint, ...], Field(min_length=1, max_length=64)]


class SimulateSpec(Incoming):
    """A task that a simulated node acts out and no real node takes: it holds what it asks for and computes nothing.

    It is active for `seconds` and ends with `exit_code`. Told to stop, it takes `stop_seconds`, or is killed at the end
    of its grace. `signals` are curves over its active time: of its devices (`utilization_ratio`, …), else its own.
    """

    seconds: float = Field(10.0, ge=0, le=31_536_000)
    exit_code: StrictInt = Field(0, ge=0, le=255)
    stop_seconds: float = Field(0.0, ge=0, le=86_400)
    signals: Annotated[dict[SignalName, Curve], Field(max_length=16)] = Field(default_factory=dict)


class RunSpec(Incoming):
    """What to execute. With `image` null the command runs as a process on the node.

    With `simulate` the task runs on simulated nodes only, and a command may be left out.
    """

    command: Annotated[tuple[Argument, ...], Field(max_length=1024)] = ()
    image: Annotated[str, StringConstraints(min_length=1, max_length=512)] | None = None
    env: Annotated[dict[EnvName, EnvValue], Field(max_length=256)] = Field(default_factory=dict)
    simulate: SimulateSpec | None = None

    @model_validator(mode="after")
    def _something_to_do(self) -> "RunSpec":
        if not self.command and self.simulate is None:
            raise ValueError("give a command, or say how to simulate it")
        return self

    @model_validator(mode="after")
    def _reserved_names(self) -> "RunSpec":
        reserved = sorted(name for name in self.env if name.startswith("MILLPOND_"))
        if reserved:
            raise ValueError(f"names from MILLPOND_ on are reserved for Millpond itself, found {reserved[0]}")
        return self


MAX_GANG = 1000


class TaskKind(StrEnum):
    """What a task does with its device: which attributes count, by weights that an operator may change."""

    GENERAL = "general"
    TRAINING = "training"
    INFERENCE = "inference"
    IO = "io"


class Preferences(Incoming):
    """Soft wishes: of the nodes that may take a task, the nearest to its needs takes it; nothing is excluded.

    `pack` is of gangs: together in one domain of that level if one has room, else of the next wider, else anywhere.
    """

    task_kind: TaskKind = TaskKind.GENERAL
    pack: TopologyLevel | None = Field(None, exclude_if=_is_absent)


class GroupSpec(Incoming):
    """`count` identical tasks. They start independently of one another, or with `gang` all together or not at all.

    All groups of a job with `gang` are one gang: each of them has all its tasks, or none of them starts.
    Of a gang no part is left running: when a task of it is stopped or ends without success, the others are stopped
    too, and all of them wait again together where the retry policy says so.
    With `after` the tasks wait until every task of those groups (of their whole gang) has succeeded, and are ended
    where one of them did not; groups that wait for none of one another start in parallel.
    """

    name: Name = "main"
    count: Annotated[Count, Field(le=10_000)] = 1
    gang: bool = False
    after: Annotated[tuple[Name, ...], Field(max_length=16)] = ()
    resources: Resources
    requires: Requirements = Field(default_factory=Requirements)
    prefers: Preferences = Field(default_factory=Preferences)
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=16)] = ()
    run: RunSpec
    stop_grace_seconds: StrictInt = Field(10, ge=0, le=3600)

    @model_validator(mode="after")
    def _packed_together(self) -> "GroupSpec":
        for name, level in (("requires.pack", self.requires.pack), ("prefers.pack", self.prefers.pack)):
            if level is not None and not self.gang:
                raise ValueError(f"{name} is of gangs: the tasks of a group are packed when they start together")
        if self.requires.pack is not None and self.count > 1:
            levels = list(TopologyLevel)
            for each in self.requires.anti_affinity:
                if not each.labels and levels.index(each.level) <= levels.index(self.requires.pack):
                    raise ValueError(
                        f"requires.pack {self.requires.pack} contradicts requires.anti_affinity {each.level}"
                    )
        return self
