"""The ground truth of what is plugged in: PCI devices that are accelerators, by vendor id and class from sysfs.

The table of vendors is data (`vendors.json`). The class keeps out what shares a vendor's id and computes nothing:
NVIDIA's switches and audio functions, Huawei's management display, network ports. A virtual function belongs to the
guest that got it, and the host's tool does not list it, so it is left out on the host.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from millpond_contracts.resources import DeviceKind
from millpond_node_agent.hardware.sysfiles import list_folder, read_int, read_text

_DEVICES = "sys/bus/pci/devices"


@dataclass(frozen=True, slots=True)
class VendorRow:
    """How a vendor's accelerators are recognised. `pci_classes` are prefixes of the six-digit class code."""

    pci_vendor_id: str
    vendor: str
    kind: DeviceKind
    pci_classes: tuple[str, ...]
    tool: str
    runtime: str
    device_nodes: tuple[str, ...]
    integrated_on_bus_zero: bool


@dataclass(frozen=True, slots=True)
class PciCard:
    """One accelerator as PCI shows it. `numa` is None when the board does not say, `driver` when none is bound."""

    address: str
    vendor: str
    kind: DeviceKind
    runtime: str
    device_id: str
    class_code: str
    numa: int | None
    driver: str | None


@cache
def load_vendors() -> tuple[VendorRow, ...]:
    """The rows of the vendor table."""
    text = files("millpond_node_agent.hardware").joinpath("vendors.json").read_text(encoding="utf-8")
    return tuple(
        VendorRow(
            pci_vendor_id=row["pci_vendor_id"],
            vendor=row["vendor"],
            kind=DeviceKind(row["kind"]),
            pci_classes=tuple(row["pci_classes"]),
            tool=row["tool"],
            runtime=row["runtime"],
            device_nodes=tuple(row["device_nodes"]),
            integrated_on_bus_zero=bool(row.get("integrated_on_bus_zero", False)),
        )
        for row in json.loads(text)
    )


def read_cards(root: Path) -> tuple[PciCard, ...]:
    """The accelerators on the PCI bus in the order of their addresses; none where the bus cannot be seen."""
    cards = (_card(folder) for folder in list_folder(root / _DEVICES))
    return tuple(sorted((card for card in cards if card), key=lambda card: card.address))


def is_present(root: Path, vendor: str, cards: tuple[PciCard, ...]) -> bool:
    """Whether anything on the machine says that it has this vendor's devices or driver."""
    nodes = (node for row in load_vendors() if row.vendor == vendor for node in row.device_nodes)
    return any(card.vendor == vendor for card in cards) or any((root / node).exists() for node in nodes)


def normal_address(address: str) -> str | None:
    """A PCI address as sysfs writes it, `0000:18:00.0`, from any spelling such as NVML's `00000000:18:00.0`."""
    parts = address.strip().lower().split(":")
    slot, dot, function = parts[-1].partition(".")
    try:
        domain = int(parts[0], 16) if len(parts) == 3 else 0
        bus, device = int(parts[-2], 16), int(slot, 16)
        number = int(function, 8) if dot else 0
    except (IndexError, ValueError):
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}.{number}"


def is_given_away(root: Path, card: PciCard) -> bool:
    """Whether the host's driver holds the card but this container was not given it.

    A container sees the host's whole PCI bus, but its runtime leaves only the devices that were granted in
    /proc/driver/nvidia/gpus or, with CDI, under /dev. Such a card is somebody else's, not a fault.
    """
    if card.driver != "nvidia":
        return False
    known = root / "proc/driver/nvidia/gpus"
    if not known.is_dir():
        return False
    information = read_text(known / card.address / "information")
    if information is None:
        return not (known / card.address).exists()
    for line in information.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Device Minor" and value.strip().isdigit():
            return not (root / f"dev/nvidia{value.strip()}").exists()
    return False


def _card(folder: Path) -> PciCard | None:
    vendor_id, class_code = read_int(folder / "vendor"), read_int(folder / "class")
    address = normal_address(folder.name)
    if vendor_id is None or class_code is None or address is None or (folder / "physfn").exists():
        return None
    code = f"{class_code:06x}"
    row = _vendor_row(f"{vendor_id:04x}", code)
    if row is None or (row.integrated_on_bus_zero and address[5:7] == "00"):
        return None
    numa = read_int(folder / "numa_node")
    driver = folder / "driver"
    return PciCard(
        address=address,
        vendor=row.vendor,
        kind=row.kind,
        runtime=row.runtime,
        device_id=f"{read_int(folder / 'device') or 0:04x}",
        class_code=code,
        numa=numa if numa is not None and numa >= 0 else None,  # -1: the firmware does not say
        driver=driver.resolve().name if driver.exists() else None,
    )


def _vendor_row(vendor_id: str, class_code: str) -> VendorRow | None:
    for row in load_vendors():
        if row.pci_vendor_id == vendor_id and class_code.startswith(row.pci_classes):
            return row
    return None
