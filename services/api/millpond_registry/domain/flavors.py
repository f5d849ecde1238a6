"""Flavors: which class a device belongs to. Every device has exactly one.

Source: docs/decisions, words (most specific selector; else `unknown-<vendor>`).
"""

from collections.abc import Iterable
from functools import cache, lru_cache

from millpond_contracts.bodies.nodes import FlavorSelector, FlavorView
from millpond_contracts.catalogue import CatalogueEntry, find_model, load_catalogue
from millpond_contracts.partitions import find_geometry
from millpond_contracts.resources import Device, DeviceKind

UNKNOWN_PREFIX = "unknown-"


@cache
def builtin_flavors() -> tuple[FlavorView, ...]:
    """One flavor for each model of the accelerator catalogue, sorted by name."""
    flavors = {}
    for entry in load_catalogue():
        selector = FlavorSelector(vendor=entry.vendor, model_key=entry.model)
        geometry = find_geometry(entry.model)
        flavors[entry.flavor] = FlavorView(
            name=entry.flavor,
            kind=entry.kind,
            selector=selector,
            profiles=() if geometry is None else tuple(profile.name for profile in geometry.profiles),
            builtin=True,
            generation=1,
        )
    return tuple(flavors[name] for name in sorted(flavors))


def unknown_flavor(vendor: str, kind: DeviceKind) -> FlavorView:
    """The flavor of a vendor's devices that no other flavor takes; jobs reach it by name only."""
    return FlavorView(
        name=f"{UNKNOWN_PREFIX}{vendor}",
        kind=kind,
        selector=FlavorSelector(vendor=vendor),
        builtin=True,
        generation=1,
    )


def catalogue_entry(device: Device) -> CatalogueEntry | None:
    """The catalogue's row for a device: by the key that the agent found, else by the name that the tool printed."""
    memory_mib = device.memory.usable_mib or device.memory.nominal_mib
    return _find_entry(device.vendor, device.model_key, device.model, memory_mib)


# A pool has thousands of devices of a few models; finding one takes milliseconds.
@lru_cache(maxsize=4096)
def _find_entry(vendor: str, model_key: str | None, model: str | None, memory_mib: int | None) -> CatalogueEntry | None:
    if model_key is not None:
        for entry in load_catalogue():
            if (entry.vendor, entry.model) == (vendor, model_key):
                return entry
    return find_model(vendor, model, memory_mib)


def model_key_of(device: Device) -> str | None:
    """The name of the device's model in the catalogue, or what the agent calls it when the catalogue lacks it."""
    entry = catalogue_entry(device)
    return device.model_key if entry is None else entry.model


def resolve_flavor(device: Device, flavors: Iterable[FlavorView]) -> FlavorView | None:
    """The flavor whose selector fits the device and gives most fields; None = only `unknown-<vendor>` is left.

    Ties go to an operator's flavor before a built-in one, then to the first name: order never matters.
    """
    model_key = model_key_of(device)
    fitting = [
        flavor
        for flavor in flavors
        if not flavor.name.startswith(UNKNOWN_PREFIX) and _fits(flavor.selector, device, model_key)
    ]
    return min(fitting, key=lambda flavor: (-_given(flavor.selector), flavor.builtin, flavor.name), default=None)


def _fits(selector: FlavorSelector, device: Device, model_key: str | None) -> bool:
    memory = device.memory.usable_mib
    names = [name.lower() for name in (device.model, model_key) if name is not None]
    return (
        selector.vendor in (None, device.vendor)
        and selector.model_key in (None, model_key)
        and (selector.model_prefix is None or any(name.startswith(selector.model_prefix.lower()) for name in names))
        and (selector.memory_mib_min is None or (memory is not None and memory >= selector.memory_mib_min))
        and (selector.memory_mib_max is None or (memory is not None and memory <= selector.memory_mib_max))
    )


def _given(selector: FlavorSelector) -> int:
    return sum(value is not None for value in selector.model_dump().values())
