"""Pages of benchmark results say what their raw lines say: no figure is typed by hand."""

from pathlib import Path

import pytest

from tests.benchmarks.page import BY_HAND, judge_bar, render_page

pytestmark = pytest.mark.architecture

LINES = sorted((Path(__file__).parents[2] / "docs" / "benchmarks").glob("*.jsonl"))


def test_pages_when_made_again_from_their_raw_lines_then_nothing_changes() -> None:
    assert LINES
    for source in LINES:
        made, found, _ = source.with_suffix(".md").read_text(encoding="utf-8").partition(BY_HAND)
        assert found, source.name
        assert made == render_page(source), source.name


@pytest.mark.parametrize(
    ("bar", "value", "told"),
    [
        ("<= 500", 500.0, "<= 500 met"),
        ("<= 500", 500.1, "<= 500 **missed**"),
        (">= 2000", 1999.0, ">= 2000 **missed**"),
        ("= 0", 0.0, "= 0 met"),
        ("= 0", 1.0, "= 0 **missed**"),
        ("about 1000", 659.4, "about 1000"),
    ],
)
def test_bar_when_judged_then_tells_whether_it_is_met(bar: str, value: float, told: str) -> None:
    assert judge_bar(bar, value) == told
