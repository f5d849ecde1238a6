"""Queries: what a caller may ask for in them, and the WHERE that the filters of a list become."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Query, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from pydantic import StringConstraints

from millpond_contracts.bodies.shapes import FieldProblem
from millpond_contracts.errors import ErrorCode
from millpond_contracts.quantities import Instant
from millpond_kernel.problem import ProblemError, pointer_part

# An id carries its maker's clock, an instant the database's: so far apart they never are.
_CLOCKS_APART = timedelta(days=1)
_LABEL = r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?(=[^\x00]{0,128})?$"

LabelQuery = Annotated[
    tuple[Annotated[str, StringConstraints(max_length=192, pattern=_LABEL)], ...],
    Query(max_length=8, description="`key` or `key=value`; given several times, all must hold"),
]
NameQuery = Annotated[str | None, Query(max_length=64, pattern=r"^[^\x00]*$", description="exactly this name")]


async def known_query(request: Request) -> None:
    """FastAPI dependency of every route: a filter with a slip of the pen would else list everything.

    Raises:
        ProblemError: 422 for a parameter that the route does not know.
    """
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    known = _query_names(route.dependant)
    if unknown := sorted(set(request.query_params) - known):
        message = f"unknown parameter; this route takes {', '.join(sorted(known)) or 'none'}"
        problems = [FieldProblem(pointer=f"/query/{pointer_part(name)}", message=message) for name in unknown[:50]]
        raise ProblemError(ErrorCode.BODY_INVALID, f"{problems[0].pointer}: {message}", errors=problems)


def _query_names(dependant: Dependant) -> set[str]:
    own = {parameter.alias for parameter in dependant.query_params}
    return own.union(*(_query_names(inner) for inner in dependant.dependencies))


@dataclass(frozen=True, slots=True)
class Span:
    """Instants from `since` on and before `until`; None = without bound."""

    since: datetime | None
    until: datetime | None


EVER = Span(None, None)


async def span(
    since: Annotated[Instant | None, Query(description="from this instant on, RFC 3339")] = None,
    until: Annotated[Instant | None, Query(description="before this instant, RFC 3339")] = None,
) -> Span:
    """FastAPI dependency: `since` and `until`.

    Raises:
        ProblemError: 422 when nothing lies between them.
    """
    if since is not None and until is not None and since >= until:
        problem = FieldProblem(pointer="/query/until", message="expected an instant after `since`")
        raise ProblemError(ErrorCode.BODY_INVALID, "`until` must lie after `since`.", errors=[problem])
    return Span(since, until)


Spanning = Annotated[Span, Depends(span)]


@dataclass(slots=True)
class Where:
    """The conditions of one list with their values.

    Only what is asked for stands in the text, and closed sets stand there literally: a condition that may be switched
    off by a parameter keeps PostgreSQL from using an index for it.
    """

    arguments: list[object] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)

    def value(self, value: object) -> str:
        """The place of a value in the statement: `$3`."""
        self.arguments.append(value)
        return f"${len(self.arguments)}"

    def add(self, condition: str, value: object | None) -> None:
        """Adds a condition in which `{}` stands for the value, unless the value is None."""
        if value is not None:
            self.conditions.append(condition.format(self.value(value)))

    def among(self, column: str, wanted: Sequence[StrEnum]) -> None:
        """Adds that a column has one of the wanted values; none wanted = any."""
        if wanted:
            names = ", ".join(f"'{value}'" for value in sorted(set(wanted)))
            self.conditions.append(f"{column} IN ({names})")

    def labelled(self, column: str, wanted: Sequence[str]) -> None:
        """Adds that a JSON object of labels has every wanted label: `key`, or `key=value`."""
        pairs = [text.partition("=") for text in wanted]
        for key, equals, value in pairs:
            if equals:
                self.add(f"{column} @> {{}}", {key: value})
            else:
                self.add(f"{column} ? {{}}", key)

    def within(self, column: str, times: Span, id_column: str | None = None) -> None:
        """Adds that an instant lies in a span. With a time-ordered id that was made at about that instant, the id's
        index finds where to begin and to end."""
        self.add(f"{column} >= {{}}", times.since)
        self.add(f"{column} < {{}}", times.until)
        if id_column is not None:
            self.add(f"{id_column} >= {{}}", _id_at(times.since, -_CLOCKS_APART))
            self.add(f"{id_column} < {{}}", _id_at(times.until, _CLOCKS_APART))

    def after(self, column: str, last: UUID | int | str | None, *, is_descending: bool = False) -> None:
        """Adds that the list goes on after the last item of the previous page."""
        self.add(f"{column} {'<' if is_descending else '>'} {{}}", last)

    def text(self) -> str:
        """` WHERE …`, or nothing."""
        return f" WHERE {' AND '.join(self.conditions)}" if self.conditions else ""


def _id_at(at: datetime | None, shift: timedelta) -> UUID | None:
    """The least time-ordered id of an instant."""
    if at is None:
        return None
    milliseconds = int((at.timestamp() + shift.total_seconds()) * 1000)
    return UUID(int=max(milliseconds, 0) << 80)
