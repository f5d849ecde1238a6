"""On a machine with NVIDIA devices: the real library through the probe, held against the vendor's own tool.

`pytest -m hardware tests/integration/agent_hardware/test_real_devices.py`; it changes no setting of a device.
"""

import asyncio
import csv
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from millpond_contracts.resources import DeviceHealth
from millpond_node_agent.hardware.inventory import is_changed
from millpond_node_agent.hardware.pci import is_present, read_cards
from millpond_node_agent.hardware.signals import NODE_TARGET
from millpond_node_agent.hardware.supervisor import HardwareSupervisor

ROOT = Path("/")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.hardware,
    pytest.mark.skipif(not is_present(ROOT, "nvidia", read_cards(ROOT)), reason="no NVIDIA device or driver here"),
]


def named_by_tool(tool: str) -> dict[str | None, tuple[str, float]]:
    """UUID -> name and total MiB, as the tool prints them."""
    query = [tool, "--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
    return {row[0].strip(): (row[1].strip(), float(row[2])) for row in csv.reader(answer.splitlines())}


async def test_take_inventory_on_real_devices_agrees_with_the_tool() -> None:
    supervisor = HardwareSupervisor()
    started = time.monotonic()
    inventory = await supervisor.take_inventory()
    took = time.monotonic() - started
    again = await supervisor.take_inventory()
    await supervisor.close()

    print(inventory.model_dump_json(indent=1, exclude_none=True))
    print(f"inventory took {took:.2f} s")
    assert inventory.devices
    assert {device.health for device in inventory.devices} == {DeviceHealth.HEALTHY}
    assert inventory.probe_errors == ()
    assert inventory.ecosystem.driver_version
    assert not is_changed(inventory, again)
    for device in inventory.devices:
        assert device.uuid is not None
        assert device.memory.usable_mib is not None
        assert device.memory.usable_mib > 0
    if tool := shutil.which("nvidia-smi"):
        totals = {d.uuid: (d.model, d.fields["memory_total_mib"].value) for d in inventory.devices}
        assert totals == named_by_tool(tool)


async def test_sample_signals_on_real_devices_gives_values_every_second() -> None:
    supervisor = HardwareSupervisor()
    inventory = await supervisor.take_inventory()
    for _ in range(30):
        signals = await supervisor.sample_signals()
        known = {(signal.target, signal.name): signal.value for signal in signals if signal.value is not None}
        if any(target != NODE_TARGET for target, _ in known):
            break
        await asyncio.sleep(1)
    started = time.monotonic()
    for _ in range(5):
        await supervisor.sample_signals()
    took = (time.monotonic() - started) / 5
    await supervisor.close()

    print(known)
    print(f"a sample took {took * 1000:.1f} ms")
    for device in inventory.devices:
        assert known[device.identity, "power_w"] > 0
        assert 0 <= known[device.identity, "memory_utilization_ratio"] <= 1
    assert took < 0.5
