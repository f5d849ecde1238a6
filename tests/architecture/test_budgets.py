"""Files and functions stay small enough to be read in one sitting (decision 32)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.tree import functions, python_files, shown

pytestmark = pytest.mark.architecture

FILE_LINES_WARN, FILE_LINES_FAIL = 400, 600
FUNCTION_LINES_WARN, FUNCTION_LINES_FAIL = 60, 100


def _budgeted() -> Iterator[Path]:
    # Data and migrations are exempt: their length says nothing about the ideas in them.
    for path in python_files("services", "client", "tests", "tools"):
        if "data" not in path.parts:
            yield path


def _file_lengths() -> Iterator[tuple[int, str]]:
    for path in _budgeted():
        yield len(path.read_text(encoding="utf-8").splitlines()), shown(path)


def _function_lengths() -> Iterator[tuple[int, str]]:
    for path in _budgeted():
        for node in functions(path):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{shown(path, node.lineno)} {node.name}"


def _over(lengths: Iterator[tuple[int, str]], limit: int) -> list[str]:
    return [f"{length} lines: {place}" for length, place in sorted(lengths, reverse=True) if length > limit]


def test_files_when_measured_then_within_budget(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        for line in _over(_file_lengths(), FILE_LINES_WARN):
            print(f"\nwarning: file over {FILE_LINES_WARN}: {line}")
    assert _over(_file_lengths(), FILE_LINES_FAIL) == []


def test_functions_when_measured_then_within_budget(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        for line in _over(_function_lengths(), FUNCTION_LINES_WARN):
            print(f"\nwarning: function over {FUNCTION_LINES_WARN}: {line}")
    assert _over(_function_lengths(), FUNCTION_LINES_FAIL) == []
