"""Tallies of nodes add up to a pool's capacity and can be taken away again: a change costs one difference and one sum.

Source: docs/decisions, capacity (total = unschedulable + allocated + reserved + fragmented + available).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from millpond_contracts.bodies.pools import CapacityFigures, HostCapacity
from millpond_contracts.capacity import (
    DeviceRoom,
    FlavorTally,
    HostRoom,
    tally_node,
    tell_capacity,
    tell_host_capacity,
)
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_registry.domain.devices import KnownDevice, geometry_of
from millpond_registry.domain.nodes import Node

SCHEDULABLE = "schedulable"
CPU, MEMORY = "cpu", "memory"


@dataclass(frozen=True, slots=True)
class Held:
    """What live allocations hold of one node; `milli` maps a device to thousandths of it, `slots` to its slices."""

    cpu_milli: int = 0
    memory_mib: int = 0
    milli: Mapping[UUID, int] = field(default_factory=dict)
    slots: Mapping[UUID, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostTally:
    """Sums of CPU or memory over nodes: all of it, and what is free on nodes that take work or do not."""

    total: int = 0
    free_open: int = 0
    free_shut: int = 0

    def plus(self, other: "HostTally", sign: int) -> "HostTally":
        """The sums with another's added (sign 1) or taken away (-1)."""
        return HostTally(
            self.total + sign * other.total,
            self.free_open + sign * other.free_open,
            self.free_shut + sign * other.free_shut,
        )


@dataclass(frozen=True, slots=True)
class Tally:
    """What a node, or a whole pool, has: nodes by state, CPU and memory, devices by flavor. Zeros are left out."""

    nodes: Mapping[str, int] = field(default_factory=dict)
    hosts: Mapping[str, HostTally] = field(default_factory=dict)
    flavors: Mapping[str, FlavorTally] = field(default_factory=dict)

    def __add__(self, other: "Tally") -> "Tally":
        return self._combined(other, 1)

    def __sub__(self, other: "Tally") -> "Tally":
        return self._combined(other, -1)

    def _combined(self, other: "Tally", sign: int) -> "Tally":
        nodes = Counter(self.nodes)
        for name, count in other.nodes.items():
            nodes[name] += sign * count
        hosts = dict(self.hosts)
        for name, host in other.hosts.items():
            hosts[name] = hosts.get(name, HostTally()).plus(host, sign)
        flavors = dict(self.flavors)
        for name, tally in other.flavors.items():
            before = flavors.get(name, FlavorTally())
            flavors[name] = before + tally if sign > 0 else before - tally
        return Tally(
            nodes={name: count for name, count in nodes.items() if count},
            hosts={name: host for name, host in hosts.items() if host != HostTally()},
            flavors={name: tally for name, tally in flavors.items() if tally != FlavorTally()},
        )

    def to_json(self) -> dict[str, Any]:
        """The tally as a JSON object."""
        return {
            "nodes": dict(self.nodes),
            "hosts": {name: asdict(host) for name, host in self.hosts.items()},
            "flavors": {name: asdict(tally) for name, tally in self.flavors.items()},
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Tally":
        """The tally of a JSON object that `to_json` gave; an empty object is the empty tally."""
        return cls(
            nodes=dict(stored.get("nodes", {})),
            hosts={name: HostTally(**host) for name, host in stored.get("hosts", {}).items()},
            flavors={
                name: FlavorTally(**{**tally, "fits": tuple(tally["fits"])})
                for name, tally in stored.get("flavors", {}).items()
            },
        )


def tally_of(node: Node, devices: Iterable[KnownDevice], held: Held, reference_milli: int) -> Tally:
    """What one node adds to its pool's capacity.

    Args:
        reference_milli: what a task of the pool takes that must be able to use what is called available.
    """
    is_open = node.schedulable
    rooms = [
        DeviceRoom(
            flavor=device.flavor,
            free_milli=max(WHOLE_DEVICE_MILLI - held.milli.get(device.id, 0), 0),
            schedulable=is_open and device.health.takes_work,
            geometry=geometry_of(device.report),
            taken=held.slots.get(device.id, 0),
        )
        for device in devices
    ]
    states = Counter({str(node.state): 1})
    if is_open:
        states[SCHEDULABLE] = 1
    return Tally(
        nodes=states,
        hosts={
            CPU: _host(node.inventory.allocatable_cpu_milli, held.cpu_milli, is_open),
            MEMORY: _host(node.inventory.allocatable_memory_mib, held.memory_mib, is_open),
        },
        flavors=tally_node(rooms, max(reference_milli, 1)),
    )


def sum_tallies_of(tallies: Iterable[Tally]) -> Tally:
    """Several nodes together."""
    total = Tally()
    for tally in tallies:
        total = total + tally
    return total


def tell_devices(tally: Tally) -> list[CapacityFigures]:
    """The figures per flavor, by name. What reservations keep free counts as available: the scheduler knows of it."""
    return [tell_capacity(flavor, tally.flavors[flavor]) for flavor in sorted(tally.flavors)]


def tell_hosts(tally: Tally) -> list[HostCapacity]:
    """The figures for CPU and memory."""
    figures = []
    for resource in (CPU, MEMORY):
        host = tally.hosts.get(resource, HostTally())
        # Two rooms stand for all nodes: what is held anywhere counts as allocated in the first.
        open_room = HostRoom(host.total - host.free_shut, host.free_open, True)
        shut_room = HostRoom(host.free_shut, host.free_shut, False)
        figures.append(tell_host_capacity(resource, (open_room, shut_room)))
    return figures


def available_of(tally: Tally) -> dict[str, int]:
    """What is available: `device/<flavor>`, `cpu`, `memory` -> milli or MiB."""
    devices = {f"device/{figures.flavor}": figures.available for figures in tell_devices(tally)}
    return devices | {figures.resource: figures.available for figures in tell_hosts(tally)}


def describe_drift(found: Tally, counted: Tally) -> str:
    """In words which figures were wrong, at most five."""
    before, after = _flat(found.to_json()), _flat(counted.to_json())
    wrong = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    words = [f"{name}: had {before.get(name, 0)}, counted {after.get(name, 0)}" for name in wrong[:5]]
    return "; ".join(words) + (f"; and {len(wrong) - 5} more" if len(wrong) > 5 else "")


def _host(total: int, held: int, is_open: bool) -> HostTally:
    free = max(total - held, 0)
    return HostTally(total, free if is_open else 0, 0 if is_open else free)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, item in value.items():
        path = f"{prefix}{name}"
        if isinstance(item, dict):
            flat.update(_flat(item, f"{path}."))
        else:
            flat[path] = list(item) if isinstance(item, tuple) else item
    return flat
