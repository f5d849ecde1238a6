"""Sends calls over one HTTP connection pool, again when that is safe, and reads lists to their end."""

import time
from collections.abc import Callable, Iterator

import httpx
from pydantic import ValidationError

from millpond.client.calls import Answer, Call, Model, next_page
from millpond.client.errors import MillpondError, Unreachable, error_of
from millpond.client.retries import RetryPolicy, delay_after_answer, delay_after_error
from millpond_contracts.bodies.shapes import Page


class Sender:
    """The one place that does input and output; nouns only say what to send."""

    def __init__(self, http: httpx.Client, policy: RetryPolicy, sleep: Callable[[float], None] = time.sleep) -> None:
        self.http = http
        self.policy = policy
        self.sleep = sleep

    def send(self, call: Call[Answer]) -> Answer:
        """The answer to a call.

        Raises:
            MillpondError: refused, or no answer.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                response = self.http.send(build_request(self.http, call))
            except httpx.RequestError as error:
                delay = delay_after_error(self.policy, call, attempt, error)
                if delay is None:
                    raise unreachable(self.http.base_url, error) from error
            else:
                delay = delay_after_answer(self.policy, call, attempt, response)
                if delay is None:
                    return read_answer(call, response)
            self.sleep(delay)

    def pages(self, call: Call[Page[Model]]) -> Iterator[Model]:
        """All items of a list, page by page."""
        while True:
            page = self.send(call)
            yield from page.items
            if page.next_cursor is None:
                return
            call = next_page(call, page.next_cursor)


def build_request(http: httpx.Client | httpx.AsyncClient, call: Call[Answer]) -> httpx.Request:
    """The call as an HTTP request."""
    return http.build_request(
        call.method, call.path, params=dict(call.query), content=call.body, headers=dict(call.headers)
    )


def read_answer(call: Call[Answer], response: httpx.Response) -> Answer:
    """What a response says.

    Raises:
        MillpondError: refused, or not as expected.
    """
    if response.status_code >= 400:
        raise error_of(response)
    try:
        return call.read(response)
    except ValidationError as error:
        first = error.errors()[0]
        place = "/".join(str(part) for part in first["loc"])
        raise MillpondError(
            f"the answer to {call.method} {call.path} is not as expected at {place or 'its top'}: {first['msg']}."
            " Is this address a Millpond of this version?",
            code="client.answer.unexpected",
            status=response.status_code,
            request_id=response.headers.get("x-request-id"),
        ) from error


def unreachable(url: httpx.URL, error: httpx.RequestError) -> Unreachable:
    """The error for a connection that gave no answer."""
    reason = str(error) or type(error).__name__
    return Unreachable(
        f"no answer from {str(url).rstrip('/')}: {reason}."
        " Is the stack running (`millpond up`), and is the address right?",
        code="client.unreachable",
    )
