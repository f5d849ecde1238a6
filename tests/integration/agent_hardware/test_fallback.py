"""Where NVML cannot be loaded: the tool's XML, and where that fails too, the PCI bus alone."""

import asyncio
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond_contracts.resources import DeviceHealth
from millpond_node_agent.hardware.supervisor import HardwareSupervisor
from tests.factories.machines import MachineTree

pytestmark = pytest.mark.integration

H100 = Path(__file__).parents[2] / "unit/agent/hardware/samples/nvidia-smi-h100.xml"


@pytest.fixture
def machine(tmp_path: Path) -> MachineTree:
    """A host with the two cards of the sample; its NVML is not installed."""
    tree = MachineTree(tmp_path / "machine")
    tree.add_plain_host()
    tree.add_card("0000:53:00.0")
    tree.add_card("0000:64:00.0", numa=1)
    return tree


def with_tool(tmp_path: Path, script: str | None) -> dict[str, str]:
    """An environment without NVML in which `nvidia-smi` is `script`, or nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    if script is not None:
        tool = folder / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    # An empty file under the library's name keeps a real one, where there is one, from being loaded.
    (nothing / "libnvidia-ml.so.1").write_text("")
    python = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{folder}:{python}:/usr/bin:/bin", "LD_LIBRARY_PATH": str(nothing)}


async def test_take_inventory_without_nvml_reads_the_tools_xml(machine: MachineTree, tmp_path: Path) -> None:
    supervisor = HardwareSupervisor(machine.root, environment=with_tool(tmp_path, f'[ "$*" = "-q -x" ] && cat {H100}'))

    inventory = await supervisor.take_inventory()

    assert [device.health for device in inventory.devices] == [DeviceHealth.HEALTHY] * 2
    assert [device.slot.numa for device in inventory.devices] == [0, 1]
    assert inventory.ecosystem.driver_version == "580.105.08"
    assert inventory.probe_errors == ()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "no_library"),
        (
            "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
            "driver_mismatch: reboot needed",
        ),
        ("echo garbage", "probe_failed: expected nvidia-smi's XML"),
        ("kill -9 $$", "probe_failed"),
    ],
)
async def test_take_inventory_without_nvml_and_tool_keeps_the_cards_of_the_bus(
    machine: MachineTree, tmp_path: Path, script: str | None, reason: str
) -> None:
    supervisor = HardwareSupervisor(machine.root, environment=with_tool(tmp_path, script))

    inventory = await supervisor.take_inventory()

    assert [device.identity for device in inventory.devices] == ["pci/0000:53:00.0", "pci/0000:64:00.0"]
    assert {device.health for device in inventory.devices} == {DeviceHealth.UNKNOWN}
    assert all(device.memory.usable_mib is None for device in inventory.devices)
    assert all((device.health_reason or "").startswith(reason) for device in inventory.devices)
    assert len(inventory.probe_errors) == 1


async def ends(pid: int) -> bool:
    """Whether the process is gone, or dead and not yet collected, within ten seconds: a busy kernel takes a moment."""
    for _ in range(200):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in ("Z", "X"):
            return True
        await asyncio.sleep(0.05)
    return False


async def test_case4_take_inventory_when_the_tool_hangs_then_ends_it_with_its_child(
    machine: MachineTree, tmp_path: Path
) -> None:
    mark = tmp_path / "pid"
    supervisor = HardwareSupervisor(machine.root, environment=with_tool(tmp_path, f"echo $$ > {mark}\nexec sleep 600"))

    started = time.monotonic()
    inventory = await supervisor.take_inventory(deadline_seconds=3)

    assert time.monotonic() - started < 60, "the tool sleeps for ten minutes"
    assert all("probe_stuck" in (device.health_reason or "") for device in inventory.devices)
    assert await ends(int(mark.read_text()))


async def test_take_inventory_on_a_machine_without_accelerators_asks_once_and_reports_no_error(
    tmp_path: Path,
) -> None:
    machine = MachineTree(tmp_path / "plain")
    machine.add_plain_host()
    mark = tmp_path / "asked"
    environment = with_tool(tmp_path, f'echo x >> {mark}; echo "couldn\'t communicate with the NVIDIA driver"; exit 9')
    supervisor = HardwareSupervisor(machine.root, environment=environment)

    inventory = await supervisor.take_inventory()
    await supervisor.take_inventory()

    assert inventory.devices == ()
    assert inventory.probe_errors == ()
    assert mark.read_text() == "x\n"


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """This process with more open files than select() can look at, as an agent's that runs a thousand tasks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_take_inventory_with_a_thousand_open_files_still_hears_the_probe(
    machine: MachineTree, tmp_path: Path, many_descriptors: None
) -> None:
    supervisor = HardwareSupervisor(machine.root, environment=with_tool(tmp_path, f"cat {H100}"))

    inventory = await supervisor.take_inventory()

    assert [device.health for device in inventory.devices] == [DeviceHealth.HEALTHY] * 2
