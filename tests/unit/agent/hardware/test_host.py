"""The host as read from made trees: x86 and Arm, bare and in containers of both control group versions."""

from pathlib import Path

import pytest

from millpond_node_agent.hardware.cpus import HostUnreadableError
from millpond_node_agent.hardware.host import read_host, read_network, read_storage, system_share
from millpond_node_agent.hardware.limits import GroupLimits, read_limits
from tests.factories.machines import BOOT_ID, MachineTree

pytestmark = pytest.mark.unit


@pytest.fixture
def machine(tmp_path: Path) -> MachineTree:
    return MachineTree(tmp_path)


def test_read_host_on_a_two_socket_x86_counts_sockets_cores_and_threads(machine: MachineTree) -> None:
    machine.add_plain_host()
    machine.add_numa(0, "0-3,8-11", 32_768)
    machine.add_numa(1, "4-7,12-15", 32_768)

    host = read_host(machine.root)

    assert (host.cpu.sockets, host.cpu.cores, host.cpu.logical) == (2, 8, 16)
    assert (host.cpu.arch, host.cpu.model) == ("x86_64", "Intel(R) Xeon(R) Platinum 8468")
    assert [(cell.id, cell.cpus, cell.memory_mib) for cell in host.cpu.numa] == [
        (0, "0-3,8-11", 32_768),
        (1, "4-7,12-15", 32_768),
    ]
    assert (host.boot_id, host.hostname, host.kernel, host.os) == (
        BOOT_ID,
        "n1",
        "6.8.0-45-generic",
        "Ubuntu 24.04.1 LTS",
    )


@pytest.mark.parametrize(
    ("implementer", "part", "model"),
    [
        ("0x41", "0xd4f", "Arm Neoverse V2"),
        ("0x48", "0xd01", "HiSilicon TSV110 (Kunpeng 920)"),
        ("0x41", "0xfff", "Arm implementer 0x41 part 0xfff"),
    ],
)
def test_read_host_on_arm_names_the_part_since_there_is_no_model_name(
    machine: MachineTree, implementer: str, part: str, model: str
) -> None:
    machine.add_kernel("aarch64")
    machine.add_memory(16_384)
    machine.add_arm(8, implementer, part)

    cpu = read_host(machine.root).cpu

    assert (cpu.arch, cpu.model, cpu.logical) == ("aarch64", model, 8)
    assert cpu.sockets is None
    assert cpu.cores is None
    assert cpu.frequency_mhz is None


