"""Waiting work bound to nodes: which of it a node of the policy could take, and how many more nodes it needs.

What waits for capacity does not fit into what there is, so it is bound to nodes on their way first and only the rest
asks for new ones. Tasks are packed largest first into nodes of one size: sums alone would take two nodes for three
tasks of five devices each, where a node has eight.
"""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from millpond_contracts.bodies.scaling import DemandShape, NodeTemplate
from millpond_contracts.fleets import find_catalogue_entry
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI


@dataclass(frozen=True, slots=True)
class Binding:
    """What came of packing. `left` = tasks that found no place, of any kind; amounts are in device milli.

    `queued_milli` = what all tasks that such nodes can serve ask for, without gangs that are too large for them;
    `missing_nodes` = nodes beside those on their way that they need, `unbound_tasks` = those of them for which no more
    nodes were allowed.
    """

    queued_milli: int
    missing_nodes: int
    unbound_tasks: int
    left: tuple[DemandShape, ...]


@dataclass(slots=True)
class _Room:
    """What is left of one node: whole devices of so much memory each, and milli and MiB of devices that are shared."""

    whole: int
    device_memory_mib: int
    cpu_milli: int
    memory_mib: int
    shared: list[tuple[int, int]] = field(default_factory=list)

    def take(self, shape: DemandShape, wanted: int) -> int:
        """Takes as many of `wanted` tasks as fit; how many."""
        count = min(wanted, self.cpu_milli // max(1, shape.cpu_milli), self.memory_mib // max(1, shape.memory_mib))
        if shape.device_milli >= WHOLE_DEVICE_MILLI:
            count = min(count, self.whole // shape.device_count)
            self.whole -= count * shape.device_count
        else:
            count = self._take_shares(shape.device_milli, shape.device_memory_mib, count)
        self.cpu_milli -= count * shape.cpu_milli
        self.memory_mib -= count * shape.memory_mib
        return count

    def _take_shares(self, milli: int, memory_mib: int | None, wanted: int) -> int:
        """Slices of `milli`, each with so much of its device's memory; None = in proportion."""
        size = self.device_memory_mib * milli // WHOLE_DEVICE_MILLI if memory_mib is None else memory_mib
        taken = 0
        for index in range(len(self.shared) + self.whole):
            if taken == wanted:
                break
            if index == len(self.shared):
                self.whole -= 1
                self.shared.append((WHOLE_DEVICE_MILLI, self.device_memory_mib))
            free_milli, free_memory = self.shared[index]
            here = min(wanted - taken, free_milli // milli, free_memory // size if size else wanted)
            self.shared[index] = (free_milli - here * milli, free_memory - here * size)
            taken += here
        return taken


def serves(template: NodeTemplate, flavor: str, shape: DemandShape) -> bool:
    """Whether an empty node of the template could take one such task."""
    return (
        shape.device_count > 0
        and flavor in shape.flavors
        and shape.simulated == (template.provider == "simulated")
        and not shape.needs_image
        and (not shape.architectures or template.arch in shape.architectures)
        and all(template.labels.get(key) == value for key, value in shape.labels.items())
        and shape.device_count <= template.devices
        and (shape.device_memory_mib or 0) <= _device_memory(template.model, template.vendor)
        and shape.cpu_milli <= template.cpu_milli
        and shape.memory_mib <= template.memory_mib
    )


def milli_of(shape: DemandShape) -> int:
    """What all tasks of a shape ask for together."""
    return shape.tasks * shape.device_count * shape.device_milli


def bind_demand(
    shapes: Iterable[DemandShape], template: NodeTemplate, flavor: str, *, on_their_way: int, most_new: int
) -> Binding:
    """Pack what waits into nodes on their way, then into new ones.

    Args:
        on_their_way: nodes that will be empty: ordered ones, and those whose arrival the scheduler may not know yet.
        most_new: how many more nodes may be thought of.
    """
    found = list(shapes)
    served = sorted((shape for shape in found if serves(template, flavor, shape)), key=_largest_first)
    rooms = [_empty(template) for _ in range(on_their_way)]
    new: list[_Room] = []
    left = [shape for shape in found if not serves(template, flavor, shape)]
    unbound = 0
    queued = 0
    for shape in served:
        before = copy.deepcopy((rooms, new))
        tasks = shape.tasks - _pack(rooms, new, shape, shape.tasks, template, most_new)
        if shape.gang_size > 1 and tasks:
            # A gang for which the policy could never have enough nodes gets none: they would stand idle.
            rooms, new = before
            whole = (shape.tasks - tasks) // shape.gang_size * shape.gang_size
            _pack(rooms, new, shape, whole, template, most_new)
            queued += milli_of(shape.model_copy(update={"tasks": whole}))
            left.append(shape.model_copy(update={"tasks": shape.tasks - whole}))
            continue
        queued += milli_of(shape)
        if tasks:
            unbound += tasks
            left.append(shape.model_copy(update={"tasks": tasks}))
    return Binding(queued, len(new), unbound, tuple(left))


def _pack(
    rooms: list[_Room], new: list[_Room], shape: DemandShape, wanted: int, template: NodeTemplate, most_new: int
) -> int:
    """Puts tasks into rooms, and opens new ones; how many found a place."""
    taken = _fill([*rooms, *new], shape, wanted)
    while taken < wanted and len(new) < most_new:
        room = _empty(template)
        new.append(room)
        taken += room.take(shape, wanted - taken)
    return taken


def _fill(rooms: Sequence[_Room], shape: DemandShape, wanted: int) -> int:
    taken = 0
    for room in rooms:
        if taken == wanted:
            break
        taken += room.take(shape, wanted - taken)
    return taken


def _empty(template: NodeTemplate) -> _Room:
    memory = _device_memory(template.model, template.vendor)
    return _Room(template.devices, memory, template.cpu_milli, template.memory_mib)


@lru_cache
def _device_memory(model: str, vendor: str | None) -> int:
    """MiB of one device of a template's model; 0 = not known, and no task that asks for memory is placed on it."""
    return find_catalogue_entry(model, vendor).device_memory_mib or 0


def _largest_first(shape: DemandShape) -> tuple[int, int, int, str]:
    size = shape.device_count * shape.device_milli
    return (-size, -shape.cpu_milli, -shape.memory_mib, shape.model_dump_json())
