"""Where nodes stand: places as integers, and the domains of each level that they are in.

A rack or an interconnect domain is told apart by its region and zone, so the same name in two zones is two domains.
"""

from collections.abc import Iterable
from dataclasses import astuple, dataclass

import numpy as np

from millpond_contracts.resources import TopologyLevel
from millpond_scheduler.domain.columns import ABSENT, IntArray, Interner

LEVELS = tuple(TopologyLevel)
"""From wide to narrow; the last is each node by itself."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node stands; None = not known."""

    region: str | None = None
    zone: str | None = None
    rack: str | None = None
    interconnect_domain: str | None = None

    def domain_at(self, level: TopologyLevel) -> tuple[str, ...] | None:
        """Its domain at a level but `node`, with what tells it apart; None when it is not known."""
        values = astuple(self)
        value = values[LEVELS.index(level)]
        wider = values[: min(LEVELS.index(level), 2)]
        return None if value is None else tuple(each or "" for each in (*wider, value))


def common_place(places: Iterable[Place]) -> Place:
    """The domains that all of these places are in."""
    listed = list(places)
    found = [{place.domain_at(level) for place in listed} for level in LEVELS[:-1]]
    return Place(*(domain[-1] if len(each) == 1 and (domain := next(iter(each))) else None for each in found))


def in_words(level: TopologyLevel) -> str:
    """A level as people write it."""
    return level.value.replace("_", " ")


class Places:
    """Integers for places and domains, given in order of first sight and never taken back."""

    def __init__(self) -> None:
        self._places: Interner[Place] = Interner()
        self._domains: dict[TopologyLevel, Interner[tuple[str, ...]]] = {level: Interner() for level in LEVELS[:-1]}
        self._of_place: dict[TopologyLevel, list[int]] = {level: [] for level in LEVELS[:-1]}

    def __len__(self) -> int:
        return len(self._places.values)

    def index(self, place: Place) -> int:
        """The place's integer, given now if it has none."""
        found = self._places.index(place)
        if found == len(self._of_place[LEVELS[0]]):
            for level, domains in self._domains.items():
                key = place.domain_at(level)
                self._of_place[level].append(ABSENT if key is None else domains.index(key))
        return found

    def domains_of(self, level: TopologyLevel, places: IntArray) -> IntArray:
        """The domains of these places at a level but `node`; ABSENT where it is not known."""
        found: IntArray = np.array(self._of_place[level], dtype=np.int64)[places]
        return found

    def name_of(self, level: TopologyLevel, domain: int) -> str:
        """A domain as people write it: `north/north-a/r7`."""
        return "/".join(part for part in self._domains[level].values[domain] if part)
