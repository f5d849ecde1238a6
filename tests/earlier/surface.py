"""What two descriptions of one interface allow whom: finds what breaks a reader or a writer of the earlier one.

Works on OpenAPI documents and on the schema of events. Whoever reads what another version wrote needs: every field that
it knows, required where it counts on it, of a type and a value that it knows. So fields may be added, never taken away.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]

_VERBS = ("get", "put", "post", "patch", "delete")
# Bounds of which a smaller, respectively a larger one refuses what was allowed.
_UPPER = ("maximum", "maxLength", "maxItems", "maxProperties")
_LOWER = ("minimum", "minLength", "minItems")


@dataclass(frozen=True, slots=True)
class Reading:
    """Whether the earlier code reads what the later writes (answers, events), and the other way (requests, events)."""

    earlier_reads: bool
    later_reads: bool


ANSWER = Reading(earlier_reads=True, later_reads=False)
REQUEST = Reading(earlier_reads=False, later_reads=True)
EVENT = Reading(earlier_reads=True, later_reads=True)


def events_that_break(earlier: Json, later: Json) -> Iterator[str]:
    """What a consumer of either version stumbles over, one line each; both are documents like `openapi/events.json`."""
    walk = _Walk(earlier, later, EVENT)
    for name, schema in {**earlier["events"], "envelope": earlier["envelope"]}.items():
        now = later["envelope"] if name == "envelope" else later["events"].get(name)
        yield from walk.schemas(schema, now, name) if now is not None else [f"{name}: is gone"]


def operations_that_break(earlier: Json, later: Json) -> Iterator[str]:
    """What a caller that was written for the earlier OpenAPI document stumbles over, one line each."""
    for path, verbs in earlier["paths"].items():
        for verb in _VERBS:
            if verb in verbs:
                where, now = f"{verb} {path}", later["paths"].get(path, {}).get(verb)
                yield from _operation(earlier, later, verbs[verb], now, where) if now else [f"{where}: is gone"]


def _operation(earlier: Json, later: Json, was: Json, now: Json, where: str) -> Iterator[str]:
    asked, answered = _Walk(earlier, later, REQUEST), _Walk(earlier, later, ANSWER)
    old, new = ({(one["in"], one["name"]): one for one in each.get("parameters", ())} for each in (was, now))
    for key, one in old.items():
        if key in new:
            yield from asked.schemas(one["schema"], new[key]["schema"], f"{where} {key[1]}")
        else:
            yield f"{where} {key[1]}: is gone"
    for key, one in new.items():
        if one.get("required") and not old.get(key, {}).get("required"):
            yield f"{where} {key[1]}: became required"
    if "requestBody" in now:
        if now["requestBody"].get("required") and not was.get("requestBody", {}).get("required"):
            yield f"{where} body: became required"
        yield from asked.contents(was.get("requestBody", {}), now["requestBody"], f"{where} body")
    for status, answer in was["responses"].items():
        if status not in now["responses"]:
            yield f"{where} {status}: is gone"
        else:
            yield from answered.contents(answer, now["responses"][status], f"{where} {status}")


class _Walk:
    """Goes through two schemas side by side; a pair of named schemas is looked at once."""

    def __init__(self, earlier: Json, later: Json, reading: Reading) -> None:
        self._earlier, self._later, self._reading = earlier, later, reading
        self._seen: set[tuple[str, str]] = set()

    def contents(self, was: Json, now: Json, where: str) -> Iterator[str]:
        """Bodies by media type."""
        for media, content in was.get("content", {}).items():
            if media not in now.get("content", {}):
                yield f"{where}: {media} is gone"
            else:
                yield from self.schemas(content.get("schema", {}), now["content"][media].get("schema", {}), where)

    def schemas(self, was: Json, now: Json, where: str) -> Iterator[str]:
        """Any two schemas."""
        if "$ref" in was and "$ref" in now:
            pair = was["$ref"], now["$ref"]
            if pair in self._seen:
                return
            self._seen.add(pair)
        old, new = _by_type(self._earlier, was), _by_type(self._later, now)
        if self._reading.later_reads and (lost := old.keys() - new.keys()):
            yield f"{where}: may no longer be {', '.join(sorted(lost))}"
        if self._reading.earlier_reads and (added := new.keys() - old.keys()):
            yield f"{where}: may now be {', '.join(sorted(added))}"
        for kind in sorted(old.keys() & new.keys()):
            yield from self._same_type(old[kind], new[kind], where)

    def _same_type(self, was: Json, now: Json, where: str) -> Iterator[str]:
        yield from self._values(was, now, where)
        fields, new_fields = was.get("properties", {}), now.get("properties", {})
        for name, field in fields.items():
            if name in new_fields:
                yield from self.schemas(field, new_fields[name], f"{where}.{name}")
            else:
                yield f"{where}.{name}: is gone"
        required, now_required = set(was.get("required", ())), set(now.get("required", ()))
        if self._reading.later_reads:
            yield from (f"{where}.{name}: became required" for name in sorted(now_required - required))
        if self._reading.earlier_reads:
            yield from (f"{where}.{name}: is no longer certain" for name in sorted(required - now_required))
        for inner in ("items", "additionalProperties"):
            if isinstance(was.get(inner), dict) and isinstance(now.get(inner), dict):
                yield from self.schemas(was[inner], now[inner], f"{where}[]")

    def _values(self, was: Json, now: Json, where: str) -> Iterator[str]:
        old, new = _enum(was), _enum(now)
        if self._reading.later_reads and new and (not old or old - new):
            yield f"{where}: no longer takes {sorted(old - new) or 'any value'}"
        if self._reading.earlier_reads and old and (not new or new - old):
            yield f"{where}: may now be {sorted(new - old) or 'any value'}"
        if self._reading.later_reads:
            for name in ("pattern", "format"):
                if now.get(name) not in (None, was.get(name)):
                    yield f"{where}: {name} {was.get(name)} became {now[name]}"
            tighter = [name for name in _UPPER if name in now and now[name] < was.get(name, float("inf"))]
            tighter += [name for name in _LOWER if name in now and now[name] > was.get(name, 0)]
            yield from (f"{where}: {name} {was.get(name)} became {now[name]}" for name in tighter)


def _by_type(document: Json, schema: Json) -> dict[str, Json]:
    """type -> the alternative of that type; a union in these documents has at most one of each."""
    while "$ref" in schema:
        found: Any = document
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        schema = found
    if "anyOf" in schema:
        return {kind: one for each in schema["anyOf"] for kind, one in _by_type(document, each).items()}
    return {schema.get("type", "string" if "const" in schema else "any"): schema}


def _enum(schema: Json) -> set[str]:
    return {str(value) for value in schema.get("enum", [schema["const"]] if "const" in schema else [])}
