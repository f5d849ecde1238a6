"""Only the unit of work ends a transaction (decision 32): one place decides what becomes true together."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.tree import PRODUCT, last_name, parsed, python_files, shown

pytestmark = pytest.mark.architecture

# The unit of work, the door that opens it, and the command that runs the migrations before any service is up.
MAY_COMMIT = {"millpond_kernel/uow.py", "millpond_kernel/db.py", "millpond_kernel/migrate.py"}
SQL_COMMIT = re.compile(r"^\s*COMMIT\b(?:\s+(?:WORK|TRANSACTION))?\s*;?\s*$", re.IGNORECASE | re.MULTILINE)


def _docstrings(tree: ast.Module) -> set[int]:
    """Identities of the constants that are docstrings; prose may say what code may not."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, documented))
    return {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}


def _commits(path: Path) -> Iterator[str]:
    tree = parsed(path)
    prose = _docstrings(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call() if last_name(node) == "commit":
                yield shown(path, node.lineno)
            case ast.Constant(value=str(text)) if id(node) not in prose and SQL_COMMIT.search(text):
                yield shown(path, node.lineno)


def test_commit_when_searched_then_only_in_the_unit_of_work() -> None:
    found = [
        place
        for path in python_files(*PRODUCT)
        if "/".join(path.parts[-2:]) not in MAY_COMMIT
        for place in _commits(path)
    ]
    assert found == []
