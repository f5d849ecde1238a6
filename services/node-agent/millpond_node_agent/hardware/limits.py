"""What the control groups around this process leave of the machine: a container on a large host offers its share only.

Both hierarchies are read. A limit may stand at any ancestor, so the whole path is walked and the smallest one wins.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from millpond_node_agent.hardware.sysfiles import count_in_list, list_folder, read_int, read_text

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The limits in force; None = not limited. `cpus` counts the processors that this process may run on."""

    cpu_milli: int | None = None
    cpus: int | None = None
    memory_mib: int | None = None


def read_limits(root: Path) -> GroupLimits:
    """The processor quota, processor set and memory limit around this process."""
    paths = _group_paths(root)
    unified = list(_folders(root, paths, ""))
    quotas = [*map(_quota_v1, _folders(root, paths, "cpu")), *map(_quota_v2, unified)]
    memory = [folder / "memory.limit_in_bytes" for folder in _folders(root, paths, "memory")]
    memory += [folder / "memory.max" for folder in unified]
    return GroupLimits(
        cpu_milli=_smallest(quotas),
        cpus=_allowed_cpus(root, paths),
        memory_mib=_smallest([_memory_mib(file) for file in memory]),
    )


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


def _smallest(values: list[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)
