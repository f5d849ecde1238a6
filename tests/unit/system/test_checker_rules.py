"""The rules by which the system tests judge a stack: each finds what it is there for, and nothing else."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.system.checker import check_witnesses, highest_sum, overlaps

pytestmark = pytest.mark.unit

START = datetime(2030, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], 0),
        ([(0, 10, 600), (10, 20, 600)], 600),
        ([(0, 10, 600), (9.999999, 20, 600)], 1200),
        ([(0, 30, 1), (5, 10, 10), (10, 20, 100), (15, 16, 1000)], 1101),
    ],
)
def test_highest_sum_when_spans_meet_or_overlap_then_counts_what_is_held_at_once(
    spans: list[tuple[float, float, int]], expected: int
) -> None:
    assert highest_sum([(at(since), at(until), amount) for since, until, amount in spans]) == expected


@pytest.mark.parametrize(
    ("spans", "count"),
    [
        ([("a", 0, 5, "1"), ("a", 5, 9, "2"), ("b", 0, 9, "1")], 0),
        ([("a", 0, 5, "1"), ("a", 4, 9, "2")], 1),
        ([("a", 0, 9, "1"), ("a", 1, 2, "2"), ("a", 3, 4, "3")], 2),
    ],
)
def test_overlaps_when_spans_of_one_key_share_an_instant_then_says_which(
    spans: list[tuple[str, int, int, str]], count: int
) -> None:
    assert len(list(overlaps(spans))) == count


def test_witnesses_when_a_success_did_not_end_or_ended_twice_then_findings(tmp_path: Path) -> None:
    (tmp_path / "good.7").write_text("start 100\nend 200\n")
    (tmp_path / "retried.7").write_text("start 100\n")
    (tmp_path / "retried.8").write_text("start 300\nend 400\n")
    (tmp_path / "twice.7").write_text("start 100\nend 300\n")
    (tmp_path / "twice.8").write_text("start 200\nend 400\n")
    assert check_witnesses(tmp_path, {"good": "succeeded", "retried": "succeeded"}) == []
    assert len(check_witnesses(tmp_path, {"twice": "succeeded"})) == 2
    assert check_witnesses(tmp_path, {"absent": "succeeded"}) == ["job absent succeeded and came to its end 0 times"]
    assert check_witnesses(tmp_path, {"absent": "cancelled"}) == []
