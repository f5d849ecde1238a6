"""The answers of the shape filters for one request, remembered per hardware shape."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from millpond_scheduler.domain.columns import ABSENT, BoolArray, CodeArray, IntArray
from millpond_scheduler.domain.distance import DistanceRules, measure_distance, wishes_of
from millpond_scheduler.domain.nodes import DeviceProfile, NodeProfile, NodeShape
from millpond_scheduler.domain.partitions import ProfileTables
from millpond_scheduler.domain.requests import RequestClass
from millpond_scheduler.domain.snapshot import Snapshot
from millpond_scheduler.domain.verdicts import CODES, Reason

ShapeCheck: TypeAlias = Callable[[NodeProfile, DeviceProfile | None, RequestClass], bool]
ShapeFilters: TypeAlias = Sequence[tuple[Reason, ShapeCheck]]

STEP_BITS = 6
FURTHEST = (1 << STEP_BITS) - 1
"""The most steps that a distance has; a distance of more counts as so many."""


class ShapeFits:
    """For each shape the first filter that it fails (0 = none), and the device slots that pass all of them.

    `label_matches` says for each label set whether it has the labels asked for, `affinity_matches` whether they are as
    the affinity asks, and `places_known` for each place whether it is known on all `levels` asked of.
    `flavors` are the flavors of passing devices seen so far, of any pool, with the least memory (MiB) among them, and
    `flavor_names` the same by name; `mixed_flavors` are their indexes if one shape has several. `slot_steps` says how
    far each passing slot is from the request, in steps, and `steps` the same of each shape's nearest; `has_steps`
    whether any is further than another.
    `partitions` has the tables of the profile asked for, and `slot_partition` says which of them is a passing slot's;
    `partition_milli` = the most that one counts, by flavor.
    """

    def __init__(self, snapshot: Snapshot, request: RequestClass, filters: ShapeFilters, rules: DistanceRules) -> None:
        self.request = request
        self.pool = snapshot.pools.index(request.pool)
        self.tenant = snapshot.tenants.index(request.tenant)
        self.codes: CodeArray = np.zeros(0, dtype=np.uint8)
        self.slots: BoolArray = np.zeros((0, 0), dtype=np.bool_)
        self.flavors: dict[str, int] = {}
        self.flavor_names: tuple[str, ...] = ()
        self.mixed_flavors: tuple[int, ...] = ()
        self.label_matches: BoolArray = np.zeros(0, dtype=np.bool_)
        self.affinity_matches: BoolArray = np.zeros(0, dtype=np.bool_)
        self.places_known: BoolArray = np.zeros(0, dtype=np.bool_)
        self.levels = request.levels
        self.slot_steps: IntArray = np.zeros((0, 0), dtype=np.int64)
        self.steps: IntArray = np.zeros(0, dtype=np.int64)
        self.has_steps = False
        self.partitions = ProfileTables()
        self.partition_milli: dict[str, int] = {}
        self.slot_partition: IntArray = np.zeros((0, 0), dtype=np.int64)
        self._snapshot = snapshot
        self._filters = filters
        self._rules = rules
        self._wishes = wishes_of(rules, request)
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
        slot_steps = np.zeros((len(shapes), width), dtype=np.int64)
        slot_steps[:known, : self.slots.shape[1]] = self.slot_steps
        slot_partition = np.zeros((len(shapes), width), dtype=np.int64)
        slot_partition[:known, : self.slots.shape[1]] = self.slot_partition
        for index in range(known, len(shapes)):
            reason, passing = self._judge(shapes[index])
            codes[index] = CODES[reason]
            slots[index, passing] = True
            profiles = [shapes[index].devices[slot] for slot in passing]
            for profile in profiles:
                memory = profile.memory_mib or 0
                self.flavors[profile.flavor] = min(self.flavors.get(profile.flavor, memory), memory)
            self._is_mixed = self._is_mixed or len({profile.flavor for profile in profiles}) > 1
            slot_steps[index, passing] = self._measure(profiles)
            slot_partition[index, passing] = [self._partition(profile) for profile in profiles]
        self.codes, self.slots, self.slot_steps, self.slot_partition = codes, slots, slot_steps, slot_partition
        self.steps = np.where(slots, slot_steps, FURTHEST).min(axis=1, initial=FURTHEST)
        self.has_steps = bool(slot_steps.any())
        self.flavor_names = tuple(sorted(self.flavors))
        if self._is_mixed:
            self.mixed_flavors = tuple(snapshot.flavors.find(flavor) for flavor in self.flavor_names)

    def _partition(self, device: DeviceProfile) -> int:
        """The row of the profile asked for; 0 without one."""
        wanted = None if self.request.devices is None else self.request.devices.profile
        if wanted is None or device.geometry is None:
            return 0
        profile = device.geometry.find_profile(wanted)
        assert profile is not None, "the device passed without the profile"
        row = self.partitions.add(device.geometry, profile)
        most = self.partition_milli.get(device.flavor, 0)
        self.partition_milli[device.flavor] = max(most, int(self.partitions.milli[row]))
        return row

    def _measure(self, profiles: Sequence[DeviceProfile]) -> list[int]:
        """The steps of a shape's passing devices. Those of one flavor are taken together, so the furthest counts."""
        if not self._wishes:
            return [0] * len(profiles)
        furthest: dict[str, int] = {}
        for profile in profiles:
            step = min(measure_distance(self._rules, self._wishes, profile).step, FURTHEST)
            furthest[profile.flavor] = max(furthest.get(profile.flavor, 0), step)
        return [furthest[profile.flavor] for profile in profiles]

    def _extend_labels(self, snapshot: Snapshot) -> None:
        known, label_sets = len(self.label_matches), snapshot.label_sets.values
        if self.request.labels and known < len(label_sets):
            wanted = frozenset(self.request.labels)
            fresh = np.array([wanted <= labels for labels in label_sets[known:]], dtype=np.bool_)
            self.label_matches = np.concatenate((self.label_matches, fresh))
        known = len(self.affinity_matches)
        if self.request.affinity and known < len(label_sets):
            met = [all(each.holds(dict(labels)) for each in self.request.affinity) for labels in label_sets[known:]]
            self.affinity_matches = np.concatenate((self.affinity_matches, np.array(met, dtype=np.bool_)))
        if self.levels and len(self.places_known) < len(snapshot.places):
            everywhere = np.arange(len(snapshot.places))
            known_at = [snapshot.places.domains_of(level, everywhere) != ABSENT for level in self.levels]
            self.places_known = np.logical_and.reduce(known_at)

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
