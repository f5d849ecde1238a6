"""How much is reserved at most at an instant of a window."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_quota.domain.windows import Window, find_peak

pytestmark = pytest.mark.unit

START = datetime(2031, 1, 1, tzinfo=UTC)


def window(start: int, end: int | None, amount: int = 0) -> Window:
    ends = None if end is None else START + timedelta(hours=end)
    return Window(START + timedelta(hours=start), ends, amount)


@pytest.mark.parametrize(
    ("reserved", "within", "peak"),
    [
        ([], window(0, None), 0),
        ([window(0, 10, 3)], window(2, 4), 3),
        ([window(0, 2, 3)], window(2, 4), 0),  # the end is not part of a window
        ([window(4, 6, 3)], window(2, 4), 0),
        ([window(0, 2, 3), window(2, 4, 5)], window(0, 4), 5),
        ([window(0, 3, 3), window(2, 4, 5)], window(0, 4), 8),
        ([window(0, None, 3), window(2, 4, 5)], window(5, None), 3),
        ([window(0, 3, 3), window(2, 4, 5)], window(3, 9), 5),
    ],
)
def test_peak_when_windows_overlap_then_is_the_largest_sum(reserved: list[Window], within: Window, peak: int) -> None:
    assert find_peak(reserved, within) == peak


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5), st.integers(1, 4)), max_size=6),
    st.integers(0, 9),
    st.integers(1, 6),
)
def test_peak_when_asked_hour_by_hour_then_is_the_same(
    made: list[tuple[int, int, int]], start: int, length: int
) -> None:
    reserved = [window(begin, begin + hours, amount) for begin, hours, amount in made]
    by_hour = [
        sum(amount for begin, hours, amount in made if begin <= hour < begin + hours)
        for hour in range(start, start + length)
    ]
    assert find_peak(reserved, window(start, start + length)) == max(by_hour)
