"""Requests as values: what is asked for, apart from how it is sent, so that a synchronous and an asynchronous client
share them.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Generic, TypeVar, cast

import httpx
from pydantic import BaseModel, TypeAdapter

from millpond_contracts.bodies.shapes import Page

Answer = TypeVar("Answer")
Model = TypeVar("Model", bound=BaseModel)

Parameter = object
PAGE_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One request, not yet sent.

    Attributes:
        read: Makes the answer from a response with a status below 400.
        is_repeatable: Sending it twice has the effect of sending it once: it reads, or carries an Idempotency-Key.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], Answer]
    query: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = True


def get(path: str, model: type[Model], **query: Parameter) -> Call[Model]:
    """Reads one object."""
    return Call("GET", path, _reader(model), query=_query(query))


def get_text(path: str, **query: Parameter) -> Call[str]:
    """Reads plain text."""
    return Call("GET", path, lambda response: response.text, query=_query(query))


def get_page(path: str, model: type[Model], **query: Parameter) -> Call[Page[Model]]:
    """Reads the first page of a list; `next_page` goes on."""
    # What `Page[model]` means at run time; a type checker takes no variable there.
    page = cast("type[Page[Model]]", Page.__class_getitem__(model))
    return Call("GET", path, _reader(page), query={"limit": str(PAGE_LIMIT), **_query(query)})


def next_page(call: Call[Answer], cursor: str) -> Call[Answer]:
    """The page after one that ended with `cursor`."""
    return replace(call, query={**call.query, "cursor": cursor})


def create(path: str, spec: BaseModel, model: type[Model]) -> Call[Model]:
    """Creates an object once, however often this call is sent."""
    return Call("POST", path, _reader(model), body=_json(spec), headers=_headers(uuid.uuid4().hex))


def act(path: str, model: type[Model], body: BaseModel | None = None) -> Call[Model]:
    """Does something to an object that has the same effect when repeated."""
    return Call("POST", path, _reader(model), body=_json(body), headers=_headers(uuid.uuid4().hex))


def change(method: str, path: str, body: BaseModel, model: type[Model], generation: int | None) -> Call[Model]:
    """Replaces (PUT) or changes (PATCH) an object at a generation; None = whatever it is at.

    With a generation, a repetition would find its own change and be refused, so it is not repeated blindly.
    """
    headers = {"Content-Type": "application/json", "If-Match": _tag(generation)}
    return Call(method, path, _reader(model), body=_json(body), headers=headers, is_repeatable=generation is None)


def delete(path: str, generation: int | None = None) -> Call[None]:
    """Deletes an object at a generation; None = whatever it is at."""
    return Call("DELETE", path, lambda _: None, headers={"If-Match": _tag(generation)}, is_repeatable=False)


def _reader(model: type[Model]) -> Callable[[httpx.Response], Model]:
    adapter = TypeAdapter(model)
    return lambda response: adapter.validate_json(response.content)


def _headers(idempotency_key: str) -> dict[str, str]:
    return {"Content-Type": "application/json", "Idempotency-Key": idempotency_key}


def _json(body: BaseModel | None) -> bytes | None:
    return None if body is None else body.model_dump_json(exclude_none=True).encode()


def _tag(generation: int | None) -> str:
    return "*" if generation is None else f'"{generation}"'


def _query(parameters: Mapping[str, Parameter]) -> dict[str, str | tuple[str, ...]]:
    return {name: _written(value) for name, value in parameters.items() if value is not None}


def _written(value: Parameter) -> str | tuple[str, ...]:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(str(each) for each in value)
    return str(value)
