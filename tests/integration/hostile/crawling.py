"""Requests for every operation that the services describe, with every id of one tenant in every place that takes it.

Made from the OpenAPI documents, so that a new route, parameter or field is asked without anybody listing it here.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from millpond_contracts.bodies.tenants import Role

ID = re.compile(r"\b[a-z]+_[0-9a-hjkmnp-tv-z]{26}\b")
# A pattern of one kind of ids, as the documents write it.
_ID_PATTERN = re.compile(r"\^([a-z]+)_\[0-9a-hjkmnp-tv-z\]\{26\}\$")
_HTTP_METHODS = ("get", "post", "put", "patch", "delete")
_MAX_DEPTH = 12


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a document, with the roles that may call it (all when the document names none)."""

    document: Mapping[str, Any]
    method: str
    template: str
    described: Mapping[str, Any]

    @property
    def roles(self) -> frozenset[str]:
        return frozenset(self.described.get("x-millpond-roles", [role.value for role in Role]))

    def __str__(self) -> str:
        return f"{self.method} {self.template}"

    def parameters(self, place: str) -> list[Mapping[str, Any]]:
        return [one for one in self.described.get("parameters", ()) if one["in"] == place]

    @property
    def body(self) -> Mapping[str, Any] | None:
        """The schema of its JSON body."""
        content = self.described.get("requestBody", {}).get("content", {})
        schema: Mapping[str, Any] | None = content.get("application/json", {}).get("schema")
        return schema


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, the ids of the other tenant that it names, and where: `path`, `query`, `body`, or nowhere."""

    operation: Operation
    where: str
    path: str
    named: frozenset[str]
    body: Any = None

    def __str__(self) -> str:
        return f"{self.operation.method} {self.path} naming {sorted(self.named)} in its {self.where or 'nothing'}"


def operations_of(document: Mapping[str, Any]) -> Iterator[Operation]:
    """Every operation of an OpenAPI document that takes credentials; the others carry a proof in their body."""
    for template, described in document["paths"].items():
        for method in _HTTP_METHODS:
            if described.get(method, {}).get("security"):
                yield Operation(document, method.upper(), template, described[method])


def asks(
    operation: Operation, private: Sequence[str], own: Mapping[str, str], right: Mapping[str, Any] | None
) -> Iterator[Ask]:
    """Every request on `operation` that names something private, and for reads the one that names nothing.

    Args:
        private: ids of another tenant.
        own: kind of an id -> the caller's own object of that kind, for the places beside.
        right: a body that the route takes, where one is known; else one is made from the schema.
    """
    end = "follow=false&after=0" if "/events/" in operation.template else ""
    names = [parameter["name"] for parameter in operation.parameters("path")]
    kinds = {one["name"]: _kind(operation.document, one["schema"]) for one in operation.parameters("path")}
    if names:
        for chosen in private:
            if chosen.partition("_")[0] in kinds.values():
                # Where a path has two ids, both are the other tenant's when it has both.
                values = {name: _of_kind(kind, chosen, private) for name, kind in kinds.items()}
                named = frozenset(values.values()) & frozenset(private)
                body = _body(operation, {}, own, right)
                yield Ask(operation, "path", operation.template.format_map(values), named, body)
        return
    if operation.method == "GET":
        yield Ask(operation, "", f"{operation.template}?{end}", frozenset())
        one_of_each = tuple(_first_of_each_kind(private).values())
        for parameter in operation.parameters("query"):
            kind = _kind(operation.document, parameter["schema"])
            # A cursor is a place in the caller's own list, whatever it says.
            is_text = (
                kind is None and parameter["name"] != "cursor" and _is_text(operation.document, parameter["schema"])
            )
            for chosen in one_of_each if is_text else private:
                if is_text or chosen.partition("_")[0] == kind:
                    query = f"{quote(parameter['name'])}={quote(chosen)}&{end}"
                    yield Ask(operation, "query", f"{operation.template}?{query}", frozenset({chosen}))
        return
    yield from _asks_with_bodies(operation, private, own, right)


def _asks_with_bodies(
    operation: Operation, private: Sequence[str], own: Mapping[str, str], right: Mapping[str, Any] | None
) -> Iterator[Ask]:
    """One body with everything foreign, and one for each place where that place alone is foreign."""
    foreign = _body(operation, _first_of_each_kind(private), own, right)
    places = [place for place, value in _texts(foreign) if value in private]
    if places:
        named = frozenset(value for _, value in _texts(foreign) if value in private)
        yield Ask(operation, "body", operation.template, named, foreign)
    for place in places:
        body = _with_own(foreign, own, private, place)
        named = frozenset(value for _, value in _texts(body) if value in private)
        yield Ask(operation, "body", operation.template, named, body)


def _first_of_each_kind(ids: Sequence[str]) -> dict[str, str]:
    return {one.partition("_")[0]: one for one in reversed(ids)}


def _body(
    operation: Operation, foreign: Mapping[str, str], own: Mapping[str, str], right: Mapping[str, Any] | None
) -> Any:
    if right:
        return right if foreign else _with_own(right, own, (), None)
    return None if operation.body is None else _sample(operation.document, operation.body, foreign or own)


def _with_own(body: Any, own: Mapping[str, str], private: Sequence[str], kept: tuple[Any, ...] | None) -> Any:
    """The body with the caller's own objects in place of ids, but at `kept`."""

    def changed(value: Any, place: tuple[Any, ...]) -> Any:
        if isinstance(value, dict):
            return {key: changed(inner, (*place, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [changed(inner, (*place, number)) for number, inner in enumerate(value)]
        if isinstance(value, str) and ID.fullmatch(value) and place != kept:
            return own.get(value.partition("_")[0], value)
        return value

    return changed(body, ())


def _texts(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, (*place, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts(inner, (*place, number))


def _of_kind(kind: str | None, chosen: str, private: Sequence[str]) -> str:
    """The chosen id where the place is of its kind, else another private one, else what is well-formed."""
    if kind is None or chosen.partition("_")[0] == kind:
        return chosen
    return next((one for one in private if one.partition("_")[0] == kind), f"{kind}_{chosen.rpartition('_')[2]}")


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema without references and without the choice of null."""
    while True:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        elif "anyOf" in schema or "oneOf" in schema:
            choices = schema.get("anyOf") or schema["oneOf"]
            schema = next((one for one in choices if one.get("type") != "null"), choices[0])
        else:
            return schema


def _kind(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    """The prefix of the ids that the schema takes, or None."""
    found = _ID_PATTERN.fullmatch(str(_resolved(document, schema).get("pattern", "")))
    return found[1] if found else None


def _is_text(document: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    plain = _resolved(document, schema)
    return plain.get("type") == "string" and not {"enum", "const", "format"} & set(plain)


def _sample(document: Mapping[str, Any], schema: Mapping[str, Any], ids: Mapping[str, str], depth: int = 0) -> Any:
    """A value that the schema takes, with `ids` wherever it takes ids; what needs more luck may be refused."""
    plain, kind = _resolved(document, schema), _kind(document, schema)
    if kind is not None:
        return ids.get(kind, f"{kind}_{'0' * 26}")
    if "const" in plain or "enum" in plain:
        return plain.get("const", plain.get("enum", [None])[0])
    match plain.get("type"):
        case "object":
            wanted = plain.get("required", ())
            return {
                name: _sample(document, inner, ids, depth + 1)
                for name, inner in plain.get("properties", {}).items()
                if depth < _MAX_DEPTH and (name in wanted or _kind(document, inner) in ids)
            }
        case "array":
            return [_sample(document, plain.get("items", {}), ids, depth + 1)] * max(1, plain.get("minItems", 1))
        case "integer" | "number":
            return max(1, int(plain.get("minimum", 1)))
        case "boolean":
            return False
        case _:
            return "2090-01-01T00:00:00Z" if plain.get("format") == "date-time" else "x"
