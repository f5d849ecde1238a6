"""What goes wrong when talking to Millpond: one exception tree, with the API's own code and words."""

from collections.abc import Mapping, Sequence

import httpx
from pydantic import ValidationError

from millpond_contracts.bodies.shapes import FieldProblem, Problem


class MillpondError(Exception):
    """The API refused a request.

    Attributes:
        code: `<service>.<noun>.<what>`, stable; made from the status when the answer was no problem document.
        detail: What, which, expected, found, and what to do.
        status: The HTTP status; 0 when there was no answer.
        request_id: Names the request in the services' logs.
        errors: What is wrong with single fields.
    """

    def __init__(
        self,
        detail: str,
        *,
        code: str = "client.error",
        status: int = 0,
        request_id: str | None = None,
        errors: Sequence[FieldProblem] = (),
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.status = status
        self.request_id = request_id
        self.errors = tuple(errors)


class Unreachable(MillpondError):
    """No answer came: nothing listens there, or the connection broke."""


class InvalidRequest(MillpondError):
    """400, 413, 422, 428: the request itself is wrong."""


class Unauthenticated(MillpondError):
    """401: credentials are missing, wrong, revoked or expired."""


class Forbidden(MillpondError):
    """403: the role of these credentials may not do this."""


class NotFound(MillpondError):
    """404: there is no such object, or it is another tenant's."""


class Conflict(MillpondError):
    """409, 410: the state of the object does not allow it."""


class Stale(MillpondError):
    """412: the object changed since it was read."""


class Unavailable(MillpondError):
    """429, 503: too many requests, or a part that is needed does not answer. It can be tried again later."""


class ServerError(MillpondError):
    """Any other 5xx: a bug; the services' logs have the request id."""


class WaitTimeout(MillpondError):
    """What was waited for did not happen in time."""


_BY_STATUS: Mapping[int, type[MillpondError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    405: InvalidRequest,
    409: Conflict,
    410: Conflict,
    412: Stale,
    413: InvalidRequest,
    422: InvalidRequest,
    428: InvalidRequest,
    429: Unavailable,
    503: Unavailable,
}


def error_of(response: httpx.Response) -> MillpondError:
    """The exception for an answer with a status of 400 or more, whose body has been read."""
    kind = _BY_STATUS.get(response.status_code, ServerError if response.status_code >= 500 else MillpondError)
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return kind(
            f"{response.request.method} {response.request.url} was answered with {response.status_code}"
            f" {response.reason_phrase} and no explanation; is this address a Millpond?",
            code=f"http.{response.status_code}",
            status=response.status_code,
            request_id=response.headers.get("x-request-id"),
        )
    return kind(
        problem.detail,
        code=problem.code,
        status=response.status_code,
        request_id=problem.request_id or response.headers.get("x-request-id"),
        errors=problem.errors,
    )
