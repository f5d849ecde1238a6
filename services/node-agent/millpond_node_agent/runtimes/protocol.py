"""What the agent asks of a runtime, and the values exchanged; every runtime implements `Runtime`.

Life of one run, named by its allocation: `prepare` -> `start` -> `status` … -> `stop` or its own end -> `collect` ->
`remove`. All state survives the agent: `list_runs` after a restart tells what to adopt. Every operation may be
repeated; a repeated one changes nothing.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class RefusalCode(StrEnum):
    """Why a task cannot run here: a closed list."""

    IMAGE_WITHOUT_RUNTIME = "image_without_runtime"
    SIMULATED = "simulated"
    NOT_SIMULATED = "not_simulated"
    BAD_IDENTITY = "bad_identity"
    BAD_COMMAND = "bad_command"
    BAD_ENVIRONMENT = "bad_environment"
    BAD_LIMITS = "bad_limits"
    UNKNOWN_DEVICE = "unknown_device"
    ABSENT_DEVICE = "absent_device"
    MIXED_DEVICES = "mixed_devices"
    NO_PARTITION = "no_partition"
    NO_SPACE = "no_space"
    NO_FREE_USER = "no_free_user"
    GROUP_UNAVAILABLE = "group_unavailable"
    START_FAILED = "start_failed"


class RefusedTask(Exception):
    """The task cannot run on this machine; nothing of it was left behind."""

    def __init__(self, code: RefusalCode, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class RunNotFound(LookupError):
    """No run with this allocation id is known here."""


class GroupNotEmpty(Exception):
    """Processes of the task outlived every attempt to kill them, so its devices are still held."""


@dataclass(frozen=True, slots=True)
class PartitionGrant:
    """A hardware partition: its profile, and the memory slices that are its own, from `start` on."""

    profile: str
    start: int
    slices: int


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """A share of one device. `milli` of 1000 is the whole device; `memory_mib` None = not bounded."""

    identity: str
    vendor: str
    index: int
    uuid: str | None
    milli: int
    memory_mib: int | None
    partition: PartitionGrant | None = None


@dataclass(frozen=True, slots=True)
class TaskTerms:
    """What one attempt of a task was given, all of which may be written down.

    `cpu_milli` and `memory_mib` of 0 mean no limit.
    """

    allocation_id: str
    job_id: str
    task_id: str
    tenant_id: str
    attempt: int
    epoch: int
    cpu_milli: int
    memory_mib: int
    devices: tuple[DeviceGrant, ...]
    stop_grace_seconds: float


@dataclass(frozen=True, slots=True)
class Simulation:
    """How a simulated task goes: active for `seconds`, then the exit code; `stop_seconds` from a stop to its end.

    `signals`: name -> points of (seconds since it is active, value), in order of time.
    """

    seconds: float
    exit_code: int
    stop_seconds: float
    signals: Mapping[str, tuple[tuple[float, float], ...]]


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One attempt of a task, as assigned. With `simulation` it is acted out, never executed.

    Command and environment may hold secrets: neither is shown, logged or written to disk.
    """

    terms: TaskTerms
    command: tuple[str, ...] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    image: str | None
    time_limit_seconds: int | None
    simulation: Simulation | None = None

    @property
    def allocation_id(self) -> str:
        """What the run is named by."""
        return self.terms.allocation_id


class TaskState(StrEnum):
    """What is known of a run."""

    PREPARED = "prepared"  # nothing was started yet
    STARTING = "starting"  # launched, the command has not taken over yet
    RUNNING = "running"
    EXITED = "exited"  # ended, and no process of it is left
    UNKNOWN = "unknown"  # its supervisor is gone; processes may be left: stop it to be sure


