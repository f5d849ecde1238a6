"""What the rules of the tree look at: its files, parsed once."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("services", "client")
EVERYTHING = ("services", "client", "tests", "tools", "migrations")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def python_files(*folders: str) -> tuple[Path, ...]:
    """Every Python file below the given folders of the repository, sorted."""
    return tuple(sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")))


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(path: Path) -> Iterator[FunctionNode]:
    """Every function of a file, methods and nested ones included."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, FunctionNode):
            yield node


def shown(path: Path, line: int | None = None) -> str:
    """The path as a message shows it: relative to the repository, with a line where there is one."""
    place = path.relative_to(ROOT).as_posix()
    return place if line is None else f"{place}:{line}"


def last_name(call: ast.Call) -> str:
    """`c` of a call `a.b.c(...)`; empty where the callee has no name."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""
