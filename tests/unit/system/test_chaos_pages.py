"""Files of many chaos runs: what is run again, and that pages say what their lines say."""

from pathlib import Path

import pytest

from tests.system.chaos.seeds import find_missing, read_lines, render_page

pytestmark = pytest.mark.unit

FILES = sorted((Path(__file__).parents[3] / "docs" / "benchmarks" / "chaos").glob("*.jsonl"))


def test_seeds_when_a_file_has_lines_then_what_is_sound_or_failed_at_this_commit_is_not_run_again() -> None:
    lines = [
        {"seed": 1, "commit": "a", "is_sound": True},
        {"seed": 2, "commit": "a", "is_sound": False},
        {"seed": 3, "commit": "a", "is_sound": False},
        {"seed": 3, "commit": "b", "is_sound": False},
        {"seed": 4, "commit": "a", "is_sound": False},
        {"seed": 4, "commit": "b", "is_sound": True},
    ]
    assert find_missing(lines, range(1, 6), "b") == [2, 5]


def test_page_when_a_run_failed_then_it_is_counted_and_its_first_finding_told() -> None:
    sound = {"acknowledged": 100, "faults": {"kill": 2}, "doubled": 0, "overallocated": 0, "statement_mismatches": 0}
    sound |= {"recovery_s_max": 2.5, "ran_s": 60, "commit": "a", "seed": 1, "is_sound": True, "lost": 0, "findings": []}
    bad = {**sound, "seed": 2, "lost": 3, "is_sound": False, "findings": ["lost: job | gone"]}
    dead = {"seed": 3, "commit": "a", "is_sound": False, "findings": ["it did not end"]}
    page = render_page("x.jsonl", [sound, bad, dead])
    assert "In 3 runs, of 200 acknowledged operations 3 were lost and 0 took effect twice" in page
    assert "2 runs failed" in page
    assert "| 2 | a | 60 | 100 | 2 | 3 | 0 | 0 | 0 | 2.5 | **lost: job / gone** |" in page
    assert "| 3 | a |  |  |  |  |  |  |  |  | **it did not end** |" in page


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_pages_when_made_again_from_their_lines_then_nothing_changes(file: Path) -> None:
    assert file.with_suffix(".md").read_text(encoding="utf-8") == render_page(file.name, read_lines(file))
