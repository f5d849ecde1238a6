"""Errors that reach a caller: one exception, one body (`application/problem+json`, RFC 9457)."""

from collections.abc import Mapping, Sequence

import asyncpg
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from millpond_contracts.bodies.shapes import FieldProblem, Problem
from millpond_contracts.errors import ErrorCode
from millpond_contracts.refusals import name_faults
from millpond_kernel.db import AWAY_ERRORS
from millpond_kernel.observability import RequestComplaint, current_request_id, log

# NUL in text, and NUL or half a surrogate pair in JSON.
_BAD_TEXT = (asyncpg.exceptions.CharacterNotInRepertoireError, asyncpg.exceptions.UntranslatableCharacterError)
# Codes of the kernel are explained by every service; this one is always there, since it knows the keys.
_KERNEL_CODES_AT = "quota"
_AWAY = RequestComplaint("dependency_away")  # one of this process, however many services it serves


class ProblemError(Exception):
    """Ends a request with `code`; `detail` says what, which, expected, found and what to do."""

    def __init__(
        self,
        code: ErrorCode,
        detail: str,
        *,
        errors: Sequence[FieldProblem] = (),
        retry_after_seconds: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.errors = list(errors)
        self.retry_after_seconds = retry_after_seconds
        self.headers = dict(headers or {})


def type_of(code: ErrorCode) -> str:
    """Where an error is explained: a reference to be resolved against the API's base URL (RFC 9457, section 3.1.1)."""
    service = code.value.partition(".")[0]
    return f"/docs/{_KERNEL_CODES_AT if service == 'kernel' else service}/errors#{code.value}"


def make_problem(
    code: ErrorCode, detail: str, errors: Sequence[FieldProblem] = (), request_id: str | None = None
) -> Problem:
    """The document that tells of an error."""
    return Problem(
        type=type_of(code),
        title=code.meaning,
        status=code.status,
        code=code.value,
        detail=detail,
        request_id=request_id,
        errors=list(errors),
    )


def problem_response(
    code: ErrorCode, detail: str, errors: Sequence[FieldProblem] = (), retry_after_seconds: int | None = None
) -> JSONResponse:
    """The problem as a response with the code's status."""
    body = make_problem(code, detail, errors, current_request_id())
    headers = {} if retry_after_seconds is None else {"Retry-After": str(retry_after_seconds)}
    if code.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body.model_dump(mode="json"), code.status, headers, media_type="application/problem+json")


def pointer_part(name: object) -> str:
    """One step of a JSON pointer, shortened: a key of the caller's own may be as long as the body."""
    return str(name)[:128].replace("~", "~0").replace("/", "~1")


def _pointer(location: Sequence[object]) -> str:
    named = [part for part in location[1 if location[:1] == ("body",) else 0 :] if part != "[key]"]
    parts = [pointer_part(part) for part in named]
    return "/" + "/".join(parts) if parts else ""


async def _on_problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProblemError)
    response = problem_response(error.code, error.detail, error.errors, error.retry_after_seconds)
    response.headers.update(error.headers)
    return response


async def _on_validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    found = name_faults(error.errors())
    if any(item["type"] == "json_invalid" for item in found):
        return problem_response(ErrorCode.BODY_NOT_JSON, "The body could not be read as JSON.")
    problems = [FieldProblem(pointer=_pointer(item["loc"]), message=str(item["msg"])[:500]) for item in found[:50]]
    first = problems[0]
    return problem_response(ErrorCode.BODY_INVALID, f"{first.pointer or 'body'}: {first.message}", problems)


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        response = problem_response(ErrorCode.METHOD_NOT_ALLOWED, f"{request.url.path} does not take {request.method}.")
        response.headers.update(error.headers or {})
        return response
    if error.status_code == 404:
        return problem_response(ErrorCode.ROUTE_NOT_FOUND, f"There is no route {request.url.path[:200]}.")
    if error.status_code >= 500:
        log.error("unexpected_error", path=request.url.path, exc_info=error)
        return problem_response(ErrorCode.INTERNAL, "An unexpected error; the log of the service has the details.")
    return problem_response(ErrorCode.BODY_INVALID, str(error.detail))


async def _on_away(request: Request, error: Exception) -> JSONResponse:
    _AWAY.say(error=type(error).__name__, path=request.url.path)
    return problem_response(
        ErrorCode.DEPENDENCY_AWAY,
        "The database does not answer now. Try again; with the same Idempotency-Key nothing happens twice.",
        (),
        1,
    )


async def _on_data(request: Request, error: Exception) -> JSONResponse:
    """Text or numbers that passed the schema but that PostgreSQL cannot hold; anything else is a mistake of ours."""
    if isinstance(error, _BAD_TEXT) or "codec can't encode" in str(error):
        return problem_response(ErrorCode.BODY_INVALID, "Text may hold neither the character U+0000 nor half a pair.")
    if "out of" in str(error):
        return problem_response(ErrorCode.BODY_INVALID, "A number is out of range.")
    raise error


def add_problem_handlers(app: FastAPI) -> None:
    """Makes every error of `app` a problem document."""
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    for away in AWAY_ERRORS:
        app.add_exception_handler(away, _on_away)
    app.add_exception_handler(asyncpg.exceptions.DataError, _on_data)
