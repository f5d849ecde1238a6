"""Samples added up in windows of 15 seconds: per pool, flavor and name how many told a value, mean and maximum.

A sample counts by its age at the receipt of the heartbeat that carried it, so no machine's clock matters. A value that
is null or not finite is counted as unknown and never as zero; one that is too old is not counted at all.
"""

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from millpond_contracts.bodies.scaling import SignalAggregate
from millpond_contracts.ids import PoolId

WINDOW_SECONDS = 15
NODE = "node"
UTILIZATION = "utilization_ratio"
# What came later than this after its instant says nothing about now.
OLDEST_SECONDS = 300.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one target; `node` and `target` together name a device or the node."""

    pool: PoolId
    flavor: str
    node: str
    target: str
    name: str
    at: datetime
    value: float | None


@dataclass(slots=True)
class _Sum:
    samples: int = 0
    unknown: int = 0
    total: float = 0.0
    maximum: float = -math.inf
    targets: set[tuple[str, str]] = field(default_factory=set)


@dataclass(slots=True)
class Windows:
    """The windows that may still be filled; those that were since the last look are told again, whole."""

    sums: dict[tuple[datetime, PoolId, str, str], _Sum] = field(default_factory=dict)
    changed: set[tuple[datetime, PoolId, str, str]] = field(default_factory=set)

    def add(self, sample: Sample, received_at: datetime) -> None:
        """Counts one sample, unless it is too old to say anything."""
        if received_at - sample.at > timedelta(seconds=OLDEST_SECONDS):
            return
        key = (window_of(sample.at), sample.pool, sample.flavor, sample.name)
        found = self.sums.setdefault(key, _Sum())
        found.samples += 1
        self.changed.add(key)
        if sample.value is None or not math.isfinite(sample.value):
            found.unknown += 1
            return
        found.total += sample.value
        found.maximum = max(found.maximum, sample.value)
        found.targets.add((sample.node, sample.target))

    def take_changed(self, now: datetime) -> list[SignalAggregate]:
        """The windows that were filled since the last call, in order; forgets those that nothing can come for."""
        keys = sorted(self.changed, key=lambda key: (key[0], str(key[1:])))
        self.changed.clear()
        found = [_aggregate(key, self.sums[key]) for key in keys]
        over = now - timedelta(seconds=OLDEST_SECONDS + WINDOW_SECONDS)
        self.sums = {key: kept for key, kept in self.sums.items() if key[0] > over}
        return found


def window_of(instant: datetime) -> datetime:
    """The start of the window that an instant lies in."""
    seconds = int((instant - _EPOCH).total_seconds())
    return _EPOCH + timedelta(seconds=seconds - seconds % WINDOW_SECONDS)


def _aggregate(key: tuple[datetime, PoolId, str, str], found: _Sum) -> SignalAggregate:
    window_at, pool, flavor, name = key
    known = found.samples - found.unknown
    return SignalAggregate(
        window_at=window_at,
        pool_id=pool,
        flavor=flavor,
        name=name,
        targets=len(found.targets),
        samples=found.samples,
        unknown=found.unknown,
        mean=found.total / known if known else None,
        maximum=found.maximum if known else None,
    )
