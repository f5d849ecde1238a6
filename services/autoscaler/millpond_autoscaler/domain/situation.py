"""Everything a decision is drawn from, as values: stored with it, so that the same values decide the same again."""

from dataclasses import dataclass
from datetime import datetime

from millpond_autoscaler.domain.forecasts import NotEnoughData, Prediction
from millpond_contracts.bodies.scaling import DemandShape
from millpond_contracts.quantities import WHOLE_DEVICE_MILLI

# With nothing to hold it, any demand is a load of this much: far over every threshold.
NOTHING_TO_HOLD_IT = 10.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node of ours that could be released: what it holds, and since when it is there."""

    order: str
    node: str
    held_milli: int
    joined_at: datetime


@dataclass(frozen=True, slots=True)
class Signals:
    """What was measured lately: devices that told a value, devices that should have, and their mean utilisation."""

    expected: int
    told: int
    mean_ratio: float | None

    @property
    def are_known(self) -> bool:
        """Whether every device that takes work told something. Unknown is not zero."""
        return self.told >= self.expected


@dataclass(frozen=True, slots=True)
class Situation:
    """One policy's facts at one instant; amounts are device milli of its flavor.

    Args:
        schedulable_milli: devices that take work or hold some; None = not known, like `held_milli`.
        nodes: of ours, joined and staying. `ordered`: of ours, asked for and not there. `settling`: of `nodes`, those
            that came, or were kept, so lately that what waits may not have been told of them.
        releasing: of ours, being drained.
        cancellable: of `releasing`, those that can still be kept.
        foreign: of `nodes`, those that have no device of the flavor.
        low_since: since when the load is low without interruption, as watched.
        behind: why the views may be old, None = they are not, or nobody asked.
        candidates: nodes that may be released; None = nobody asked.
    """

    now: datetime
    held_milli: int | None
    schedulable_milli: int | None
    demand: tuple[DemandShape, ...]
    nodes: int
    ordered: int
    settling: int
    releasing: int
    cancellable: int
    foreign: int
    signals: Signals
    forecast: Prediction | NotEnoughData
    low_since: datetime | None = None
    last_out_at: datetime | None = None
    last_in_at: datetime | None = None
    retry_at: datetime | None = None
    stock_out_until: datetime | None = None
    behind: str | None = None
    candidates: tuple[Candidate, ...] | None = None

    @property
    def all_nodes(self) -> int:
        """Nodes that count against the policy's most: those that are being drained are still paid for."""
        return self.nodes + self.ordered + self.releasing


def load_ratio(situation: Situation, queued_milli: int, node_milli: int, less_nodes: int = 0) -> float | None:
    """(held + queued) / (schedulable + promised), or None while the pool's capacity is not known.

    Source: docs/decisions/0022-pool-load.md.
    """
    if situation.held_milli is None or situation.schedulable_milli is None:
        return None
    wanted = situation.held_milli + queued_milli
    there = situation.schedulable_milli + (situation.ordered - less_nodes) * node_milli
    if there <= 0:
        return NOTHING_TO_HOLD_IT if wanted else 0.0
    return round(wanted / there, 4)


def node_milli(devices: int) -> int:
    """What one node of so many devices offers."""
    return devices * WHOLE_DEVICE_MILLI
