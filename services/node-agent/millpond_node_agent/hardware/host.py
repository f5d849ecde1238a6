"""The machine around the accelerators: processors, memory, disks, networks, kernel, and what of it may be offered."""

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from millpond_contracts.resources import Cpu, Network, Storage
from millpond_node_agent.hardware.cpus import HostUnreadableError, read_cpu
from millpond_node_agent.hardware.limits import GroupLimits, read_limits
from millpond_node_agent.hardware.sysfiles import list_folder, read_int, read_table, read_text

_KIB_PER_MIB = 1024
_SECTOR_BYTES = 512
_GIB = 1024**3
_MEGABITS_PER_GIGABYTE = 8000

# Memory disks, loop devices, optical drives and layers over other disks are not storage of their own.
_NOT_A_DISK = re.compile(r"^(loop|ram|zram|sr|fd|dm-|md|nbd)")
_SHARED_FILESYSTEMS = frozenset(
    ("nfs", "nfs4", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "cifs", "fuse.juicefs")
)
_INFINIBAND_TYPE = 32


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What is known of a machine without its accelerators.

    `memory_mib` is the machine's own; the allocatable amounts are what jobs may get, within the control group's limits
    and after the system's share (`system_share`).
    """

    boot_id: str
    hostname: str | None
    os: str | None
    kernel: str | None
    cpu: Cpu
    memory_mib: int
    allocatable_cpu_milli: int
    allocatable_memory_mib: int
    storage: tuple[Storage, ...]
    network: tuple[Network, ...]


@dataclass(frozen=True, slots=True)
class SystemShare:
    """What stays with the kernel, this agent and the daemons of a machine."""

    cpu_milli: int
    memory_mib: int


def system_share(cpu_milli: int, memory_mib: int) -> SystemShare:
    """The system's part of an offer: 5 % of each, cpu between 100 and 2,000 milli, memory between 512 MiB and 16 GiB.

    Small machines keep at least half for jobs.
    """
    return SystemShare(
        cpu_milli=min(max(cpu_milli // 20, 100), 2000, cpu_milli // 2),
        memory_mib=min(max(memory_mib // 20, 512), 16_384, memory_mib // 2),
    )


def read_host(root: Path, *, data_folder: Path | None = None, coherent_accelerator: bool = False) -> HostFacts:
    """The facts of the machine whose /proc, /sys and /etc lie under `root`.

    Args:
        data_folder: a folder whose file system is reported with its free space; None reports disks only.
        coherent_accelerator: an accelerator's own memory may be listed as a NUMA cell without processors (GH200,
            GB200); such cells are then not counted as memory of the machine.

    Raises:
        HostUnreadableError: the number of processors, the memory or the boot cannot be read.
    """
    meminfo = read_table(root / "proc/meminfo")
    total_kib = meminfo.get("MemTotal")
    if not total_kib:
        raise HostUnreadableError(f"expected MemTotal in {root / 'proc/meminfo'}, found none")
    cpu = read_cpu(root)
    memory_mib = total_kib // _KIB_PER_MIB - _foreign_memory_mib(cpu, coherent_accelerator)
    limits = read_limits(root)
    cpu_milli = _offered_cpu_milli(cpu, limits)
    offered_mib = min(memory_mib, limits.memory_mib if limits.memory_mib is not None else memory_mib)
    # Huge pages set aside by the operator are taken from ordinary memory and cannot be had by asking for memory.
    offered_mib -= meminfo.get("HugePages_Total", 0) * meminfo.get("Hugepagesize", 0) // _KIB_PER_MIB
    share = system_share(cpu_milli, max(offered_mib, 0))
    return HostFacts(
        boot_id=_boot_id(root),
        hostname=_clipped(read_text(root / "proc/sys/kernel/hostname")),
        os=_os_name(root),
        kernel=_clipped(read_text(root / "proc/sys/kernel/osrelease")),
        cpu=cpu,
        memory_mib=memory_mib,
        allocatable_cpu_milli=cpu_milli - share.cpu_milli,
        allocatable_memory_mib=max(offered_mib, 0) - share.memory_mib,
        storage=read_storage(root, data_folder),
        network=read_network(root),
    )


def read_storage(root: Path, data_folder: Path | None = None) -> tuple[Storage, ...]:
    """The disks, the shared file systems that are mounted, and the file system of `data_folder` with its free space."""
    disks = [
        Storage(id=folder.name, kind=_disk_kind(folder), capacity_gib=round(sectors * _SECTOR_BYTES / _GIB, 1))
        for folder in list_folder(root / "sys/block")
        if not _NOT_A_DISK.match(folder.name) and (sectors := read_int(folder / "size"))
    ]
    # A shared file system is not asked for its size: a server that is away would hold this process for ever.
    shared = [
        Storage(id=fields[1][:256], kind=fields[2], shared=True)
        for line in (read_text(root / "proc/self/mounts") or "").splitlines()
        if len(fields := line.split()) > 2 and fields[2] in _SHARED_FILESYSTEMS
    ]
    return tuple([*_data_storage(data_folder), *disks, *shared][:64])


def read_network(root: Path) -> tuple[Network, ...]:
    """The network ports that are hardware, and bonds of them; bandwidth in GB/s (a 10 Gbit/s port has 1.25)."""
    ports = []
    for folder in list_folder(root / "sys/class/net"):
        if not (folder / "device").exists() and not (folder / "bonding").exists():
            continue
        # The kernel answers -1 or an error while a port has no link, and for most virtual ports.
        megabits = read_int(folder / "speed")
        ports.append(
            Network(
                id=folder.name[:256],
                kind=_port_kind(folder),
                bandwidth_gbs=megabits / _MEGABITS_PER_GIGABYTE if megabits is not None and megabits > 0 else None,
                rdma=(folder / "device/infiniband").is_dir(),
                state=_clipped(read_text(folder / "operstate")),
            )
        )
    return tuple(ports[:64])


def _offered_cpu_milli(cpu: Cpu, limits: GroupLimits) -> int:
    processors = min(cpu.logical, limits.cpus if limits.cpus is not None else cpu.logical)
    whole = processors * 1000
    return min(whole, limits.cpu_milli if limits.cpu_milli is not None else whole)


def _foreign_memory_mib(cpu: Cpu, coherent_accelerator: bool) -> int:
    # Only the Arm parts (Grace) are known to do so; elsewhere a cell without processors is memory on an expansion card.
    if not coherent_accelerator or not cpu.arch.startswith(("aarch64", "arm")):
        return 0
    return sum(cell.memory_mib or 0 for cell in cpu.numa if not cell.cpus)


def _boot_id(root: Path) -> str:
    boot_id = read_text(root / "proc/sys/kernel/random/boot_id")
    if boot_id:
        return boot_id[:64]
    # Sandboxed kernels leave the id out; the instant of the boot changes with the boot as well.
    for line in (read_text(root / "proc/stat") or "").splitlines():
        if line.startswith("btime "):
            return f"btime-{line.split()[1]}"[:64]
    raise HostUnreadableError(f"expected a boot id in {root / 'proc/sys/kernel/random/boot_id'}, found none")


def _os_name(root: Path) -> str | None:
    for file in (root / "etc/os-release", root / "usr/lib/os-release"):
        for line in (read_text(file) or "").splitlines():
            if line.startswith("PRETTY_NAME="):
                return _clipped(line.partition("=")[2].strip().strip('"'))
    return None


def _data_storage(data_folder: Path | None) -> list[Storage]:
    if data_folder is None:
        return []
    try:
        figures = os.statvfs(data_folder)
    except OSError:
        return []
    return [
        Storage(
            id="data",
            kind="filesystem",
            capacity_gib=round(figures.f_blocks * figures.f_frsize / _GIB, 1),
            free_gib=math.floor(figures.f_bavail * figures.f_frsize / _GIB * 10) / 10,
        )
    ]


def _disk_kind(folder: Path) -> str | None:
    if folder.name.startswith("nvme"):
        return "nvme"
    if folder.name.startswith(("vd", "xvd")):
        return "virtual"
    return {0: "ssd", 1: "hdd"}.get(-1 if (turns := read_int(folder / "queue/rotational")) is None else turns)


def _port_kind(folder: Path) -> str:
    if (folder / "bonding").exists():
        return "bond"
    if (folder / "wireless").exists():
        return "wireless"
    return "infiniband" if read_int(folder / "type") == _INFINIBAND_TYPE else "ethernet"


def _clipped(text: str | None) -> str | None:
    return text[:256] if text else None
