"""Compare-and-swap on generations: two parties may change an object, the second learns that it was late."""

from typing import Annotated

from fastapi import Depends, Header

from millpond_contracts.errors import ErrorCode
from millpond_kernel.problem import ProblemError


def etag(generation: int) -> str:
    """The strong entity tag of a generation."""
    return f'"{generation}"'


async def if_match(value: str | None = Header(None, alias="If-Match", description='`"<generation>"`, or `*`')) -> str:
    """FastAPI dependency: the If-Match header.

    Raises:
        ProblemError: 428 `kernel.if_match.missing`.
    """
    if value is None or not value.strip():
        raise ProblemError(
            ErrorCode.IF_MATCH_MISSING, "Send If-Match with the ETag of the object you read, so no change is lost."
        )
    return value.strip()


# A parameter of a route that changes an object.
IfMatch = Annotated[str, Depends(if_match)]


def check_if_match(value: str, generation: int) -> None:
    """Refuses a change of an object that has moved on.

    Raises:
        ProblemError: 412 `kernel.if_match.stale`.
    """
    tags = {tag.strip().removeprefix("W/") for tag in value.split(",")}
    if "*" not in tags and etag(generation) not in tags:
        raise ProblemError(
            ErrorCode.IF_MATCH_STALE,
            f"If-Match was {value[:60]}, the object is at {etag(generation)}; read it again and repeat the change.",
        )


def check_generation(given: int | None, current: int) -> None:
    """Refuses a body that names another generation than the current one.

    Raises:
        ProblemError: 409 `kernel.generation.stale`.
    """
    if given is not None and given != current:
        raise ProblemError(
            ErrorCode.GENERATION_STALE, f"The body names generation {given}, the object is at {current}."
        )
