"""A Millpond that answers from a table, behind httpx's mock transport; it remembers what it was asked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from pydantic import BaseModel

from millpond.cli.session import Session
from millpond.client.client import Client
from millpond.client.retries import RetryPolicy
from millpond_contracts.bodies.shapes import Problem
from millpond_contracts.errors import ErrorCode

URL = "http://millpond.test"
KEY = "operator-key-of-the-test"
Handler = Callable[[httpx.Request], httpx.Response]


@dataclass(slots=True)
class FakeApi:
    """Answers by method and path; several answers for one are given in turn, the last one for ever."""

    answers: dict[tuple[str, str], list[Handler]] = field(default_factory=dict)
    requests: list[httpx.Request] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)

    def on(self, method: str, path: str, *answers: "Handler | BaseModel | httpx.Response | Exception") -> "FakeApi":
        """Says what to answer; an exception breaks the connection."""
        self.answers[method, path] = [_handler(answer) for answer in answers]
        return self

    def handle(self, request: httpx.Request) -> httpx.Response:
        """The mock transport's function."""
        request.read()
        self.requests.append(request)
        found = self.answers.get((request.method, request.url.path))
        if found is None:
            return problem(ErrorCode.ROUTE_NOT_FOUND, f"There is no route {request.url.path}.")
        return (found.pop(0) if len(found) > 1 else found[0])(request)

    def asked(self, method: str, path: str) -> list[httpx.Request]:
        """The requests to one route, in order."""
        return [each for each in self.requests if (each.method, each.url.path) == (method, path)]

    def transport(self) -> httpx.MockTransport:
        """What a client is given instead of the network."""
        return httpx.MockTransport(self.handle)

    def client(self, **options: int) -> Client:
        """A client of this API that notes its delays instead of waiting."""
        policy = RetryPolicy(**options)
        return Client(URL, KEY, transport=self.transport(), retries=policy, sleep=self.slept.append)

    def session(self) -> Session:
        """A command line's session with this API."""
        return Session(transport=self.transport())


def _handler(answer: Handler | BaseModel | httpx.Response | Exception) -> Handler:
    if isinstance(answer, BaseModel):
        body = answer.model_dump_json().encode()
        return lambda _: httpx.Response(200, content=body, headers={"content-type": "application/json"})
    if isinstance(answer, httpx.Response):
        content, status, headers = answer.content, answer.status_code, answer.headers
        return lambda _: httpx.Response(status, content=content, headers=headers)
    if isinstance(answer, Exception):
        return lambda _: _raise(answer)
    return answer


def _raise(error: Exception) -> httpx.Response:
    raise error


def problem(code: ErrorCode, detail: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
    """A problem document as the services send it."""
    body = Problem(
        type=f"/docs/quota/errors#{code.value}",
        title=code.meaning,
        status=code.status,
        code=code.value,
        detail=detail,
        request_id="req-1",
        errors=[],
    )
    return httpx.Response(code.status, content=body.model_dump_json().encode(), headers=dict(headers or {}))


def page(items: Sequence[BaseModel], next_cursor: str | None = None) -> httpx.Response:
    """A page of a list as the services send it."""
    dumped = [item.model_dump(mode="json") for item in items]
    return httpx.Response(200, json={"items": dumped, "next_cursor": next_cursor})
