"""What the control groups around this process leave of the machine: a container on a large host offers its share only.

Both hierarchies are read. A limit may stand at any ancestor, so the whole path is walked and the smallest one wins.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from millpond_node_agent.hardware.sysfiles import count_in_list, list_folder, read_int, read_text

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The limits in force; None = not limited. `cpus` counts the processors that this process may run on.

    The folders are those of the groups that set the limits; their counters cover all that shares a limit.
    """

    cpu_milli: int | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    cpu_folder: Path | None = field(default=None, compare=False)
    memory_folder: Path | None = field(default=None, compare=False)


def read_limits(root: Path) -> GroupLimits:
    """The processor quota, processor set and memory limit around this process."""
    paths = _group_paths(root)
    unified = list(_folders(root, paths, ""))
    quotas = [(_quota_v1(folder), folder) for folder in _folders(root, paths, "cpu")]
    quotas += [(_quota_v2(folder), folder) for folder in unified]
    sizes = [(_memory_mib(folder / "memory.limit_in_bytes"), folder) for folder in _folders(root, paths, "memory")]
    sizes += [(_memory_mib(folder / "memory.max"), folder) for folder in unified]
    cpu_milli, cpu_folder = _tightest(quotas)
    memory_mib, memory_folder = _tightest(sizes)
    return GroupLimits(cpu_milli, _allowed_cpus(root, paths), memory_mib, cpu_folder, memory_folder)


def read_group_cpu_seconds(folder: Path) -> float | None:
    """The processor time that a group and its children have used."""
    for line in (read_text(folder / "cpu.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == "usage_usec" and value.isdigit():
            return int(value) / 1e6
    nanoseconds = read_int(folder / "cpuacct.usage")
    return None if nanoseconds is None else nanoseconds / 1e9


def read_group_memory_mib(folder: Path) -> float | None:
    """The memory that a group and its children hold, without file pages that the kernel would give up."""
    used = read_int(folder / "memory.current")
    stale = "inactive_file "
    if used is None:
        used, stale = read_int(folder / "memory.usage_in_bytes"), "total_inactive_file "
    if used is None:
        return None
    for line in (read_text(folder / "memory.stat") or "").splitlines():
        if line.startswith(stale) and line[len(stale) :].isdigit():
            used -= int(line[len(stale) :])
    return max(used, 0) / _MIB


def _group_paths(root: Path) -> dict[str, str]:
    """Controller -> path of this process's group; the unified hierarchy under the empty name."""
    paths: dict[str, str] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _folders(root: Path, paths: dict[str, str], controller: str) -> Iterator[Path]:
    """This process's group and its ancestors.

    Inside a container the path may be the host's, of which only the mount's top exists here: the container's own.
    """
    mounts = root / "sys/fs/cgroup"
    if controller:
        tops = [folder for folder in list_folder(mounts) if controller in folder.name.split(",")]
    else:
        tops = [mounts / "unified", mounts] if (mounts / "unified").is_dir() else [mounts]
    parts = [part for part in paths.get(controller, "/").split("/") if part not in ("", "..")]
    for top in tops:
        for depth in range(len(parts), -1, -1):
            folder = top.joinpath(*parts[:depth])
            if folder.is_dir():
                yield folder


def _quota_v1(folder: Path) -> int | None:
    quota, period = read_int(folder / "cpu.cfs_quota_us"), read_int(folder / "cpu.cfs_period_us")
    if quota is None or period is None or quota <= 0 or period <= 0:
        return None
    return quota * 1000 // period


def _quota_v2(folder: Path) -> int | None:
    fields = (read_text(folder / "cpu.max") or "").split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or int(fields[1]) == 0:
        return None
    return int(fields[0]) * 1000 // int(fields[1])


def _allowed_cpus(root: Path, paths: dict[str, str]) -> int | None:
    counts: list[int | None] = []
    for line in (read_text(root / "proc/self/status") or "").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            counts.append(count_in_list(line.partition(":")[2].strip()))
    for folder in _folders(root, paths, "cpuset"):
        counts.append(count_in_list(read_text(folder / "cpuset.cpus")))
    for folder in _folders(root, paths, ""):
        counts.append(count_in_list(read_text(folder / "cpuset.cpus.effective")))
    return _smallest(counts)


def _memory_mib(file: Path) -> int | None:
    # "max" of version 2 is not a number; version 1 writes a number near 2^63, which the machine's size cuts off later.
    limit = read_int(file)
    return limit // _MIB if limit is not None and limit >= 0 else None


def _tightest(limits: list[tuple[int | None, Path]]) -> tuple[int | None, Path | None]:
    known = [(limit, folder) for limit, folder in limits if limit is not None]
    return min(known, key=lambda pair: pair[0], default=(None, None))


def _smallest(values: list[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)
