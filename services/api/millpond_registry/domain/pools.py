"""Which pool takes a joining node, and how names stay unique inside a pool."""

from collections.abc import Collection, Mapping, Sequence

from millpond_contracts.bodies.pools import NodeSelector, PoolView
from millpond_contracts.resources import NodeInventory, place_of
from millpond_registry.domain.flavors import model_key_of

NO_DEVICE = "none"
MAX_NAME_LENGTH = 63


def fits_selector(selector: NodeSelector, inventory: NodeInventory, labels: Mapping[str, str]) -> bool:
    """Whether all given parts of the selector hold for the node; an empty selector takes every node."""
    place = place_of(inventory.topology, labels)
    checks = (
        all(labels.get(key) == value for key, value in selector.labels.items()),
        selector.arch in (None, inventory.cpu.arch),
        selector.region in (None, place.region),
        selector.zone in (None, place.zone),
        selector.vendor is None or _has_vendor(inventory, selector.vendor),
        selector.model_key is None or any(model_key_of(device) == selector.model_key for device in inventory.devices),
    )
    return all(checks)


def choose_pool(pools: Sequence[PoolView], inventory: NodeInventory, labels: Mapping[str, str]) -> PoolView | None:
    """The first pool, from high to low priority and then by age, whose selector takes the node."""
    ordered = sorted(pools, key=lambda pool: (-pool.priority, pool.pool_id.int))
    return next((pool for pool in ordered if fits_selector(pool.selector, inventory, labels)), None)


def unique_name(wanted: str, taken: Collection[str]) -> str:
    """The wanted name, or the first of `wanted-2`, `wanted-3`, … that is not taken, within 63 characters."""
    if wanted not in taken:
        return wanted
    number = 2
    while True:
        suffix = f"-{number}"
        name = wanted[: MAX_NAME_LENGTH - len(suffix)].rstrip("._-") + suffix
        if name not in taken:
            return name
        number += 1


def _has_vendor(inventory: NodeInventory, vendor: str) -> bool:
    vendors = {device.vendor for device in inventory.devices}
    return not vendors if vendor == NO_DEVICE else vendor in vendors
