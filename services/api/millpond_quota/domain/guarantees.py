"""Whether a pool can keep all its guarantees: their sum is at most the registered capacity, per resource and flavor."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from millpond_contracts.bodies.pools import PoolCapacity
from millpond_contracts.bodies.tenants import Limits


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A resource whose guarantees would exceed what the pool has, in the resource's unit."""

    resource: str
    flavor: str | None
    guaranteed: int
    capacity: int


def guaranteed_amounts(limits: Limits) -> dict[tuple[str, str | None], int]:
    """(resource, flavor) -> guaranteed amount."""
    amounts: dict[tuple[str, str | None], int] = {
        ("cpu", None): limits.cpu.guaranteed,
        ("memory", None): limits.memory.guaranteed,
    }
    amounts.update({("device", flavor): limit.guaranteed for flavor, limit in limits.devices.items()})
    return amounts


def raised_amounts(before: Limits | None, after: Limits) -> set[tuple[str, str | None]]:
    """(resource, flavor) of every guarantee that is more than before; before None nothing was guaranteed."""
    old = {} if before is None else guaranteed_amounts(before)
    return {key for key, amount in guaranteed_amounts(after).items() if amount > old.get(key, 0)}


def registered_amounts(capacity: PoolCapacity | None) -> Mapping[tuple[str, str | None], int]:
    """(resource, flavor) -> registered amount of a pool; nothing when no machine has joined yet."""
    if capacity is None:
        return {}
    amounts: dict[tuple[str, str | None], int] = {(host.resource, None): host.total for host in capacity.hosts}
    amounts.update({("device", figures.flavor): figures.total for figures in capacity.devices})
    return amounts


def find_shortfalls(
    all_limits: Iterable[Limits],
    capacity: PoolCapacity | None,
    reserved: Mapping[tuple[str, str | None], int] = MappingProxyType({}),
) -> list[Shortfall]:
    """Every resource whose summed guarantees exceed the pool's registered capacity, in a stable order.

    Args:
        reserved: (resource, flavor) -> what is reserved beside the guarantees at most at an instant.
    """
    sums = dict(reserved)
    for limits in all_limits:
        for key, amount in guaranteed_amounts(limits).items():
            sums[key] = sums.get(key, 0) + amount
    registered = registered_amounts(capacity)
    found = [
        Shortfall(resource, flavor, total, registered.get((resource, flavor), 0))
        for (resource, flavor), total in sums.items()
        if total > registered.get((resource, flavor), 0)
    ]
    return sorted(found, key=lambda shortfall: (shortfall.resource, shortfall.flavor or ""))
