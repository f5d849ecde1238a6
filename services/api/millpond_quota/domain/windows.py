"""Reserved amounts in time: how much is reserved at most at any instant of a window."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Window:
    """So much from `start` until `end`, which is not part of it; None = without end."""

    start: datetime
    end: datetime | None
    amount: int = 0

    def overlaps(self, other: "Window") -> bool:
        """Whether some instant lies in both."""
        return (other.end is None or self.start < other.end) and (self.end is None or other.start < self.end)


def find_peak(windows: Iterable[Window], within: Window) -> int:
    """The largest sum of the windows' amounts at an instant of `within`; 0 where none reaches into it."""
    found = [window for window in windows if window.overlaps(within)]
    # A sum only grows where a window begins.
    instants = {max(window.start, within.start) for window in found}
    return max((_sum_at(found, instant) for instant in instants), default=0)


def _sum_at(windows: Iterable[Window], instant: datetime) -> int:
    return sum(
        window.amount for window in windows if window.start <= instant and (window.end is None or instant < window.end)
    )
