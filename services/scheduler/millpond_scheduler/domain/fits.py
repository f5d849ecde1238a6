"""The answers of the shape filters for one request, remembered per hardware shape."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from millpond_scheduler.domain.columns import BoolArray, CodeArray
from millpond_scheduler.domain.nodes import DeviceProfile, NodeProfile, NodeShape
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.verdicts import CODES, Reason

ShapeCheck: TypeAlias = Callable[[NodeProfile, DeviceProfile | None, RequestClass], bool]
ShapeFilters: TypeAlias = Sequence[tuple[Reason, ShapeCheck]]


class ShapeFits:
    """For each shape the first filter that it fails (0 = none), and the device slots that pass all of them.

    `label_matches` says for each label set whether it has the labels asked for. `flavors` are the flavors of passing
    devices seen so far, of any pool, with the least memory (MiB) among them, and `flavor_names` the same by name;
    `mixed_flavors` are their indexes if one shape has several.
    """

    def __init__(self, snapshot: Snapshot, request: RequestClass, filters: ShapeFilters) -> None:
        self.request = request
        self.pool = snapshot.pools.index(request.pool)
        self.tenant = snapshot.tenants.index(request.tenant)
        self.codes: CodeArray = np.zeros(0, dtype=np.uint8)
        self.slots: BoolArray = np.zeros((0, 0), dtype=np.bool_)
        self.flavors: dict[str, int] = {}
        self.flavor_names: tuple[str, ...] = ()
        self.mixed_flavors: tuple[int, ...] = ()
        self.label_matches: BoolArray = np.zeros(0, dtype=np.bool_)
        self._snapshot = snapshot
        self._filters = filters
        self._is_mixed = False

    def extend(self) -> None:
        """Judge the shapes and label sets that came since the last call."""
        snapshot = self._snapshot
        self._extend_labels(snapshot)
        shapes, width = snapshot.shapes.values, snapshot.columns.width
        known = len(self.codes)
        if known == len(shapes) and self.slots.shape[1] == width:
            return
        codes = np.zeros(len(shapes), dtype=np.uint8)
        slots = np.zeros((len(shapes), width), dtype=np.bool_)
        codes[:known] = self.codes
        slots[:known, : self.slots.shape[1]] = self.slots
        for index in range(known, len(shapes)):
            reason, passing = self._judge(shapes[index])
            codes[index] = CODES[reason]
            slots[index, passing] = True
            profiles = [shapes[index].devices[slot] for slot in passing]
            for profile in profiles:
                memory = profile.memory_mib or 0
                self.flavors[profile.flavor] = min(self.flavors.get(profile.flavor, memory), memory)
            self._is_mixed = self._is_mixed or len({profile.flavor for profile in profiles}) > 1
        self.codes, self.slots = codes, slots
        self.flavor_names = tuple(sorted(self.flavors))
        if self._is_mixed:
            self.mixed_flavors = tuple(snapshot.flavors.find(flavor) for flavor in self.flavor_names)

    def _extend_labels(self, snapshot: Snapshot) -> None:
        known, label_sets = len(self.label_matches), snapshot.label_sets.values
        if self.request.labels and known < len(label_sets):
            wanted = frozenset(self.request.labels)
            fresh = np.array([wanted <= labels for labels in label_sets[known:]], dtype=np.bool_)
            self.label_matches = np.concatenate((self.label_matches, fresh))

    def _judge(self, shape: NodeShape) -> tuple[Reason, list[int]]:
        passing: list[int | None] = [None]  # the node by itself
        if self.request.devices is not None and shape.devices:
            passing = list(range(len(shape.devices)))
        for reason, check in self._filters:
            passing = [
                slot
                for slot in passing
                if check(shape.node, None if slot is None else shape.devices[slot], self.request)
            ]
            if not passing:
                return reason, []
        return Reason.PLACEABLE, [slot for slot in passing if slot is not None]
