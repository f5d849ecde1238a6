"""PCI truth and a vendor's answer, put together: nothing plugged in is hidden, nothing is counted twice."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_contracts.resources import Device, DeviceHealth, DeviceKind, FieldState, Slot
from millpond_node_agent.hardware.inventory import merge_devices
from millpond_node_agent.hardware.pci import PciCard
from millpond_node_agent.hardware.report import DeviceFailure, ProbeOutcome, ProbeReport

pytestmark = pytest.mark.unit

NOWHERE = Path("/nonexistent")


def card(number: int, driver: str | None = "nvidia") -> PciCard:
    return PciCard(f"0000:{number + 16:02x}:00.0", "nvidia", DeviceKind.GPU, "cuda", "2330", "030200", 0, driver)


def device(number: int, *, placed: bool = True) -> Device:
    return Device(
        identity=f"nvidia/GPU-{number}",
        index=number,
        vendor="nvidia",
        uuid=f"GPU-{number}",
        slot=Slot(pci=card(number).address if placed else None),
        health=DeviceHealth.HEALTHY if placed else DeviceHealth.UNKNOWN,
    )


def report(devices: list[Device], failures: list[DeviceFailure]) -> ProbeReport:
    return ProbeReport(
        vendor="nvidia", source="nvml", outcome=ProbeOutcome.OK, devices=tuple(devices), failures=tuple(failures)
    )


@given(
    fates=st.lists(st.sampled_from(["fine", "slotless", "lost", "stuck", "missing"]), max_size=16),
    earlier=st.booleans(),
)
def test_merge_devices_gives_every_card_once_with_its_own_identity_and_index(fates: list[str], earlier: bool) -> None:
    cards = [card(number) for number in range(len(fates))]
    states = {"lost": FieldState.LOST, "stuck": FieldState.UNREADABLE}
    answer = report(
        [device(n, placed=fate == "fine") for n, fate in enumerate(fates) if fate in ("fine", "slotless")],
        [DeviceFailure(index=n, state=states[fate], error=fate) for n, fate in enumerate(fates) if fate in states],
    )
    known = [device(number) for number in range(len(fates))] if earlier else []

    merged = merge_devices(NOWHERE, cards, answer, known)

    assert sorted(device.slot.pci or "" for device in merged) == sorted(card.address for card in cards)
    assert len({device.identity for device in merged}) == len(merged)
    assert len({device.index for device in merged}) == len(merged)
    healthy = {device.slot.pci for device in merged if device.health is DeviceHealth.HEALTHY}
    assert healthy == {card(number).address for number, fate in enumerate(fates) if fate == "fine"}
    if earlier and "missing" not in fates:
        assert {device.identity for device in merged} == {device.identity for device in known}


def test_h9_merge_devices_when_a_card_left_the_bus_then_capacity_is_what_is_there() -> None:
    known = [device(number) for number in range(8)]

    merged = merge_devices(NOWHERE, [card(n) for n in range(7)], report(known[:7], []), known)

    assert [device.identity for device in merged] == [device.identity for device in known[:7]]


def test_merge_devices_where_the_bus_cannot_be_seen_keeps_the_librarys_devices_and_failures() -> None:
    answer = report([device(0)], [DeviceFailure(index=1, state=FieldState.LOST, error="NVML 15")])

    merged = merge_devices(NOWHERE, [], answer, [device(0), device(1)])

    assert [(device.identity, device.health) for device in merged] == [
        ("nvidia/GPU-0", DeviceHealth.HEALTHY),
        ("nvidia/GPU-1", DeviceHealth.LOST),
    ]


def test_merge_devices_when_a_card_is_passed_through_then_it_is_not_called_lost() -> None:
    merged = merge_devices(NOWHERE, [card(0), card(1, "vfio-pci")], report([device(0)], []), [])

    assert [device.health for device in merged] == [DeviceHealth.HEALTHY, DeviceHealth.UNKNOWN]
    assert merged[1].health_reason == "passed through to a virtual machine (vfio-pci)"