class StopReason(StrEnum):
    """Why a run was ended from outside."""

    REQUESTED = "requested"
    TIME_LIMIT = "time_limit"
    LEASE_EXPIRED = "lease_expired"


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The state of a run. Instants are milliseconds of `boottime.monotonic_ms`, valid within `boot_id` only.

    `active` is when the command took over (None: it never did), `ended` when the main process was gone, `empty` when
    the last process of the group was. `message` says why a start failed, or what is not known.
    """

    state: TaskState
    boot_id: str
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    stop_reason: StopReason | None = None
    message: str | None = None
    started_monotonic_ms: int | None = None
    active_monotonic_ms: int | None = None
    ended_monotonic_ms: int | None = None
    empty_monotonic_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A run of this machine: what is kept of its `TaskSpec`, and how it stands."""

    terms: TaskTerms
    status: TaskStatus

    @property
    def allocation_id(self) -> str:
        """What the run is named by."""
        return self.terms.allocation_id


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Bytes of the log from `offset`, counted over everything printed. `cut`: what lies just before was dropped."""

    offset: int
    data: bytes
    cut: bool

    @property
    def next_offset(self) -> int:
        """Where the next chunk begins."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class Collected:
    """What a run leaves: how it ended, what it used, how much it printed (`log_cut_bytes` of it not kept)."""

    status: TaskStatus
    cpu_ms: int | None
    peak_memory_mib: int | None
    log_bytes: int
    log_cut_bytes: int


@dataclass(frozen=True, slots=True)
class RuntimeReport:
    """What a runtime can promise here. `isolation` is `user` or `none`, `limits` is `v2`, `v1` or `none`."""

    name: str
    isolation: str
    limits: str
    warnings: tuple[str, ...]


class EndWatch(Protocol):
    """Sets an event at the end of a run, or a little before it is over."""

    has_ended: bool

    def close(self) -> None:
        """Stop watching."""
        ...


class Runtime(Protocol):
    """Runs tasks. All methods raise `RunNotFound` for an allocation that was never prepared or is removed."""

    def report(self) -> RuntimeReport:
        """What this runtime can promise on this machine."""
        ...

    async def prepare(self, spec: TaskSpec) -> None:
        """Set up everything the task needs, start nothing.

        Raises:
            RefusedTask: it cannot run here, with a code of the closed list.
        """
        ...

    async def start(self, spec: TaskSpec) -> TaskStatus:
        """Start the prepared task; a task that was started before is left as it is.

        Returns:
            Its state: running, or exited already (also when the command could not be executed: code 126 or 127).

        Raises:
            RefusedTask: `start_failed`, the machine could not even try; `stop` and `remove` what was prepared.
        """
        ...

    async def status(self, allocation_id: str) -> TaskStatus:
        """What is known of the run now."""
        ...

    def watch(self, allocation_id: str, status: TaskStatus, event: asyncio.Event) -> EndWatch | None:
        """Sets `event` once the run ends; None when there is nothing to watch yet."""
        ...

    async def signal(self, allocation_id: str, number: int) -> bool:
        """Send a signal to the main process of the task; False when it is not running."""
        ...

    async def stop(self, allocation_id: str, grace_seconds: float) -> TaskStatus:
        """End the run: SIGTERM to all its processes, SIGKILL after the grace; returns when the group is empty.

        Raises:
            GroupNotEmpty: some process cannot be killed; repeat later.
        """
        ...

    async def collect(self, allocation_id: str) -> Collected:
        """What the run used and left; complete once it exited."""
        ...

    async def read_log(self, allocation_id: str, offset: int, limit: int) -> LogChunk:
        """At most `limit` bytes of what the task printed, from `offset` or the next kept byte; empty at the end."""
        ...

    async def remove(self, allocation_id: str) -> None:
        """Forget an ended run: its folders, log, cgroup and user.

        Raises:
            GroupNotEmpty: it has not ended.
        """
        ...

    async def list_runs(self) -> list[Run]:
        """All runs on this machine, oldest first."""
        ...

    async def extend_lease(self, deadline_monotonic_ms: int, kill_monotonic_ms: int) -> None:
        """Let tasks run until this instant of this boot; past it they are stopped even if the agent is dead.

        Their own grace counts from the deadline on, but at `kill_monotonic_ms` they are killed whatever it is.
        """
        ...
