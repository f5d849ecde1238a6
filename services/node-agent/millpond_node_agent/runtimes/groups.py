"""All processes of one task, found, signalled and killed together: by cgroup where there is one, else by /proc.

Nothing leaves a group by forking, by a new session or by losing its parent. Both the launcher and the agent hold a
`TaskGroup` made from the same handle in `run.json`.
"""

import os
import signal
import time

from millpond_node_agent.runtimes.boottime import read_stat
from millpond_node_agent.runtimes.runfolder import Document

MARKER_VARIABLE = "MILLPOND_ALLOCATION_ID"
# A v1 task is a member of every hierarchy; any one tells the members, the freezer is never shared with others.
_MEMBERSHIP_ORDER = ("unified", "freezer", "pids", "memory", "cpu")
_FIRST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.1


class TaskGroup:
    """The processes of one task."""

    def __init__(self, handle: Document, launcher_pid: int | None = None) -> None:
        """Describe a group.

        Args:
            handle: `folders` (controller -> cgroup folder, empty without cgroups), `uid` (the task's own user, null
                when shared) and `marker` (the allocation id in its environment).
            launcher_pid: the living launcher, whose descendants all belong to the group.
        """
        self._folders: dict[str, str] = handle["folders"]
        self._uid: int | None = handle["uid"]
        self._marker = f"{MARKER_VARIABLE}={handle['marker']}".encode()
        self.launcher_pid = launcher_pid

    def join(self) -> None:
        """Move the calling process into the group."""
        for folder in self._folders.values():
            _write(f"{folder}/cgroup.procs", "0")

    def pids(self) -> list[int]:
        """The members that still live; zombies do not count, they hold nothing."""
        for controller in _MEMBERSHIP_ORDER:
            if controller in self._folders:
                return _cgroup_pids(self._folders[controller])
        return self._scan()

    def send(self, number: int) -> None:
        """Send the signal to every member."""
        for pid in self.pids():
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                continue

    def kill(self, patience_seconds: float) -> bool:
        """Kill every member; True once the group is empty, False when some outlived `patience_seconds`."""
        give_up = time.monotonic() + patience_seconds
        pause = _FIRST_PAUSE_SECONDS
        while self.pids():
            self._kill_all()
            if time.monotonic() > give_up:
                return not self.pids()
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        return True

    def oom_kills(self) -> int:
        """How many members the kernel killed for want of memory, by the cgroup's own counter."""
        for controller, name in (("unified", "memory.events"), ("memory", "memory.oom_control")):
            if controller in self._folders:
                return _keyed(f"{self._folders[controller]}/{name}").get("oom_kill", 0)
        return 0

    def usage(self) -> tuple[int | None, int | None]:
        """CPU milliseconds used and the peak of memory in MiB; None where no cgroup tells."""
        if "unified" in self._folders:
            folder = self._folders["unified"]
            micros = _keyed(f"{folder}/cpu.stat").get("usage_usec")
            peak = _number(f"{folder}/memory.peak")
        else:
            nanos = _number(f"{self._folders.get('cpuacct', '')}/cpuacct.usage")
            micros = None if nanos is None else nanos // 1000
            peak = _number(f"{self._folders.get('memory', '')}/memory.max_usage_in_bytes")
        return (None if micros is None else micros // 1000, None if peak is None else peak >> 20)

    def _kill_all(self) -> None:
        if "unified" in self._folders and _write_if_there(f"{self._folders['unified']}/cgroup.kill", "1"):
            return
        # Frozen members cannot fork away from the list that is being killed.
        self._freeze(True)
        self.send(signal.SIGKILL)
        self._freeze(False)

    def _freeze(self, frozen: bool) -> None:
        if "unified" in self._folders:
            _write_if_there(f"{self._folders['unified']}/cgroup.freeze", "1" if frozen else "0")
        elif "freezer" in self._folders:
            _write_if_there(f"{self._folders['freezer']}/freezer.state", "FROZEN" if frozen else "THAWED")

    def _scan(self) -> list[int]:
        """Members without a cgroup: own user, or marked environment, or descendants of the launcher."""
        parents: dict[int, int] = {}
        found: set[int] = set()
        for name in os.listdir("/proc"):
            stat = read_stat(int(name)) if name.isdigit() else None
            if stat is None or stat[0] in "ZX":
                continue
            pid = int(name)
            parents[pid] = int(stat[1])
            if self._is_marked(pid):
                found.add(pid)
        for pid in parents:
            if self.launcher_pid is not None and _descends(pid, self.launcher_pid, parents):
                found.add(pid)
        return sorted(found - {os.getpid(), self.launcher_pid})

    def _is_marked(self, pid: int) -> bool:
        try:
            if self._uid is not None:
                return _real_uid(pid) == self._uid
            with open(f"/proc/{pid}/environ", "rb") as file:
                return self._marker in file.read().split(b"\0")
        except OSError:
            return False


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    seen = 0
    while pid in parents and seen <= len(parents):
        pid, seen = parents[pid], seen + 1
        if pid == ancestor:
            return True
    return False


def _real_uid(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("Uid:"):
                return int(line.split()[1])
    return -1


def _cgroup_pids(folder: str) -> list[int]:
    pids: list[int] = []
    for path, _, _ in os.walk(folder):
        try:
            with open(f"{path}/cgroup.procs", encoding="ascii") as file:
                pids.extend(int(line) for line in file)
        except OSError:
            continue
    return [pid for pid in pids if pid > 0]


def _keyed(path: str) -> dict[str, int]:
    try:
        with open(path, encoding="ascii") as file:
            pairs = [line.split() for line in file]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _write_if_there(path: str, text: str) -> bool:
    try:
        _write(path, text)
    except OSError:
        return False
    return True
