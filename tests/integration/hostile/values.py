"""Values that nobody can mean, put in the place of every value of a body that is right."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NUL = "a\x00b"
HALF_A_PAIR = "a\ud800b"
LONG = "x" * 199_999 + "é"
DEEP: Any = None
for _ in range(40):
    DEEP = [DEEP]

# What may not stand where an integer, a text or a list is meant. Booleans are integers in Python only.
FOR_INTEGERS: tuple[Any, ...] = (-(2**40), 2**62 + 1, 2**64, 10**400, 1.5, 9e30, -9e30, True, "many", "", [], {}, DEEP)
FOR_NUMBERS: tuple[Any, ...] = (10**400, "many", "", [], {}, DEEP)
FOR_TEXTS: tuple[Any, ...] = (NUL, HALF_A_PAIR, LONG, 7, 9e30, True, [], {}, DEEP)
FOR_CONTAINERS: tuple[Any, ...] = (7, True, "text", DEEP)
FOR_OTHERS: tuple[Any, ...] = ("", "text", 2**62 + 1, 9e30, [DEEP])


@dataclass(frozen=True, slots=True)
class Bad:
    """A body that must be refused, and in what it is bad."""

    why: str
    content: bytes


def bad_bodies(body: dict[str, Any]) -> Iterator[Bad]:
    """Every value of `body` replaced by each hostile one, and an unknown field added to every object."""
    for path, value in _places(body):
        for hostile in _hostile_for(value):
            changed = _replaced(body, path, hostile)
            yield Bad(f"{'/'.join(map(str, path))} = {_short(hostile)}", json.dumps(changed).encode())
        for constant in ("NaN", "Infinity", "-Infinity"):
            text = json.dumps(_replaced(body, path, "<constant>")).replace('"<constant>"', constant)
            yield Bad(f"{'/'.join(map(str, path))} = {constant}", text.encode())
        if isinstance(value, dict):
            yield Bad(f"unknown field in /{'/'.join(map(str, path))}", _with_surplus(body, path))
    yield Bad("unknown field", json.dumps({**body, "surplus": 1}).encode())


def _hostile_for(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool) or value is None:
        return FOR_OTHERS
    if isinstance(value, int | float):
        return FOR_INTEGERS if isinstance(value, int) else FOR_NUMBERS
    return FOR_TEXTS if isinstance(value, str) else FOR_CONTAINERS


def _places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value[:1]):
            yield from _places(inner, (*path, index))


def _replaced(body: Any, path: tuple[str | int, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(body))
    target = copy
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return copy


def _with_surplus(body: Any, path: tuple[str | int, ...]) -> bytes:
    copy = json.loads(json.dumps(body))
    target = copy
    for key in path:
        target = target[key]
    target["Surplus?"] = {"a": 1}
    return json.dumps(copy).encode()


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:30]}… ({len(text)} characters)"


# Bodies that are bad whatever the route is: the status and code follow from the text alone.
RAW: dict[str, tuple[bytes, int, frozenset[str]]] = {
    "empty": (b"", 422, frozenset({"kernel.body.invalid", "kernel.body.not_json"})),
    "not json": (b"{", 422, frozenset({"kernel.body.not_json"})),
    "trailing text": (b"{} {}", 422, frozenset({"kernel.body.not_json"})),
    "not utf-8": (b'{"a": "\xff"}', 422, frozenset({"kernel.body.not_json"})),
    "null": (b"null", 422, frozenset({"kernel.body.invalid"})),
    "a list": (b"[]", 422, frozenset({"kernel.body.invalid"})),
    "a text": (b'"text"', 422, frozenset({"kernel.body.invalid"})),
    "a key twice": (b'{"a": 1, "a": 2}', 422, frozenset({"kernel.body.invalid"})),
    "70 levels": (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", 422, frozenset({"kernel.body.invalid"})),
    "100,000 levels": (b"[" * 100_000, 422, frozenset({"kernel.body.not_json"})),
    "a long unknown field": (b'{"' + b"x" * 500_000 + b'": 1}', 422, frozenset({"kernel.body.invalid"})),
    "unknown field": (b'{"surplus": 1}', 422, frozenset({"kernel.body.invalid"})),
}
