"""Pauses between tries, and one log line where an outage begins and one where it ends."""

import random

from millpond_node_agent.observability import log
from millpond_node_agent.runtimes.boottime import monotonic_ms

_FIRST_SECONDS = 0.2
_LONGEST_SECONDS = 5.0


class Backoff:
    """Growing pauses with full jitter: many agents must not come back in step."""

    def __init__(self, longest_seconds: float = _LONGEST_SECONDS) -> None:
        self._longest = longest_seconds
        self._failures = 0

    def next_seconds(self) -> float:
        """The pause before the next try, between half and all of 0.2 s, 0.4 s, … up to the longest."""
        ceiling = min(self._longest, _FIRST_SECONDS * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return random.uniform(ceiling / 2, ceiling)

    def reset(self) -> None:
        """Start over after a success."""
        self._failures = 0


class Outage:
    """Whether one service answers; says so once when that changes."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._since_ms: int | None = None

    def failed(self, reason: str) -> None:
        """A request got no answer, or one that says 'later'."""
        if self._since_ms is None:
            self._since_ms = monotonic_ms()
            log.warning("control_plane_away", service=self._service, reason=reason)

    def answered(self) -> None:
        """A request was answered."""
        if self._since_ms is not None:
            seconds = (monotonic_ms() - self._since_ms) / 1000
            self._since_ms = None
            log.info("control_plane_back", service=self._service, away_seconds=round(seconds, 1))