def test_read_host_on_arm_with_packages_not_described_leaves_sockets_unknown(machine: MachineTree) -> None:
    machine.add_kernel("aarch64")
    machine.add_memory(16_384)
    machine.add_arm(2)
    for number in range(2):
        machine.write(f"sys/devices/system/cpu/cpu{number}/topology/physical_package_id", "-1\n")
        machine.write(f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list", f"{number}\n")

    cpu = read_host(machine.root).cpu

    assert (cpu.sockets, cpu.cores) == (None, 2)


@pytest.mark.parametrize("missing", ["proc/meminfo", "proc/sys/kernel/random/boot_id"])
def test_read_host_without_an_indispensable_file_raises(machine: MachineTree, missing: str) -> None:
    machine.add_plain_host()
    (machine.root / missing).unlink()

    with pytest.raises(HostUnreadableError, match="expected"):
        read_host(machine.root)


def test_read_host_without_a_boot_id_takes_the_instant_of_the_boot(machine: MachineTree) -> None:
    machine.add_plain_host()
    (machine.root / "proc/sys/kernel/random/boot_id").unlink()
    machine.write("proc/stat", "cpu 1 2 3 4 5 6 7 8 0 0\nbtime 1795989974\n")

    assert read_host(machine.root).boot_id == "btime-1795989974"


def test_read_host_keeps_the_system_share_and_huge_pages_out_of_the_offer(machine: MachineTree) -> None:
    machine.add_plain_host()
    machine.add_memory(65_536, extra="HugePages_Total:    1024\nHugepagesize:       2048 kB\n")

    host = read_host(machine.root)

    assert host.memory_mib == 65_536
    assert host.allocatable_cpu_milli == 16_000 - 800
    assert host.allocatable_memory_mib == 63_488 - 63_488 // 20


@pytest.mark.parametrize(
    ("cpu_milli", "memory_mib", "expected"),
    [
        (2_000, 4_096, (100, 512)),
        (100_000, 2_000_000, (2_000, 16_384)),
        (100, 600, (50, 300)),
        (0, 0, (0, 0)),
    ],
)
def test_system_share_is_five_percent_within_bounds(cpu_milli: int, memory_mib: int, expected: tuple[int, int]) -> None:
    share = system_share(cpu_milli, memory_mib)

    assert (share.cpu_milli, share.memory_mib) == expected


def test_read_host_on_a_grace_machine_leaves_the_accelerators_memory_out(machine: MachineTree) -> None:
    machine.add_kernel("aarch64")
    machine.add_arm(4)
    machine.add_memory(600_000)
    machine.add_numa(0, "0-3", 480_000)
    machine.add_numa(1, "", 120_000)

    assert read_host(machine.root, coherent_accelerator=True).memory_mib == 480_000
    assert read_host(machine.root).memory_mib == 600_000


def test_read_limits_in_a_version_2_container_takes_the_smallest_on_the_path(machine: MachineTree) -> None:
    machine.write("proc/self/cgroup", "0::/pod/task\n")
    machine.write("sys/fs/cgroup/cpuset.cpus.effective", "0-15\n")
    machine.write("sys/fs/cgroup/pod/cpu.max", "400000 100000\n")
    machine.write("sys/fs/cgroup/pod/memory.max", "8589934592\n")
    machine.write("sys/fs/cgroup/pod/task/cpu.max", "max 100000\n")
    machine.write("sys/fs/cgroup/pod/task/memory.max", "4294967296\n")
    machine.write("sys/fs/cgroup/pod/task/cpuset.cpus.effective", "0-5,8\n")

    assert read_limits(machine.root) == GroupLimits(cpu_milli=4_000, cpus=7, memory_mib=4_096)


def test_read_limits_in_a_version_1_container_reads_the_mounts_top_when_the_path_is_the_hosts(
    machine: MachineTree,
) -> None:
    machine.write("proc/self/cgroup", "5:cpuset:/docker/abc\n4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n")
    machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n")
    machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n")
    machine.write("sys/fs/cgroup/cpuset/cpuset.cpus", "2-3\n")

    assert read_limits(machine.root) == GroupLimits(cpu_milli=1_500, cpus=2, memory_mib=2_048)


def test_read_limits_without_limits_leaves_all_unlimited(machine: MachineTree) -> None:
    machine.write("proc/self/cgroup", "0::/\n")
    machine.write("sys/fs/cgroup/cpu.max", "max 100000\n")
    machine.write("sys/fs/cgroup/memory.max", "max\n")

    assert read_limits(machine.root) == GroupLimits()


def test_read_host_in_a_container_offers_the_containers_share_of_a_large_host(machine: MachineTree) -> None:
    machine.add_plain_host()
    machine.write("proc/self/cgroup", "0::/\n")
    machine.write("proc/self/status", "Name:\tpython\nCpus_allowed_list:\t0-7\n")
    machine.write("sys/fs/cgroup/cpu.max", "400000 100000\n")
    machine.write("sys/fs/cgroup/memory.max", str(8 * 1024**3))

    host = read_host(machine.root)

    assert (host.cpu.logical, host.memory_mib) == (16, 65_536)
    assert host.allocatable_cpu_milli == 4_000 - 200
    assert host.allocatable_memory_mib == 8_192 - 512


def test_read_host_with_version_1s_unlimited_number_offers_the_whole_host(machine: MachineTree) -> None:
    machine.add_plain_host()
    machine.write("proc/self/cgroup", "4:memory:/\n")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")

    assert read_host(machine.root).allocatable_memory_mib == 65_536 - 65_536 // 20


def test_read_storage_reports_disks_and_shared_mounts_but_no_loop_devices(machine: MachineTree) -> None:
    machine.write("sys/block/nvme0n1/size", "7501476528\n")
    machine.write("sys/block/sda/size", "15628053168\n")
    machine.write("sys/block/sda/queue/rotational", "1\n")
    machine.write("sys/block/loop0/size", "8192\n")
    machine.write("proc/self/mounts", "store:/d /mnt/d nfs4 rw 0 0\n/dev/sda1 / ext4 rw 0 0\n")

    storage = {disk.id: disk for disk in read_storage(machine.root)}

    assert set(storage) == {"nvme0n1", "sda", "/mnt/d"}
    assert (storage["nvme0n1"].kind, storage["nvme0n1"].capacity_gib) == ("nvme", 3577.0)
    assert storage["sda"].kind == "hdd"
    assert storage["/mnt/d"].shared
    assert storage["/mnt/d"].capacity_gib is None


def test_read_storage_with_a_data_folder_reports_its_free_space(machine: MachineTree) -> None:
    (data,) = read_storage(machine.root, machine.root)

    assert data.id == "data"
    assert data.free_gib is not None
    assert data.capacity_gib is not None
    assert 0 <= data.free_gib <= data.capacity_gib


def test_read_network_reports_hardware_ports_with_speed_only_where_the_link_says_one(machine: MachineTree) -> None:
    for port, speed in (("eth0", "100000"), ("eth1", "-1")):
        machine.write(f"sys/class/net/{port}/device/vendor", "0x15b3\n")
        machine.write(f"sys/class/net/{port}/speed", speed + "\n")
        machine.write(f"sys/class/net/{port}/type", "1\n")
        machine.write(f"sys/class/net/{port}/operstate", "up\n")
    machine.write("sys/class/net/eth0/device/infiniband/mlx5_0/fw_ver", "28.39\n")
    machine.write("sys/class/net/docker0/operstate", "down\n")

    ports = {port.id: port for port in read_network(machine.root)}

    assert set(ports) == {"eth0", "eth1"}
    assert (ports["eth0"].bandwidth_gbs, ports["eth0"].rdma, ports["eth0"].kind) == (12.5, True, "ethernet")
    assert (ports["eth1"].bandwidth_gbs, ports["eth1"].rdma) == (None, False)


def test_read_host_on_this_machine_gives_its_real_processors_and_memory() -> None:
    host = read_host(Path("/"))

    assert host.cpu.logical >= 1
    assert 0 < host.allocatable_cpu_milli < host.cpu.logical * 1000
    assert 0 < host.allocatable_memory_mib < host.memory_mib
    assert host.hostname
    assert host.kernel
