"""The reference model is worth something only while it shares no code with what it checks."""

import ast
from pathlib import Path

import pytest

from tests.reference import billing_model

pytestmark = pytest.mark.unit


def test_reference_model_when_read_then_imports_only_the_standard_library() -> None:
    tree = ast.parse(Path(billing_model.__file__).read_text(encoding="utf-8"))

    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}

    assert imported == {"collections", "collections.abc", "dataclasses", "fractions", "itertools", "math", "typing"}
