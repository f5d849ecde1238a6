"""Names that mean nothing, empty docstrings and paths of somebody's machine are refused."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.tree import EVERYTHING, PRODUCT, ROOT, parsed, python_files, shown

pytestmark = pytest.mark.architecture

MEANINGLESS = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "managers", "core", "base"}

# Places that exist on one machine only; written so that this file does not match itself.
FOREIGN_PATHS = re.compile(r"/wor[k]/(?:main|shared|\.library)|\.\./share[d]\b|\.librar[y]/")
# Benchmarks may look for optional recorded traces beside the checkout.
MAY_NAME_FOREIGN_PATHS = ("tests/benchmarks/", "Makefile")


def _tracked_text_files() -> Iterator[tuple[str, str]]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        names = [name for name in listed.stdout.split("\0") if name]
    else:  # an unpacked archive has no git; then the Python files are what there is to read
        names = [shown(path) for path in python_files(*EVERYTHING)]
    for name in names:
        path = ROOT / name
        if not path.is_file():
            continue
        try:
            yield name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def _words(path: Path) -> set[str]:
    return {part.removesuffix(".py") for part in path.relative_to(ROOT).parts}


def test_modules_when_named_then_the_name_says_something() -> None:
    nameless = [shown(path) for path in python_files(*EVERYTHING) if _words(path) & MEANINGLESS]
    assert nameless == []


def test_modules_when_read_then_a_docstring_says_what_they_are_for() -> None:
    silent = []
    for path in python_files(*EVERYTHING):
        docstring = ast.get_docstring(parsed(path)) or ""
        if (path.stat().st_size and not docstring) or docstring.startswith("Placeholder"):
            silent.append(shown(path))
    assert silent == []


def test_packages_when_opened_then_their_docstring_says_their_job() -> None:
    packages = [path for path in python_files(*PRODUCT) if path.name == "__init__.py"]
    silent = [shown(path) for path in packages if not ast.get_docstring(parsed(path))]
    assert packages
    assert silent == []


def test_tree_when_searched_then_no_path_of_one_machine() -> None:
    found = [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for name, text in _tracked_text_files()
        if not name.startswith(MAY_NAME_FOREIGN_PATHS)
        for match in FOREIGN_PATHS.finditer(text)
    ]
    assert found == []
