"""Which PCI devices are accelerators, and whose."""

from pathlib import Path

import pytest

from millpond_node_agent.hardware.pci import is_given_away, is_present, load_vendors, normal_address, read_cards
from tests.factories.machines import MachineTree

pytestmark = pytest.mark.unit


@pytest.fixture
def machine(tmp_path: Path) -> MachineTree:
    return MachineTree(tmp_path)


def test_read_cards_finds_each_vendors_accelerator_with_its_numa_cell(machine: MachineTree) -> None:
    machine.add_card("0000:3b:00.0", numa=1)
    machine.add_card("0000:18:00.0", "0x1002", class_code="0x120000", numa=-1, driver="amdgpu")
    machine.add_card("0000:c1:00.0", "0x19e5", class_code="0x120000", driver=None)

    cards = read_cards(machine.root)

    assert [(card.address, card.vendor, card.kind, card.numa, card.driver) for card in cards] == [
        ("0000:18:00.0", "amd", "gpu", None, "amdgpu"),
        ("0000:3b:00.0", "nvidia", "gpu", 1, "nvidia"),
        ("0000:c1:00.0", "huawei", "npu", 0, None),
    ]


@pytest.mark.parametrize(
    ("vendor_id", "class_code", "what"),
    [
        ("0x10de", "0x068000", "an NVSwitch"),
        ("0x10de", "0x040300", "a card's audio function"),
        ("0x19e5", "0x030000", "a management display"),
        ("0x15b3", "0x020000", "a network port"),
        ("0x1af4", "0x030000", "a virtual display"),
    ],
)
def test_read_cards_leaves_out_devices_that_compute_nothing(
    machine: MachineTree, vendor_id: str, class_code: str, what: str
) -> None:
    machine.add_card("0000:18:00.0", vendor_id, class_code=class_code)

    assert read_cards(machine.root) == (), what


def test_read_cards_leaves_out_virtual_functions_and_integrated_displays(machine: MachineTree) -> None:
    machine.add_card("0000:18:00.4", virtual_function=True)
    machine.add_card("0000:00:02.0", "0x8086", class_code="0x030000", driver="i915")

    assert read_cards(machine.root) == ()


def test_read_cards_where_the_bus_cannot_be_seen_is_empty(machine: MachineTree) -> None:
    assert read_cards(machine.root) == ()


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ("00000000:18:00.0", "0000:18:00.0"),
        ("0000:0A:00.0", "0000:0a:00.0"),
        ("00010000:3B:00.0", "10000:3b:00.0"),
        ("18:00.0", "0000:18:00.0"),
        ("GPU is lost", None),
        ("", None),
    ],
)
def test_normal_address_writes_any_spelling_as_sysfs_does(reported: str, expected: str | None) -> None:
    assert normal_address(reported) == expected


def test_is_given_away_when_the_container_was_not_granted_the_card(machine: MachineTree) -> None:
    machine.add_card("0000:18:00.0")
    machine.add_card("0000:2a:00.0")
    machine.add_card("0000:3b:00.0")
    machine.write("proc/driver/nvidia/gpus/0000:18:00.0/information", "Model: H200\nDevice Minor: \t 0\n")
    machine.write("proc/driver/nvidia/gpus/0000:3b:00.0/information", "Model: H200\nDevice Minor: \t 2\n")
    machine.write("dev/nvidia0", "")

    granted, unlisted, without_node = read_cards(machine.root)

    assert not is_given_away(machine.root, granted)
    assert is_given_away(machine.root, unlisted)
    assert is_given_away(machine.root, without_node)


def test_is_given_away_on_a_host_is_false_for_a_card_without_driver(machine: MachineTree) -> None:
    machine.add_card("0000:18:00.0", driver=None)
    machine.write("proc/driver/nvidia/gpus/0000:2a:00.0/information", "Device Minor: 0\n")

    (card,) = read_cards(machine.root)

    assert not is_given_away(machine.root, card)


def test_is_present_by_card_or_by_the_drivers_node(machine: MachineTree) -> None:
    assert not is_present(machine.root, "nvidia", ())
    machine.write("dev/nvidiactl", "")
    assert is_present(machine.root, "nvidia", ())


def test_load_vendors_has_one_row_for_each_id() -> None:
    ids = [row.pci_vendor_id for row in load_vendors()]

    assert len(ids) == len(set(ids)) == 15
