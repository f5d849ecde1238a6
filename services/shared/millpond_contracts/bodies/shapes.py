"""The two base models of every body: what comes in refuses unknown fields, what goes out ignores them on reading."""

from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field


class Incoming(BaseModel):
    """A request body: frozen, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Outgoing(BaseModel):
    """An answer or a shared view: frozen, unknown fields ignored so that an old reader takes a newer answer."""

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)


Item = TypeVar("Item")


class Page(Outgoing, Generic[Item]):
    """One page of a list; `next_cursor` is null on the last one."""

    items: list[Item]
    next_cursor: str | None = None


class Problem(Outgoing):
    """RFC 9457 problem details as Millpond sends them (`application/problem+json`)."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str | None = None
    errors: Annotated[list["FieldProblem"], Field(default_factory=list)]


class FieldProblem(Outgoing):
    """What is wrong with one field; `pointer` is an RFC 6901 JSON Pointer."""

    pointer: str
    message: str
