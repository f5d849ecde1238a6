"""Whatever comes in has a bound: lists, maps, texts and integers of every body and parameter, by the API documents.

Headers are bounded together, by the server (`millpond_kernel/heads.py`).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.architecture.tree import ROOT

pytestmark = pytest.mark.architecture

_INT64 = 2**63 - 1
_CLOSED_TEXT = ("maxLength", "enum", "const", "format")
Schema = Mapping[str, Any]


def _unbounded(document: Schema, schema: Schema, place: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Every place below the schema that takes as much as a caller likes."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in seen:
            yield from _unbounded(document, document["components"]["schemas"][name], place, seen | {name})
        return
    yield from (f"{place}: {what}" for what in _lacks(schema))
    inner = [(one, place) for kind in ("anyOf", "oneOf", "allOf", "prefixItems") for one in schema.get(kind, ())]
    inner += [
        (schema[key], place + "[]") for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)
    ]
    for key in ("properties", "patternProperties"):
        inner += [(one, f"{place}.{name}") for name, one in schema.get(key, {}).items()]
    for one, where in inner:
        yield from _unbounded(document, one, where, seen)


def _lacks(schema: Schema) -> Iterator[str]:
    match schema.get("type"):
        case "array" if "maxItems" not in schema:
            yield "a list without maxItems"
        case "object" if isinstance(schema.get("additionalProperties", False), dict) or "patternProperties" in schema:
            if "maxProperties" not in schema:
                yield "a map without maxProperties"
        case "string" if not set(_CLOSED_TEXT) & schema.keys():
            # A pattern with a count and an end is a bound.
            pattern = schema.get("pattern", "")
            if not (pattern.endswith("$") and "{" in pattern and not pattern.endswith("*$")):
                yield "a text without maxLength"
        case "integer" if not schema.get("maximum", schema.get("exclusiveMaximum", 2**64)) <= _INT64:
            yield "an integer without a maximum that PostgreSQL holds"
        case "integer" if not schema.get("minimum", schema.get("exclusiveMinimum", -(2**64))) >= -_INT64:
            yield "an integer without a minimum that PostgreSQL holds"


def _operations(document: Schema) -> Iterator[tuple[str, Schema]]:
    for path, operations in document["paths"].items():
        yield from ((f"{method.upper()} {path}", operation) for method, operation in operations.items())


@pytest.mark.parametrize("name", ["quota", "registry", "scheduler", "billing", "autoscaler"])
def test_requests_when_described_then_nothing_in_them_is_without_a_bound(name: str) -> None:
    document = json.loads((ROOT / "openapi" / f"{name}.json").read_text("utf-8"))
    found: list[str] = []
    looked_at = 0
    for where, operation in _operations(document):
        for parameter in operation.get("parameters", ()):
            if parameter["in"] != "header":
                looked_at += 1
                found += _unbounded(document, parameter["schema"], f"{where} ?{parameter['name']}")
        for content in operation.get("requestBody", {}).get("content", {}).values():
            looked_at += 1
            found += _unbounded(document, content["schema"], where)
    assert found == []
    assert looked_at > 20
