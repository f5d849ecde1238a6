"""Devices that others use take no work while it lasts, judged while nothing of ours runs there."""

import pytest

from millpond_contracts.resources import Cpu, Device, DeviceHealth, DeviceMemory, NodeInventory
from millpond_node_agent.hardware.outsiders import Outsiders
from millpond_node_agent.hardware.report import ok

pytestmark = pytest.mark.unit

A, B = "nvidia/GPU-a", "nvidia/GPU-b"


def taken(**used_mib: float) -> NodeInventory:
    """Two devices of 80 GiB of which so much is used."""
    devices = tuple(
        Device(
            identity=identity,
            index=index,
            vendor="nvidia",
            memory=DeviceMemory(usable_mib=81_079),
            health=DeviceHealth.HEALTHY,
            fields={"memory_used_mib": ok(used_mib[name])} if name in used_mib else {},
        )
        for index, (name, identity) in enumerate((("a", A), ("b", B)))
    )
    cpu = Cpu(arch="x86_64", logical=8)
    return NodeInventory(
        boot_id="boot", cpu=cpu, memory_mib=1000, allocatable_cpu_milli=8000, allocatable_memory_mib=1000,
        devices=devices,
    )  # fmt: skip


def health(inventory: NodeInventory) -> list[DeviceHealth]:
    return [device.health for device in inventory.devices]


def test_q12_device_when_others_use_it_then_it_takes_no_work_and_says_why_until_they_are_gone() -> None:
    outsiders = Outsiders()
    marked = outsiders.mark(taken(a=70_000, b=600), busy=())
    assert health(marked) == [DeviceHealth.UNKNOWN, DeviceHealth.HEALTHY]
    assert marked.devices[0].health_reason == (
        "used_by_others: about 68 GiB of its memory while no task of ours ran there"
    )
    assert health(outsiders.mark(taken(a=600, b=600), busy=())) == [DeviceHealth.HEALTHY] * 2


def test_q12_device_when_our_own_task_uses_it_then_what_was_seen_while_it_was_idle_holds() -> None:
    outsiders = Outsiders()
    assert health(outsiders.mark(taken(a=70_000, b=600), busy={A})) == [DeviceHealth.HEALTHY] * 2
    outsiders.mark(taken(a=600, b=9_000), busy=())
    assert health(outsiders.mark(taken(a=600, b=80_000), busy={B})) == [DeviceHealth.HEALTHY, DeviceHealth.UNKNOWN]


def test_q12_device_when_its_use_or_its_size_is_unknown_then_nothing_is_concluded() -> None:
    assert health(Outsiders().mark(taken(a=600), busy=())) == [DeviceHealth.HEALTHY] * 2
