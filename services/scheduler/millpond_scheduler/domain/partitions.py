"""Hardware partitions as masks of memory slices: where a profile fits and which place spoils least, as tables.

There are at most 256 masks of what is taken of a device, so every question about a profile is answered once for each of
them. Of the legal starts that are free the one is taken that costs least of what could still be made of the device: the
placements of all profiles that are free before and not after, each counted by its memory slices, since a large one is
harder to get back. Of equal ones the lowest start.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from millpond_contracts.partitions import MAX_SLICES, Geometry, PartitionProfile, count_fitting
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI
from millpond_scheduler.domain.columns import IntArray

MASKS = 1 << MAX_SLICES
NO_START = -1
NO_PLACE = 1 << 9
"""What is lost where the profile does not fit: more than a device has."""


@dataclass(frozen=True, slots=True, eq=False)
class ProfileTable:
    """One profile on devices of one geometry; arrays are (256,), by the mask of the slices that are taken.

    Attributes:
        milli: what it counts of a device.
        starts: where it goes, NO_START where no legal start is free.
        lost: what is lost of the placements that were still possible, NO_PLACE where it does not fit.
        counts: how many more of it fit together.
        milli_left: what is free of a device of which these slices, and nothing else, are held.
    """

    geometry: Geometry
    profile: PartitionProfile
    milli: int
    starts: IntArray
    lost: IntArray
    counts: IntArray
    milli_left: IntArray


class ProfileTables:
    """The tables of one name, a row for each geometry that has it, as `ProfileTable` says; row 0 fits nowhere.

    Attributes:
        milli, slices, device_slices: (rows,)
        starts, lost, counts, milli_left: (rows, 256)
    """

    def __init__(self) -> None:
        self._tables: list[ProfileTable] = []
        self._stack()

    def add(self, geometry: Geometry, profile: PartitionProfile) -> int:
        """The row of a profile of a geometry, made now if there is none."""
        table = table_of(geometry, profile)
        if table not in self._tables:
            self._tables.append(table)
            self._stack()
        return self._tables.index(table) + 1

    def geometry_of(self, row: int) -> Geometry:
        """The geometry of a row but the first."""
        return self._tables[row - 1].geometry

    def _stack(self) -> None:
        tables = self._tables
        self.milli: IntArray = np.array([0, *(one.milli for one in tables)], dtype=np.int64)
        self.slices: IntArray = np.array([0, *(one.profile.slices for one in tables)], dtype=np.int64)
        self.device_slices: IntArray = np.array([1, *(one.geometry.slices for one in tables)], dtype=np.int64)
        self.starts: IntArray = np.stack([_fill(NO_START), *(one.starts for one in tables)])
        self.lost: IntArray = np.stack([_fill(NO_PLACE), *(one.lost for one in tables)])
        self.counts: IntArray = np.stack([_fill(0), *(one.counts for one in tables)])
        self.milli_left: IntArray = np.stack([_fill(NO_START), *(one.milli_left for one in tables)])


@lru_cache(maxsize=1024)
def table_of(geometry: Geometry, profile: PartitionProfile) -> ProfileTable:
    """The answers for one profile of a geometry."""
    worth = _worth_of(geometry)
    starts, lost, counts = (np.zeros(MASKS, dtype=np.int64) for _ in range(3))
    for taken in range(MASKS):
        free = list(_free_starts(profile, taken))
        after = {start: taken | profile.mask(start) for start in free}
        starts[taken] = min(free, key=lambda start: (-worth[after[start]], start), default=NO_START)
        lost[taken] = min((worth[taken] - worth[mask] for mask in after.values()), default=NO_PLACE)
        counts[taken] = count_fitting(profile, taken)
    used = np.array([mask.bit_count() for mask in range(MASKS)], dtype=np.int64)
    left = WHOLE_DEVICE_MILLI - geometry.slice_milli * used
    return ProfileTable(geometry, profile, geometry.slice_milli * profile.slices, starts, lost, counts, left)


def find_largest(geometry: Geometry, taken: int) -> PartitionProfile | None:
    """The largest profile that still fits, by memory and then compute; None when none does."""
    fitting = [profile for profile in geometry.profiles if next(_free_starts(profile, taken), None) is not None]
    return max(fitting, key=lambda profile: (profile.slices, profile.compute_slices), default=None)


@cache
def _worth_of(geometry: Geometry) -> tuple[int, ...]:
    """By the mask of what is taken: the placements of all profiles that are still possible, by their memory slices."""
    return tuple(
        sum(profile.slices * sum(1 for _ in _free_starts(profile, taken)) for profile in geometry.profiles)
        for taken in range(MASKS)
    )


def _free_starts(profile: PartitionProfile, taken: int) -> Iterator[int]:
    return (start for start in profile.starts if not profile.mask(start) & taken)


def _fill(value: int) -> IntArray:
    return np.full(MASKS, value, dtype=np.int64)
