"""Segments: the metered time of an allocation, one SKU each, cut so that within one nothing that matters changes."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from millpond_billing.domain.facts import Parties
from millpond_billing.domain.timeline import Timeline
from millpond_contracts.ids import AllocationId
from millpond_contracts.prices import Sku


class SegmentKind(StrEnum):
    """Why the time of a segment counts."""

    ACTIVE = "active"
    WAIVED = "waived"  # the provider had asked it to stop: shown, and taken off again
    MINIMUM = "minimum"  # an instant, the release: tops the seconds up to the minimum


@dataclass(frozen=True, slots=True)
class Segment:
    """`amount` smallest units of `sku` held over `[start, end)`.

    `seconds` are the whole seconds that begin in it; a short one may begin none.
    """

    kind: SegmentKind
    allocation_id: AllocationId
    parties: Parties
    sku: Sku
    amount: int
    start: int
    end: int
    seconds: int

    @property
    def microseconds(self) -> int:
        """The exact length of the segment."""
        return self.end - self.start


def cut_segments(timeline: Timeline, until: int, cuts: Collection[int]) -> tuple[Segment, ...]:
    """The metered time of an allocation up to `until`, ordered by SKU and start.

    Args:
        until: what is known up to now; an allocation still open ends here and grows later.
        cuts: instants to cut at (period boundaries, price changes), in any order.

    Returns:
        Per SKU disjoint segments that together cover the time from activation to release in which it was held. Only
        what changes the SKU's amount, a waiver, or a cut divides them, so equal facts give equal segments.
    """
    if timeline.active_at is None:
        return ()
    end = until if timeline.released_at is None else min(until, timeline.released_at)
    segments: list[Segment] = []
    for sku in timeline.skus():
        points = _points(timeline, sku, timeline.active_at, end, cuts)
        segments.extend(
            _segment(timeline, sku, start, stop) for start, stop in pairwise(points) if timeline.amount_at(sku, start)
        )
    return tuple(segments)


def _points(timeline: Timeline, sku: Sku, start: int, end: int, cuts: Collection[int]) -> list[int]:
    if end <= start:
        return []
    points = {start, end, *cuts}
    points |= {
        since for (_, before), (since, after) in pairwise(timeline.steps) if before.amount(sku) != after.amount(sku)
    }
    if timeline.waived_from is not None:
        points.add(timeline.waived_from)
    return sorted(point for point in points if start <= point <= end)


def _segment(timeline: Timeline, sku: Sku, start: int, end: int) -> Segment:
    waived = timeline.waived_from is not None and start >= timeline.waived_from
    return Segment(
        kind=SegmentKind.WAIVED if waived else SegmentKind.ACTIVE,
        allocation_id=timeline.allocation_id,
        parties=timeline.parties,
        sku=sku,
        amount=timeline.amount_at(sku, start),
        start=start,
        end=end,
        seconds=timeline.seconds_between(start, end),
    )
