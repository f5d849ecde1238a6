"""Processors and NUMA cells from /proc/cpuinfo and /sys, on x86, Arm and the others that Linux names."""

import platform
import re
from pathlib import Path

from millpond_contracts.resources import Cpu, NumaCell
from millpond_node_agent.hardware.sysfiles import count_in_list, list_folder, read_int, read_table, read_text

_KIB_PER_MIB = 1024

# Arm prints numbers in place of a name. (implementer, part) -> name, from the kernel's asm/cputype.h.
_ARM_PARTS: dict[tuple[int, int], str] = {
    (0x41, 0xD03): "Arm Cortex-A53",
    (0x41, 0xD07): "Arm Cortex-A57",
    (0x41, 0xD08): "Arm Cortex-A72",
    (0x41, 0xD0C): "Arm Neoverse N1",
    (0x41, 0xD40): "Arm Neoverse V1",
    (0x41, 0xD42): "Arm Cortex-A78AE",
    (0x41, 0xD49): "Arm Neoverse N2",
    (0x41, 0xD4F): "Arm Neoverse V2",
    (0x48, 0xD01): "HiSilicon TSV110 (Kunpeng 920)",
    (0x70, 0x662): "Phytium FTC662",
    (0x70, 0x663): "Phytium FTC663",
    (0xC0, 0xAC3): "Ampere-1",
}


class HostUnreadableError(Exception):
    """A fact without which a machine cannot be offered, such as its number of processors, cannot be read."""


def read_cpu(root: Path) -> Cpu:
    """The processors of the machine, those that this process may not use included.

    Raises:
        HostUnreadableError: neither /sys nor /proc says how many processors there are.
    """
    info = _cpuinfo(root)
    cpus = root / "sys/devices/system/cpu"
    logical = count_in_list(read_text(cpus / "online")) or sum("processor" in block for block in info)
    if logical < 1:
        raise HostUnreadableError(f"expected processors in {cpus / 'online'} or {root / 'proc/cpuinfo'}, found none")
    return Cpu(
        arch=_architecture(root),
        model=_model(info),
        sockets=_sockets(root, info),
        cores=_cores(root, info),
        logical=logical,
        frequency_mhz=_frequency_mhz(root, info),
        numa=read_numa(root),
    )


def read_numa(root: Path) -> tuple[NumaCell, ...]:
    """The NUMA cells; one without processors (`cpus` empty) is memory alone, such as a coherent accelerator's."""
    cells = []
    for folder in list_folder(root / "sys/devices/system/node"):
        number = re.fullmatch(r"node(\d+)", folder.name)
        if not number:
            continue
        memory = read_table(folder / "meminfo").get(f"Node {number[1]} MemTotal")
        cells.append(
            NumaCell(
                id=int(number[1]),
                cpus=(read_text(folder / "cpulist") or "")[:256],
                memory_mib=None if memory is None else memory // _KIB_PER_MIB,
            )
        )
    return tuple(cells)


def _architecture(root: Path) -> str:
    # The file is there since Linux 6.1; before that the interpreter's own architecture is the machine's.
    reported = read_text(root / "proc/sys/kernel/arch") or platform.machine()
    return re.sub(r"[^a-z0-9_]", "_", reported.lower())[:32]


def _cpuinfo(root: Path) -> list[dict[str, str]]:
    """The blocks of /proc/cpuinfo, keys in lower case (LoongArch writes `Model Name`)."""
    blocks = []
    for text in (read_text(root / "proc/cpuinfo") or "").split("\n\n"):
        pairs = (line.partition(":") for line in text.splitlines())
        blocks.append({key.strip().lower(): value.strip() for key, colon, value in pairs if colon})
    return blocks


def _model(info: list[dict[str, str]]) -> str | None:
    for block in info:
        for key in ("model name", "cpu model", "cpu", "uarch"):
            if block.get(key):
                return " ".join(block[key].split())[:256]
        implementer, part = block.get("cpu implementer"), block.get("cpu part")
        if implementer and part:
            known = _ARM_PARTS.get((int(implementer, 0), int(part, 0)))
            return known or f"Arm implementer {implementer} part {part}"
    return None


def _topology_folders(root: Path) -> list[Path]:
    folders = list_folder(root / "sys/devices/system/cpu")
    return [folder / "topology" for folder in folders if re.fullmatch(r"cpu\d+", folder.name)]


def _sockets(root: Path, info: list[dict[str, str]]) -> int | None:
    # Arm firmware that does not describe packages leaves -1.
    packages = {read_int(folder / "physical_package_id") for folder in _topology_folders(root)}
    known = {package for package in packages if package is not None and package >= 0}
    return len(known or {block["physical id"] for block in info if "physical id" in block}) or None


def _cores(root: Path, info: list[dict[str, str]]) -> int | None:
    siblings = {read_text(folder / "thread_siblings_list") for folder in _topology_folders(root)} - {None}
    if siblings:
        return len(siblings)
    return len({(block.get("physical id"), block["core id"]) for block in info if "core id" in block}) or None


def _frequency_mhz(root: Path, info: list[dict[str, str]]) -> float | None:
    highest = read_int(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
    if highest is not None:
        return highest / 1000
    for block in info:
        try:
            return float(block["cpu mhz"])
        except (KeyError, ValueError):
            continue
    return None
