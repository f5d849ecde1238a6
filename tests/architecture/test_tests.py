"""A test that cannot fail is refused, and every test says what kind of test it is."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.architecture.tree import FunctionNode, functions, last_name, parsed, python_files, shown

pytestmark = pytest.mark.architecture

# `eventually` gives up with an error; `check` is Alembic's comparison.
RAISING_CALLS = {"raises", "warns", "fail", "run_state_machine_as_test", "eventually", "check"}
CHECKING_PREFIXES = ("assert_", "check_", "expect_")
CHECKING_KEYWORDS = {"expect"}
KINDS = {"unit", "integration", "system", "architecture"}


def _test_files() -> tuple[Path, ...]:
    return tuple(path for path in python_files("tests") if path.name.startswith("test_"))


def _checks(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return not isinstance(node.test, ast.Constant)
    if isinstance(node, ast.Call):
        # Also a function that is handed on to be called: `to_thread(command.check, …)`.
        names = {last_name(node), *(argument.attr for argument in node.args if isinstance(argument, ast.Attribute))}
        by_name = any(name in RAISING_CALLS or name.lstrip("_").startswith(CHECKING_PREFIXES) for name in names)
        return by_name or any(keyword.arg in CHECKING_KEYWORDS for keyword in node.keywords)
    return False


def _can_fail(function: FunctionNode, beside: Mapping[str, FunctionNode], seen: frozenset[str] = frozenset()) -> bool:
    """Whether it checks something, itself or through the functions of its file that it calls."""
    if any(_checks(node) for node in ast.walk(function)):
        return True
    called = {last_name(node) for node in ast.walk(function) if isinstance(node, ast.Call)} & set(beside) - seen
    return any(_can_fail(beside[name], beside, seen | called) for name in called)


def _toothless(path: Path) -> Iterator[FunctionNode]:
    beside = {node.name: node for node in parsed(path).body if isinstance(node, FunctionNode)}
    for function in functions(path):
        if function.name.startswith("test_") and not _can_fail(function, beside):
            yield function


def _names_a_kind(path: Path) -> bool:
    marks = {node.attr for node in ast.walk(parsed(path)) if isinstance(node, ast.Attribute)}
    return bool(marks & KINDS)


def test_tests_when_read_then_each_can_fail() -> None:
    assert _test_files()
    assert [shown(path, node.lineno) for path in _test_files() for node in _toothless(path)] == []


def test_test_files_when_read_then_each_is_marked_with_its_kind() -> None:
    assert [shown(path) for path in _test_files() if not _names_a_kind(path)] == []
