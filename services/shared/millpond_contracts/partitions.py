"""Hardware partitions of devices (MIG): which profiles a model has, how much each takes, and where it may begin.

A device in partition mode has up to eight memory slices; a profile takes some of them, from one of its legal starts on.
So what is taken of a device is a mask of slices, and a profile fits where one of its masks is free.

The table is package data (`data/partitions.csv`, attribution beside it).
"""

import csv
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files

from millpond_contracts.quantities import WHOLE_DEVICE_MILLI

PARTITION_MODE = "mig"
"""The mode of a device that is given out in hardware partitions alone."""

MAX_SLICES = 8


@dataclass(frozen=True, slots=True)
class PartitionProfile:
    """One profile of a family of models.

    Attributes:
        slices: memory slices that it takes, next to one another.
        starts: the slices that it may begin at, rising.
    """

    name: str
    compute_slices: int
    slices: int
    starts: tuple[int, ...]

    def mask(self, start: int) -> int:
        """The slices that it takes from `start` on, a bit each."""
        return mask_of(start, self.slices)


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the devices of some models are divided: their memory slices and profiles, the smallest first."""

    slices: int
    profiles: tuple[PartitionProfile, ...]

    @property
    def slice_milli(self) -> int:
        """What one memory slice counts of a device in limits and bills; exact, for there are 4 or 8 slices."""
        return WHOLE_DEVICE_MILLI // self.slices

    def find_profile(self, name: str) -> PartitionProfile | None:
        """The profile of this name."""
        return next((profile for profile in self.profiles if profile.name == name), None)


def mask_of(start: int, slices: int) -> int:
    """So many slices from `start` on, a bit each."""
    return (1 << slices) - 1 << start


def first_slice(mask: int) -> int:
    """Where a mask of slices begins."""
    return (mask & -mask).bit_length() - 1


def find_geometry(model_key: str | None) -> Geometry | None:
    """How devices of a model of the accelerator catalogue can be divided; None = not at all, or not known."""
    return None if model_key is None else _geometries().get(model_key)


@lru_cache(maxsize=1024)
def offered_geometry(model_key: str | None, offered: tuple[str, ...]) -> Geometry:
    """What a device in partition mode is given out in: of its model's profiles those that its agent can make.

    Of a model that is not known that is nothing.
    """
    known = find_geometry(model_key) or Geometry(MAX_SLICES, ())
    return Geometry(known.slices, tuple(profile for profile in known.profiles if profile.name in offered))


def count_fitting(profile: PartitionProfile, taken: int) -> int:
    """How many of a profile fit together beside the slices of a mask."""
    count = 0
    for start in profile.starts:  # of places of one length the first that is free is always one of the most
        if not profile.mask(start) & taken:
            taken |= profile.mask(start)
            count += 1
    return count


def usable_milli(geometry: Geometry, taken: int) -> int:
    """Of what is free beside a mask, the part that lies in a place where some profile may still be."""
    places = (profile.mask(start) for profile in geometry.profiles for start in profile.starts)
    usable = 0
    for place in places:
        usable |= 0 if place & taken else place
    return geometry.slice_milli * usable.bit_count()


@cache
def list_geometries() -> tuple[Geometry, ...]:
    """Every geometry, in the order of the file."""
    return tuple(dict.fromkeys(_geometries().values()))


@cache
def list_profile_names() -> frozenset[str]:
    """Every name that a profile of some model has."""
    return frozenset(profile.name for geometry in list_geometries() for profile in geometry.profiles)


@cache
def _geometries() -> dict[str, Geometry]:
    text = files("millpond_contracts").joinpath("data/partitions.csv").read_text(encoding="utf-8")
    families: dict[str, tuple[int, list[PartitionProfile]]] = {}
    for row in csv.DictReader(text.splitlines()):
        _, profiles = families.setdefault(row["models"], (int(row["device_slices"]), []))
        starts = tuple(map(int, row["starts"].split()))
        profiles.append(PartitionProfile(row["profile"], int(row["compute_slices"]), int(row["memory_slices"]), starts))
    found: dict[str, Geometry] = {}
    for models, (slices, profiles) in families.items():
        if WHOLE_DEVICE_MILLI % slices or slices > MAX_SLICES:
            raise ValueError(f"{models}: a device of {slices} slices cannot be counted in thousandths")
        found |= dict.fromkeys(models.split("|"), Geometry(slices, tuple(profiles)))
    return found
