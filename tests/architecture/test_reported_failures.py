"""The page of failures that users of other systems reported names what a test replays, each test after its row."""

import re

import pytest

from tests.architecture.tree import ROOT, functions, python_files

pytestmark = pytest.mark.architecture

ROW = re.compile(r"^\| ([A-Za-z0-9_, -]+) \| (?!What|---)", re.MULTILINE)
PAGE = ROOT / "docs" / "reported-failures.md"


def _rows() -> list[str]:
    return [name for names in ROW.findall(PAGE.read_text(encoding="utf-8")) for name in names.split(", ")]


def test_rows_when_read_then_each_has_a_test_named_after_it() -> None:
    names = [
        function.name
        for path in python_files("tests")
        for function in functions(path)
        if function.name.startswith("test_") and path.name.startswith("test_")
    ]
    rows = _rows()
    assert len(rows) > 50
    assert len(set(rows)) == len(rows)
    assert [row for row in rows if not any(_is_named_after(name, row.lower()) for name in names)] == []


def _is_named_after(test: str, row: str) -> bool:
    """Whether the row stands at the beginning or at the end of the test's name, among other rows perhaps."""
    at_start = rf"test_([a-z]\d{{1,2}}_|[a-z_]+_\d{{3,5}}_)*{row}_"
    return bool(re.match(at_start, test) or re.search(rf"_{row}(_[a-z]\d{{1,2}})*$", test))
