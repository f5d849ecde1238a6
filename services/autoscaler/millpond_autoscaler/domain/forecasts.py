"""The seam for forecasts: what a forecaster is given and answers. Until one is built there is none, and it says so."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LoadSample:
    """The load of a pool's flavor at an instant."""

    at: datetime
    load_ratio: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """Quantiles of the highest load within the horizon, and of the lowest: a distribution, not a number."""

    horizon_seconds: int
    highest_median_ratio: float
    highest_p90_ratio: float
    model: str


@dataclass(frozen=True, slots=True)
class NotEnoughData:
    """No prediction, and why: how much history there is and how much is needed."""

    have_seconds: int
    need_seconds: int


class Forecast(Protocol):
    """Predicts the load of one flavor of one pool."""

    def predict(self, history: Sequence[LoadSample], now: datetime, horizon_seconds: int) -> Prediction | NotEnoughData:
        """The load within the horizon, or that the history is too short."""


class NoForecast:
    """The forecast in force until there is a model: it never has enough."""

    NEED_SECONDS = 7 * 86_400

    def predict(self, history: Sequence[LoadSample], now: datetime, horizon_seconds: int) -> Prediction | NotEnoughData:
        """Says how much history there would be."""
        have = int((now - history[0].at).total_seconds()) if history else 0
        return NotEnoughData(have_seconds=have, need_seconds=self.NEED_SECONDS)
