"""One cgroup per task: v2 where its controllers are ours to use, else the v1 hierarchies, else none and a warning.

A task's handle (controller -> folder) is kept in its `run.json`, so a later agent finds the group whatever its own
cgroup is by then.
"""

import contextlib
import errno
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_FOLDER = "millpond"
_V2_NEEDED = ("cpu", "memory", "pids")
_V1_LIMITS = ("memory", "cpu", "pids")
_V1_OTHERS = ("freezer", "cpuacct")
_PERIOD_MICROS = 100_000
_SMALLEST_QUOTA_MICROS = 1_000  # the kernel refuses less
_REMOVE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one task may use; zero means unlimited."""

    cpu_milli: int
    memory_mib: int
    pids: int


@dataclass(frozen=True, slots=True)
class CgroupHost:
    """Where this machine lets us make cgroups: controller -> our parent folder (`unified` alone for v2)."""

    version: int
    parents: Mapping[str, Path]
    warnings: tuple[str, ...] = ()

    def create(self, name: str, limits: Limits) -> dict[str, str]:
        """The folders of a cgroup with these limits, made if needed.

        Raises:
            OSError: the kernel refused the folder or a limit; nothing is left behind.
        """
        folders: dict[str, str] = {}
        try:
            for controller, parent in self.parents.items():
                folder = parent / name
                folder.mkdir(exist_ok=True)
                folders[controller] = str(folder)
                _apply(controller, folder, limits)
        except OSError:
            remove_cgroup(folders)
            raise
        return folders


def remove_cgroup(folders: Mapping[str, str]) -> None:
    """Remove an empty cgroup and those below it.

    Raises:
        OSError: a process is still in it.
    """
    for folder in folders.values():
        for path, _, _ in os.walk(folder, topdown=False):
            _remove_folder(path)


def detect_cgroups(
    mountinfo: Path = Path("/proc/self/mountinfo"), membership: Path = Path("/proc/self/cgroup")
) -> CgroupHost:
    """What this machine offers to the present user; makes our parent folders on the way."""
    mounts = _mounts(mountinfo)
    own = _own_paths(membership)
    return _detect_v2(mounts, own) or _detect_v1(mounts, own) or CgroupHost(0, {}, (_none_warning(),))


def _none_warning() -> str:
    return "no writable cgroup: CPU, memory and process limits are not enforced, out-of-memory ends are not recognised"


def _mounts(mountinfo: Path) -> dict[str, Path]:
    """Controller -> mount point; `unified` for a v2 tree."""
    found: dict[str, Path] = {}
    with contextlib.suppress(OSError):
        for line in mountinfo.read_text().splitlines():
            before, _, after = line.partition(" - ")
            point, kind = Path(before.split()[4]), after.split()
            if kind[0] == "cgroup2":
                found.setdefault("unified", point)
            elif kind[0] == "cgroup":
                for controller in kind[-1].split(","):
                    if controller in _V1_LIMITS + _V1_OTHERS:
                        found.setdefault(controller, point)
    return found


def _own_paths(membership: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in membership.read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            for controller in controllers.split(",") if number != "0" else ["unified"]:
                found[controller] = path.lstrip("/")
    return found


def _detect_v2(mounts: Mapping[str, Path], own: Mapping[str, str]) -> CgroupHost | None:
    """The top of the tree when we may write it (root), else our own delegated cgroup."""
    if "unified" not in mounts:
        return None
    top = mounts["unified"]
    for place in (top, top / own.get("unified", "")):
        if not set(_V2_NEEDED) <= set(_words(place / "cgroup.controllers")):
            continue
        with contextlib.suppress(OSError):
            _delegate(place)
            parent = place / _FOLDER
            parent.mkdir(exist_ok=True)
            _delegate(parent)
            return CgroupHost(2, {"unified": parent})
    return None


def _delegate(place: Path) -> None:
    """Hand the controllers down to the children of `place`."""
    if set(_V2_NEEDED) <= set(_words(place / "cgroup.subtree_control")):
        return
    wanted = " ".join(f"+{controller}" for controller in _V2_NEEDED)
    try:
        (place / "cgroup.subtree_control").write_text(wanted)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        # A v2 cgroup with members of its own cannot hand controllers down: move them (us included) to a leaf.
        leaf = place / f"{_FOLDER}-agent"
        leaf.mkdir(exist_ok=True)
        for pid in _words(place / "cgroup.procs"):
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(pid)
        (place / "cgroup.subtree_control").write_text(wanted)


def _detect_v1(mounts: Mapping[str, Path], own: Mapping[str, str]) -> CgroupHost | None:
    parents: dict[str, Path] = {}
    for controller in _V1_LIMITS + _V1_OTHERS:
        if controller not in mounts:
            continue
        top = mounts[controller]
        for place in (top, top / own.get(controller, "")):
            parent = place / _FOLDER
            with contextlib.suppress(OSError):
                parent.mkdir(exist_ok=True)
            if os.access(parent, os.W_OK):
                parents[controller] = parent
                break
    if not parents:
        return None
    missing = [controller for controller in _V1_LIMITS if controller not in parents]
    warnings = tuple(f"cgroup v1 controller {name!r} is not writable: its limit is not enforced" for name in missing)
    return CgroupHost(1, parents, warnings)


def _apply(controller: str, folder: Path, limits: Limits) -> None:
    quota = max(_SMALLEST_QUOTA_MICROS, limits.cpu_milli * _PERIOD_MICROS // 1000)
    memory = limits.memory_mib << 20
    if controller in ("unified", "pids") and limits.pids:
        (folder / "pids.max").write_text(str(limits.pids))
    if controller == "unified":
        if limits.cpu_milli:
            (folder / "cpu.max").write_text(f"{quota} {_PERIOD_MICROS}")
            (folder / "cpu.weight").write_text(str(min(10_000, max(1, limits.cpu_milli // 10))))
        if memory:
            (folder / "memory.max").write_text(str(memory))
            _write_if_offered(folder / "memory.swap.max", "0")
    elif controller == "cpu" and limits.cpu_milli:
        (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_MICROS))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))
        (folder / "cpu.shares").write_text(str(max(2, limits.cpu_milli * 1024 // 1000)))
    elif controller == "memory" and memory:
        _apply_v1_memory(folder, memory)


def _apply_v1_memory(folder: Path, memory: int) -> None:
    current = folder / "memory.memsw.limit_in_bytes"
    # Memory with swap may never be the smaller one: lift it first when an earlier limit stands there.
    _write_if_offered(current, "-1")
    (folder / "memory.limit_in_bytes").write_text(str(memory))
    _write_if_offered(current, str(memory))


def _write_if_offered(path: Path, text: str) -> None:
    """Swap accounting is an option of the kernel; a machine without it has no such file."""
    if path.exists():
        with contextlib.suppress(OSError):
            path.write_text(text)


def _remove_folder(path: str) -> None:
    give_up = time.monotonic() + _REMOVE_SECONDS
    while True:
        try:
            os.rmdir(path)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            # The kernel lets go of the last member a moment after it is gone.
            if error.errno != errno.EBUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
