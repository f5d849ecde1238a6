"""Keeps tasks apart: a user of its own for each, private folders, an environment with nothing of the agent's.

As root every task runs under its own number from a range that belongs to nobody; as an ordinary user all tasks share
that user and the node says so (`none`). Source: decision 18.
"""

import contextlib
import os
import re
import shutil
import stat
import subprocess
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import millpond_node_agent
from millpond_node_agent.runtimes.protocol import RefusalCode, RefusedTask, TaskSpec
from millpond_node_agent.runtimes.visibility import visible_devices

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_RESERVED = "MILLPOND_"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LARGEST_ENVIRONMENT_BYTES = 1 << 20
_PROBE_SECONDS = 10
# CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID, CAP_SETUID: Linux capability numbers, capability.h
_NEEDED_CAPABILITIES = (0, 1, 5, 6, 7)


@dataclass(frozen=True, slots=True)
class UserRange:
    """User numbers reserved for tasks: `first` to `first + count - 1`."""

    first: int
    count: int


# Above everything that systemd, container engines and distributions hand out; the second fits a container whose
# user namespace holds 65,536 numbers (systemd's table of ranges leaves it free).
USER_RANGES = (UserRange(1_900_000_000, 10_000), UserRange(60_600, 500))


@dataclass(frozen=True, slots=True)
class TaskFolders:
    """The folders of one task below its private `root`: home and working directory, scratch, and the contract's two."""

    root: Path

    @property
    def work(self) -> Path:
        """Where the command runs; also its HOME."""
        return self.root / "work"

    @property
    def scratch(self) -> Path:
        """TMPDIR."""
        return self.root / "tmp"

    @property
    def control(self) -> Path:
        """Requests to the task and its answers."""
        return self.root / "control"

    @property
    def checkpoint(self) -> Path:
        """Where the task saves its progress."""
        return self.root / "checkpoint"

    def make(self, uid: int | None) -> None:
        """Make the folders, closed to everybody but `uid` (None: the present user)."""
        for folder in (self.root, self.work, self.scratch, self.control, self.checkpoint):
            folder.mkdir(mode=0o700, exist_ok=True)
            if uid is not None:
                os.chown(folder, uid, uid, follow_symlinks=False)

    def remove(self) -> None:
        """Remove everything, whatever modes the task left."""
        if os.geteuid() != 0:
            _open_folders(self.root)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.root)


def detect_user_range(
    uid_map: Path = Path("/proc/self/uid_map"), status: Path = Path("/proc/self/status")
) -> UserRange | None:
    """The range for tasks when this process may change users, else None."""
    if os.geteuid() != 0 or not _has_capabilities(status):
        return None
    for candidate in USER_RANGES:
        for line in uid_map.read_text().splitlines():
            inside, _, count = (int(word) for word in line.split())
            if inside <= candidate.first and candidate.first + candidate.count <= inside + count:
                return candidate
    return None


@cache
def can_hide_processes(python: str) -> bool:
    """Whether tasks can be kept from seeing the processes of others here; tried once, in a child."""
    if os.geteuid() != 0:
        return False
    imports = str(Path(millpond_node_agent.__file__).parent.parent)
    code = f"import sys; sys.path.append({imports!r}); from millpond_node_agent.runtimes.hiding import probe; probe()"
    command = [python, "-E", "-s", "-S", "-c", code]
    try:
        return subprocess.run(command, capture_output=True, timeout=_PROBE_SECONDS, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


class UserPool:
    """Hands out user numbers in turn, so that a number rests as long as possible before it is used again."""

    def __init__(self, users: UserRange, cursor: Path) -> None:
        self._users = users
        self._cursor = cursor
        self._lock = threading.Lock()

    def take(self, used: Collection[int]) -> int:
        """A number that no run on this machine uses.

        Raises:
            RefusedTask: `no_free_user`.
        """
        with self._lock:
            turn = self._read()
            for step in range(self._users.count):
                uid = self._users.first + (turn + step) % self._users.count
                if uid not in used:
                    self._cursor.write_text(str((turn + step + 1) % self._users.count))
                    return uid
        raise RefusedTask(RefusalCode.NO_FREE_USER, f"all {self._users.count} task users are taken")

    def _read(self) -> int:
        try:
            return int(self._cursor.read_text())
        except (FileNotFoundError, ValueError):
            return 0


def task_environment(spec: TaskSpec, folders: TaskFolders) -> dict[str, str]:
    """The whole environment of a task: defaults, then the job's own, then what it may not change.

    Raises:
        RefusedTask: `bad_environment`, or what `visible_devices` refuses.
    """
    _check_environment(spec.env)
    return {
        "PATH": _PATH,
        "HOME": str(folders.work),
        "TMPDIR": str(folders.scratch),
        "LANG": "C.UTF-8",
        **spec.env,
        **visible_devices(spec.terms.devices),
        "MILLPOND_JOB_ID": spec.terms.job_id,
        "MILLPOND_TASK_ID": spec.terms.task_id,
        "MILLPOND_ALLOCATION_ID": spec.allocation_id,
        "MILLPOND_ATTEMPT": str(spec.terms.attempt),
        "MILLPOND_CONTROL_DIR": str(folders.control),
        "MILLPOND_CHECKPOINT_DIR": str(folders.checkpoint),
        "MILLPOND_GRACE_S": f"{spec.terms.stop_grace_seconds:g}",
    }


def unreachable_parent(folder: Path) -> Path | None:
    """The outermost folder on the way to `folder` that a stranger may not pass, None when the way is free."""
    for parent in reversed(folder.resolve().parents):
        if not parent.stat().st_mode & stat.S_IXOTH:
            return parent
    return None


def _check_environment(env: Mapping[str, str]) -> None:
    # What is refused becomes an event, so that neither names nor values are told.
    for name, value in env.items():
        if not _NAME.match(name):
            raise RefusedTask(RefusalCode.BAD_ENVIRONMENT, "a variable's name is none")
        if name.startswith(_RESERVED):
            raise RefusedTask(
                RefusalCode.BAD_ENVIRONMENT, f"a variable's name begins with {_RESERVED}, which is reserved"
            )
        if "\0" in value:
            raise RefusedTask(RefusalCode.BAD_ENVIRONMENT, "the value of a variable holds a NUL byte")
    if (
        sum(len(name) + len(value.encode(errors="surrogatepass")) for name, value in env.items())
        > _LARGEST_ENVIRONMENT_BYTES
    ):
        raise RefusedTask(RefusalCode.BAD_ENVIRONMENT, f"larger than {_LARGEST_ENVIRONMENT_BYTES} bytes")


def _has_capabilities(status: Path) -> bool:
    for line in status.read_text().splitlines():
        if line.startswith("CapEff:"):
            effective = int(line.split()[1], 16)
            return all(effective >> number & 1 for number in _NEEDED_CAPABILITIES)
    return False


def _open_folders(root: Path) -> None:
    """Give ourselves back the folders that a task of the same user closed, or they cannot be removed."""
    with contextlib.suppress(FileNotFoundError):
        root.chmod(0o700)
    for path, folders, _ in os.walk(root):
        for name in folders:
            folder = os.path.join(path, name)
            if not os.path.islink(folder):
                os.chmod(folder, 0o700)
