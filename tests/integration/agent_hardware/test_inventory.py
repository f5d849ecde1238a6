"""Inventories end to end: supervisor, probe child, nvidia-ml-py and a library that works or fails."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millpond_contracts.resources import DeviceHealth, FieldState, NodeInventory
from millpond_node_agent.hardware.inventory import is_changed
from millpond_node_agent.hardware.report import ProbeOutcome, ProbeReport
from millpond_node_agent.hardware.supervisor import HardwareSupervisor
from millpond_node_agent.heartbeat import Hardware
from millpond_node_agent.settings import AgentSettings
from millpond_node_agent.simulation.runtime import SimulatedRuntime
from tests.factories.machines import MachineTree
from tests.integration.agent_hardware.conftest import StubEnvironment, Supervise

pytestmark = pytest.mark.integration

AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
UUIDS = [f"GPU-00000000-0000-4000-8000-{index:012}" for index in range(8)]


async def test_take_inventory_when_two_devices_answer_then_describes_both(supervise: Supervise) -> None:
    inventory = await supervise(mode="ok").take_inventory()

    first, second = inventory.devices
    assert [device.identity for device in inventory.devices] == [f"nvidia/{uuid}" for uuid in UUIDS[:2]]
    assert (first.slot.pci, first.slot.numa) == ("0000:18:00.0", 0)
    assert (second.slot.pci, second.slot.numa, second.index) == ("0000:19:00.0", 1, 1)
    assert (first.model, first.model_key) == ("NVIDIA H100 80GB HBM3", "H100 SXM5 80GB")
    assert (first.memory.usable_mib, first.memory.nominal_mib) == (81_559 - 480, 81_920)
    assert (first.memory.ecc, first.memory.unified) == (True, False)
    assert first.compute.bf16_tflops == 989
    assert first.power_limit_w == 700
    assert first.health is DeviceHealth.HEALTHY
    assert first.partitioning.max_count == 7
    assert first.fields["compute_capability"].value == "9.0"
    assert [(link.peer, link.state) for link in first.links[:2]] == [("0000:c0:00.0", "up"), ("0000:c1:00.0", "up")]
    assert first.links[3].state == "down"
    assert len(first.links) == 4
    stack = inventory.ecosystem
    assert (stack.runtime, stack.runtime_version, stack.driver_version) == ("cuda", "12.4", "550.54.15")
    assert inventory.probe_errors == ()


async def test_take_inventory_when_the_library_lacks_a_function_then_only_that_field_is_unsupported(
    supervise: Supervise,
) -> None:
    (device, _) = (await supervise(mode="ok").take_inventory()).devices

    assert device.fields["vbios_version"].state is FieldState.UNSUPPORTED
    assert device.fields["vbios_version"].value is None
    assert device.fields["serial"].value == "1650000000000"
    assert device.health is DeviceHealth.HEALTHY


async def test_take_inventory_when_calls_fail_then_each_costs_its_own_field_and_no_zero_stands_in(
    supervise: Supervise,
) -> None:
    first, second = (await supervise(mode="partial").take_inventory()).devices

    assert second.fields["power_w"].state is FieldState.NO_PERMISSION
    assert second.fields["temperature_c"].state is FieldState.UNREADABLE
    assert "999" in (second.fields["temperature_c"].error or "")
    assert second.fields["memory_total_mib"].state is FieldState.NOT_APPLICABLE
    assert second.fields["memory_utilization_ratio"].value is None
    assert second.fields["utilization_ratio"].value == 0.37
    assert first.fields["power_w"].value == 112.5


@pytest.mark.parametrize("mode", ["lost_handle", "lost_calls"])
async def test_h1_take_inventory_when_device_3_of_8_is_lost_then_seven_stay_healthy(
    machine: MachineTree, supervise: Supervise, mode: str
) -> None:
    for bus in range(0x1A, 0x20):
        machine.add_card(f"0000:{bus:02x}:00.0")

    inventory = await supervise(mode=mode, count=8, bad=3).take_inventory()

    by_slot = {device.slot.pci: device for device in inventory.devices}
    lost = by_slot.pop("0000:1b:00.0")
    assert lost.health is DeviceHealth.LOST
    assert lost.index == 3
    assert "lost" in (lost.health_reason or "")
    assert len(by_slot) == 7
    assert {device.health for device in by_slot.values()} == {DeviceHealth.HEALTHY}


async def test_h1_take_inventory_when_a_device_is_lost_later_then_it_keeps_its_identity(
    machine: MachineTree, supervise: Supervise, stub_environment: StubEnvironment
) -> None:
    before = await supervise(mode="ok").take_inventory()
    later = HardwareSupervisor(machine.root, environment=stub_environment(mode="lost_handle"), previous=before)

    after = await later.take_inventory()

    assert [device.identity for device in after.devices] == [device.identity for device in before.devices]
    assert after.devices[1].health is DeviceHealth.LOST
    assert after.devices[1].memory == before.devices[1].memory
    assert is_changed(before, after)


async def test_take_inventory_when_the_boot_is_another_then_old_identities_are_not_lent(
    machine: MachineTree, supervise: Supervise, stub_environment: StubEnvironment
) -> None:
    before = await supervise(mode="ok").take_inventory()
    machine.write("proc/sys/kernel/random/boot_id", "another-boot\n")
    later = HardwareSupervisor(machine.root, environment=stub_environment(mode="lost_handle"), previous=before)

    after = await later.take_inventory()

    assert after.devices[1].identity == "pci/0000:19:00.0"


async def test_take_inventory_when_a_card_is_on_the_bus_and_not_in_the_librarys_answer_then_it_is_lost(
    machine: MachineTree, supervise: Supervise
) -> None:
    machine.add_card("0000:5e:00.0", driver=None)

    devices = (await supervise(mode="ok").take_inventory()).devices

    assert [device.health for device in devices] == [DeviceHealth.HEALTHY, DeviceHealth.HEALTHY, DeviceHealth.LOST]
    assert devices[2].identity == "pci/0000:5e:00.0"
    assert devices[2].index == 2
    assert devices[2].memory.usable_mib is None
    assert devices[2].health_reason == "on the PCI bus and not in the answer of nvml"


async def test_h3_take_inventory_when_library_and_kernel_module_differ_then_devices_stay_known(
    machine: MachineTree, supervise: Supervise, stub_environment: StubEnvironment
) -> None:
    before = await supervise(mode="ok").take_inventory()
    machine.write(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n",
    )
    later = HardwareSupervisor(machine.root, environment=stub_environment(mode="mismatch"), previous=before)

    after = await later.take_inventory()

    assert [device.identity for device in after.devices] == [device.identity for device in before.devices]
    assert {device.health for device in after.devices} == {DeviceHealth.UNKNOWN}
    assert all((device.health_reason or "").startswith("driver_mismatch: reboot needed") for device in after.devices)
    assert after.ecosystem.driver_version == "550.54.15"
    assert any("driver_mismatch" in error for error in after.probe_errors)


async def test_h3_take_inventory_when_mismatched_from_the_start_then_names_the_cards_by_slot(
    supervise: Supervise,
) -> None:
    inventory = await supervise(mode="mismatch").take_inventory()

    assert [device.identity for device in inventory.devices] == ["pci/0000:18:00.0", "pci/0000:19:00.0"]
    assert {device.health for device in inventory.devices} == {DeviceHealth.UNKNOWN}


async def test_h7_take_inventory_when_memory_is_not_supported_then_lists_the_device_with_the_hosts(
    supervise: Supervise,
) -> None:
    inventory = await supervise(mode="unified").take_inventory()

    device = inventory.devices[0]
    assert device.memory.unified
    assert device.memory.usable_mib == inventory.allocatable_memory_mib > 0
    assert device.fields["memory_total_mib"].state is FieldState.UNSUPPORTED
    assert (device.model_key, device.health) == ("GB10", DeviceHealth.HEALTHY)


@pytest.mark.parametrize("mode", ["hang_handle", "hang_call"])
async def test_case5_take_inventory_when_one_device_hangs_then_the_others_are_still_told(
    supervise: Supervise, mode: str
) -> None:
    started = time.monotonic()

    first, second = (await supervise(mode=mode).take_inventory(deadline_seconds=5)).devices

    assert time.monotonic() - started < 5
    assert first.health is DeviceHealth.HEALTHY
    assert second.slot.pci == "0000:19:00.0"
    assert second.health is DeviceHealth.UNKNOWN
    assert "probe_stuck" in (second.health_reason or "")


async def test_case5_take_inventory_when_the_library_hangs_at_its_start_then_the_child_is_killed_at_the_deadline(
    supervise: Supervise,
) -> None:
    supervisor = supervise(mode="hang_init")
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.05)
            beats += 1

    heartbeat = asyncio.create_task(beat())
    started = time.monotonic()
    inventory = await supervisor.take_inventory(deadline_seconds=2)
    took = time.monotonic() - started
    heartbeat.cancel()

    assert took < 3.5
    assert beats > took / 0.05 * 0.5, "the loop stood still"
    assert {device.health for device in inventory.devices} == {DeviceHealth.UNKNOWN}
    assert any("probe_stuck" in error for error in inventory.probe_errors)
    assert inventory.cpu.logical == 16
    assert _children_named("hardware.probe") == []


async def test_w8_take_inventory_when_the_library_kills_the_child_then_no_device_may_be_used(
    supervise: Supervise,
) -> None:
    inventory = await supervise(mode="crash").take_inventory()

    assert {device.health for device in inventory.devices} == {DeviceHealth.UNKNOWN}
    assert any("exit code -11" in error for error in inventory.probe_errors)


async def test_take_inventory_when_no_driver_is_loaded_then_the_cards_are_unknown(supervise: Supervise) -> None:
    inventory = await supervise(mode="no_driver").take_inventory()

    assert [device.health for device in inventory.devices] == [DeviceHealth.UNKNOWN] * 2
    assert inventory.devices[0].health_reason is not None
    assert inventory.devices[0].health_reason.startswith("driver_not_loaded")


async def test_case6_take_inventory_when_uncorrectable_errors_are_counted_then_the_device_is_unhealthy(
    supervise: Supervise,
) -> None:
    first, second = (await supervise(mode="ecc").take_inventory()).devices

    assert first.health is DeviceHealth.HEALTHY
    assert second.health is DeviceHealth.UNHEALTHY
    assert second.health_reason == "ecc_uncorrectable: 2 since the driver was loaded; reset the device"


async def test_take_inventory_when_mig_is_on_then_the_device_is_partitioned(supervise: Supervise) -> None:
    device = (await supervise(mode="mig").take_inventory()).devices[0]

    assert (device.partitioning.current, device.partitioning.modes) == ("mig", ("mig",))


async def test_take_inventory_when_the_driver_is_old_then_the_older_memory_call_serves(supervise: Supervise) -> None:
    device = (await supervise(mode="old").take_inventory()).devices[0]

    assert device.memory.usable_mib == 81_559
    assert device.fields["memory_reserved_mib"].state is FieldState.NOT_APPLICABLE


async def test_take_inventory_when_only_other_vendors_cards_are_plugged_in_then_they_are_named_without_adapter(
    tmp_path: Path, stub_environment: StubEnvironment
) -> None:
    machine = MachineTree(tmp_path / "other")
    machine.add_plain_host()
    machine.add_card("0000:c1:00.0", "0x19e5", class_code="0x120000", driver=None)
    supervisor = HardwareSupervisor(machine.root, environment=stub_environment(mode="none"))

    (device,) = (await supervisor.take_inventory()).devices

    assert (device.vendor, device.kind, device.health) == ("huawei", "npu", DeviceHealth.UNKNOWN)
    assert device.health_reason == "no adapter for huawei: seen on the PCI bus only"


async def test_take_inventory_when_a_card_belongs_to_another_container_then_it_is_not_reported(
    machine: MachineTree, supervise: Supervise
) -> None:
    machine.add_card("0000:5e:00.0")
    machine.write("proc/driver/nvidia/gpus/0000:18:00.0/information", "Device Minor: 0\n")
    machine.write("proc/driver/nvidia/gpus/0000:19:00.0/information", "Device Minor: 1\n")
    machine.write("dev/nvidia0", "")
    machine.write("dev/nvidia1", "")

    inventory = await supervise(mode="ok").take_inventory()

    assert [device.slot.pci for device in inventory.devices] == ["0000:18:00.0", "0000:19:00.0"]


async def test_take_inventory_when_nothing_changed_then_is_changed_is_false(supervise: Supervise) -> None:
    supervisor = supervise(mode="ok")

    before, after = await supervisor.take_inventory(), await supervisor.take_inventory()

    assert before is not after
    assert not is_changed(before, after)


async def test_take_inventory_on_this_machine_gives_a_complete_document() -> None:
    supervisor = HardwareSupervisor(data_folder=Path("/"))

    inventory = await supervisor.take_inventory()
    await supervisor.close()

    assert NodeInventory.model_validate_json(inventory.model_dump_json()) == inventory
    assert inventory.storage[0].free_gib is not None


@pytest.mark.skipif(os.getuid() != 0, reason="an ordinary user already runs all of these tests")
def test_take_inventory_as_an_ordinary_user_on_this_machine_is_complete() -> None:
    code = (
        "import asyncio; from millpond_node_agent.hardware.supervisor import HardwareSupervisor; "
        "print(asyncio.run(HardwareSupervisor().take_inventory(60)).model_dump_json())"
    )

    python = _python_for_everybody()
    folders = os.pathsep.join(path for path in sys.path if path)

    run = subprocess.run(
        [*AS_NOBODY, python, "-c", code], env={"PYTHONPATH": folders}, capture_output=True, text=True, check=True
    )

    inventory = NodeInventory.model_validate_json(run.stdout)
    assert inventory.allocatable_cpu_milli > 0
    assert not any("probe_failed" in error or "probe_stuck" in error for error in inventory.probe_errors)


async def test_case4_take_inventory_when_a_child_survives_its_kill_then_no_second_one_is_started(
    machine: MachineTree, stub_environment: StubEnvironment, freezer: Path
) -> None:
    supervisor = HardwareSupervisor(machine.root, environment=stub_environment(mode="freeze", freezer=freezer))
    try:
        first = await supervisor.take_inventory(deadline_seconds=1.5)
        frozen = (freezer / "cgroup.procs").read_text().split()
        second = await supervisor.take_inventory(deadline_seconds=1.5)
        still_frozen = (freezer / "cgroup.procs").read_text().split()
    finally:
        (freezer / "freezer.state").write_text("THAWED")

    assert len(frozen) == 1
    assert still_frozen == frozen
    assert any("no answer within" in error for error in first.probe_errors)
    assert any(f"process {frozen[0]}, hangs" in error for error in second.probe_errors)
    await supervisor.close()
    assert (freezer / "cgroup.procs").read_text() == "", "the child is gone once the kernel lets go of it"


def test_probe_when_run_by_hand_then_prints_one_document_and_ends(stub_environment: StubEnvironment) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "millpond_node_agent.hardware.probe", "--vendor", "nvidia"],
        env=stub_environment(mode="ok"),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert run.stdout.count("\n") == 1
    report = ProbeReport.model_validate_json(run.stdout)
    assert (report.outcome, report.source, len(report.devices)) == (ProbeOutcome.OK, "nvml", 2)
    assert report.library_version == "12.550.54.15"


def test_supervisor_when_imported_then_no_vendor_library_or_binding_is_loaded() -> None:
    code = "import sys, millpond_node_agent.hardware.supervisor; print('pynvml' in sys.modules)"

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "False"


def _python_for_everybody() -> str:
    """An interpreter that an ordinary user can start and that finds the code, the children's start included."""
    start_two = "import subprocess, sys, pydantic, pynvml; subprocess.run([sys.executable, '-c', ''], check=True)"
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for python in (sys.executable, "/usr/bin/python3"):
        run = subprocess.run([*AS_NOBODY, python, "-c", start_two], env=environment, capture_output=True)
        if run.returncode == 0:
            return python
    pytest.skip("no interpreter with the dependencies that an ordinary user can run here")


def _children_named(part: str) -> list[int]:
    own = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        if int(parent) == os.getpid() and part in command:
            own.append(int(folder.name))
    return own


async def test_q12_probe_when_somebody_elses_process_fills_a_device_then_only_that_one_takes_no_work(
    supervise: Supervise, tmp_path: Path
) -> None:
    settings = AgentSettings(state_dir=tmp_path, work_dir=tmp_path, url="http://127.0.0.1:1", token=None)
    hardware = Hardware(settings, SimulatedRuntime(tmp_path))
    hardware._supervisor = supervise(mode="crowded")
    await hardware.probe()
    assert hardware.inventory is not None
    first, second = hardware.inventory.devices
    assert (first.health, second.health) == (DeviceHealth.HEALTHY, DeviceHealth.UNKNOWN)
    assert str(second.health_reason).startswith("used_by_others: about 60 GiB")
