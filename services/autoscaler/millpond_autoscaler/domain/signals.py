"""Samples added up in windows of 15 seconds: per pool, flavor and name how many told a value, mean and maximum.

A sample counts by its age at the receipt of the heartbeat that carried it, so no machine's clock matters. A value that
is null or not finite is counted as unknown and never as zero; one that is too old is not counted at all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from millpond_contracts.bodies.scaling import SignalAggregate
from millpond_contracts.ids import PoolId

WINDOW_SECONDS = 15
NODE = "node"
UTILIZATION = "utilization_ratio"
# What came later than this after its instant says nothing about now.
OLDEST_SECONDS = 300.0

Value = float | None
# The number of the window since 1970, pool, flavor, name.
_Key = tuple[int, PoolId, str, str]


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

    sums: dict[_Key, _Sum] = field(default_factory=dict)
    changed: set[_Key] = field(default_factory=set)

    def add(
        self,
        pool: PoolId,
        flavor: str,
        name: str,
        target: tuple[str, str],
        received: float,
        ages: Sequence[float],
        values: Sequence[Value],
    ) -> None:
        """Counts values, but those too old to say anything. Cheap: every sample of every machine comes here.

        Args:
            target: The node, and the device on it or the node itself.
            received: When the heartbeat came, in seconds since 1970.
            ages: Seconds that each sample was old then.
            values: One for each age.
        """
        window, found = None, _Sum()
        for age, value in zip(ages, values, strict=True):
            if age > OLDEST_SECONDS:
                continue
            number = int((received - age) // WINDOW_SECONDS)
            if number != window:
                window, key = number, (number, pool, flavor, name)
                found = self.sums.setdefault(key, _Sum())
                self.changed.add(key)
            found.samples += 1
            if value is None or not math.isfinite(value):
                found.unknown += 1
                continue
            found.total += value
            if value > found.maximum:
                found.maximum = value
            found.targets.add(target)

    def take_changed(self, now: datetime) -> list[SignalAggregate]:
        """The windows that were filled since the last call, in order; forgets those that nothing can come for."""
        keys = sorted(self.changed, key=lambda key: (key[0], str(key[1:])))
        self.changed.clear()
        found = [_aggregate(key, self.sums[key]) for key in keys]
        over = now.timestamp() - OLDEST_SECONDS - WINDOW_SECONDS
        self.sums = {key: kept for key, kept in self.sums.items() if key[0] * WINDOW_SECONDS > over}
        return found


def _aggregate(key: _Key, found: _Sum) -> SignalAggregate:
    window, pool, flavor, name = key
    known = found.samples - found.unknown
    return SignalAggregate(
        window_at=datetime.fromtimestamp(window * WINDOW_SECONDS, UTC),
        pool_id=pool,
        flavor=flavor,
        name=name,
        targets=len(found.targets),
        samples=found.samples,
        unknown=found.unknown,
        mean=found.total / known if known else None,
        maximum=found.maximum if known else None,
    )
