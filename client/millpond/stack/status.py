"""What a supervisor says about its processes, as a JSON file that anyone of the stack may read."""

import json
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from millpond.stack.processes import ProcessState


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process at one moment.

    Attributes:
        name: As in its specification.
        state: Where it stands.
        pid: Its process id; None when it does not run.
        since: When it entered this state.
        restarts: How often it was started again.
        last_exit: How it last ended: an exit code, or minus the number of a signal; None when it never did.
        log_file: Where its output goes.
    """

    name: str
    state: ProcessState
    pid: int | None
    since: datetime
    restarts: int
    last_exit: int | None
    log_file: Path


@dataclass(frozen=True, slots=True)
class StackStatus:
    """All processes of a stack at one moment.

    `booted_seconds` = what this machine had counted since its boot at `started_at`; no change of the clock touches it.
    """

    supervisor_pid: int
    started_at: datetime
    processes: tuple[ProcessStatus, ...]
    booted_seconds: float | None = None

    def clock_moved_seconds(self) -> float:
        """By how much the wall clock was moved forward since the stack started; 0 when it is not known."""
        if self.booted_seconds is None:
            return 0.0
        counted = time.clock_gettime(time.CLOCK_BOOTTIME) - self.booted_seconds
        return (datetime.now(UTC) - self.started_at).total_seconds() - counted

    def find(self, name: str) -> ProcessStatus | None:
        """Finds a process by name."""
        return next((process for process in self.processes if process.name == name), None)


def write_status(status: StackStatus, status_file: Path) -> None:
    """Replaces the status file in one step, so that a reader never sees half of it."""
    draft = status_file.with_suffix(".new")
    draft.write_text(json.dumps(asdict(status), default=str, indent=1), encoding="utf-8")
    draft.replace(status_file)


def read_status(status_file: Path) -> StackStatus | None:
    """Reads what a supervisor last wrote; None when it never did.

    It may be out of date after the supervisor was killed: `lock.find_supervisor` says whether one runs.
    """
    try:
        document = json.loads(status_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return StackStatus(
        supervisor_pid=document["supervisor_pid"],
        started_at=datetime.fromisoformat(document["started_at"]),
        booted_seconds=document.get("booted_seconds"),
        processes=tuple(
            ProcessStatus(
                name=entry["name"],
                state=ProcessState(entry["state"]),
                pid=entry["pid"],
                since=datetime.fromisoformat(entry["since"]),
                restarts=entry["restarts"],
                last_exit=entry["last_exit"],
                log_file=Path(entry["log_file"]),
            )
            for entry in document["processes"]
        ),
    )
