"""Made trees of /proc, /sys and /etc: a machine of any shape for readers that take a `root`."""

from pathlib import Path

BOOT_ID = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"

_X86_BLOCK = """processor	: {number}
vendor_id	: GenuineIntel
model name	: Intel(R) Xeon(R) Platinum 8468
cpu MHz		: 2100.000
physical id	: {socket}
core id		: {core}
"""
_ARM_BLOCK = """processor	: {number}
BogoMIPS	: 200.00
Features	: fp asimd
CPU implementer	: {implementer}
CPU architecture: 8
CPU variant	: 0x1
CPU part	: {part}
"""


class MachineTree:
    """A machine under `root`, made of the files that are asked for; what is not made is what it does not tell."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        """Writes one file with its folders."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def add_kernel(self, arch: str = "x86_64") -> None:
        self.write("proc/sys/kernel/random/boot_id", BOOT_ID + "\n")
        self.write("proc/sys/kernel/hostname", "n1\n")
        self.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
        self.write("proc/sys/kernel/arch", arch + "\n")
        self.write("etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n')

    def add_memory(self, total_mib: int, available_mib: int | None = None, extra: str = "") -> None:
        available = f"MemAvailable: {available_mib * 1024} kB\n" if available_mib is not None else ""
        self.write("proc/meminfo", f"MemTotal:       {total_mib * 1024} kB\n{available}{extra}")

    def add_x86(self, sockets: int = 2, cores: int = 4, threads: int = 2) -> None:
        """Processors with their topology, threads of a core numbered as Linux does: all first threads come first."""
        blocks, total = [], sockets * cores
        for number in range(total * threads):
            core = number % total
            blocks.append(_X86_BLOCK.format(number=number, socket=core // cores, core=core % cores))
            siblings = ",".join(str(core + total * thread) for thread in range(threads))
            folder = f"sys/devices/system/cpu/cpu{number}/topology"
            self.write(f"{folder}/physical_package_id", f"{core // cores}\n")
            self.write(f"{folder}/thread_siblings_list", siblings + "\n")
        self.write("proc/cpuinfo", "\n".join(blocks))
        self.write("sys/devices/system/cpu/online", f"0-{total * threads - 1}\n")

    def add_arm(self, processors: int, implementer: str = "0x41", part: str = "0xd4f") -> None:
        blocks = [_ARM_BLOCK.format(number=n, implementer=implementer, part=part) for n in range(processors)]
        self.write("proc/cpuinfo", "\n".join(blocks))
        self.write("sys/devices/system/cpu/online", f"0-{processors - 1}\n")

    def add_numa(self, number: int, cpus: str, memory_mib: int) -> None:
        folder = f"sys/devices/system/node/node{number}"
        self.write(f"{folder}/cpulist", cpus + "\n")
        self.write(f"{folder}/meminfo", f"Node {number} MemTotal:       {memory_mib * 1024} kB\n")

    def add_plain_host(self, memory_mib: int = 65_536) -> None:
        """A host that is complete and has no accelerator: 16 processors."""
        self.add_kernel()
        self.add_x86()
        self.add_memory(memory_mib, memory_mib // 2)

    def add_card(
        self,
        address: str,
        vendor_id: str = "0x10de",
        *,
        class_code: str = "0x030200",
        numa: int = 0,
        driver: str | None = "nvidia",
        virtual_function: bool = False,
    ) -> None:
        """A PCI device; NVIDIA's 3D controller where nothing else is said."""
        folder = f"sys/bus/pci/devices/{address}"
        self.write(f"{folder}/vendor", vendor_id + "\n")
        self.write(f"{folder}/device", "0x2330\n")
        self.write(f"{folder}/class", class_code + "\n")
        self.write(f"{folder}/numa_node", f"{numa}\n")
        if driver is not None:
            target = self.root / "sys/bus/pci/drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            (self.root / folder / "driver").symlink_to(target)
        if virtual_function:
            (self.root / folder / "physfn").mkdir()
