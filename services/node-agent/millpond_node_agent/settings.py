"""What one agent needs to know before it starts, and the exit codes with which it says why it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

VERSION = "0.1.0"


class ExitCode(IntEnum):
    """Why the agent ended; 2 is left to the argument parser."""

    OK = 0
    FAILED = 1
    NOT_JOINED = 3
    REFUSED = 4
    IN_USE = 5
    SUPERSEDED = 6


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Where one agent keeps its things, how it is called, and its periods.

    `state_dir` is private to the agent (key, spool, run folders, logs); tasks pass through `work_dir` to their own
    folder. `url` and `token` are needed to join; later the state folder remembers the address.
    """

    state_dir: Path
    work_dir: Path
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    stop_tasks: bool = False
    sample_seconds: float = 1.0
    inventory_seconds: float = 60.0
    poll_seconds: float = 10.0
    log_push_seconds: float = 1.0
    ready_retry_seconds: float = 15.0
    minimum_free_mib: int = 256
