"""A test that cannot fail is refused, and every test says what kind of test it is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.architecture.tree import FunctionNode, functions, last_name, parsed, python_files, shown

pytestmark = pytest.mark.architecture

RAISING_CALLS = {"raises", "warns", "fail", "run_state_machine_as_test"}
CHECKING_PREFIXES = ("assert_", "check_", "expect_")
KINDS = {"unit", "integration", "system", "architecture"}


def _test_files() -> tuple[Path, ...]:
    return tuple(path for path in python_files("tests") if path.name.startswith("test_"))


def _can_fail(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return not isinstance(node.test, ast.Constant)
    if isinstance(node, ast.Call):
        name = last_name(node)
        return name in RAISING_CALLS or name.lstrip("_").startswith(CHECKING_PREFIXES)
    return False


def _toothless(path: Path) -> Iterator[FunctionNode]:
    for function in functions(path):
        if function.name.startswith("test_") and not any(_can_fail(node) for node in ast.walk(function)):
            yield function


def _names_a_kind(path: Path) -> bool:
    marks = {node.attr for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute)}
    return bool(marks & KINDS)


def test_tests_when_read_then_each_can_fail() -> None:
    assert _test_files()
    assert [shown(path, node.lineno) for path in _test_files() for node in _toothless(path)] == []


def test_test_files_when_read_then_each_is_marked_with_its_kind() -> None:
    assert [shown(path) for path in _test_files() if not _names_a_kind(path)] == []
