"""What answers of the control plane, or of something else at its address, mean to an agent."""

import httpx
import pytest

from millpond_contracts.bodies.nodes import HeartbeatAnswer, SessionRenewal
from millpond_contracts.errors import ErrorCode
from millpond_node_agent.client import Away, BadAddress, HttpClient, Refused, Superseded, check_url

pytestmark = pytest.mark.unit


def problem(code: ErrorCode, **headers: str) -> httpx.Response:
    body = {"type": code, "title": code.meaning, "status": code.status, "code": code, "detail": "why", "errors": []}
    return httpx.Response(code.status, json=body, headers=headers)


async def ask(response: httpx.Response) -> HeartbeatAnswer:
    client = HttpClient("http://control.plane:7070", httpx.MockTransport(lambda _: response))
    try:
        return (await client.send("registry", "/v1/agent/heartbeat", SessionRenewal(), HeartbeatAnswer))[0]
    finally:
        await client.close()


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (problem(ErrorCode.NODE_SUPERSEDED), Superseded),
        (problem(ErrorCode.NODE_STATE), Refused),
        (problem(ErrorCode.CREDENTIALS_INVALID), Refused),
        (problem(ErrorCode.DEPENDENCY_AWAY), Away),
        (problem(ErrorCode.RATE_LIMITED), Away),
        # A proxy whose service is not there yet answers for it.
        (problem(ErrorCode.ROUTE_NOT_FOUND), Away),
        (httpx.Response(502, text="<html>bad gateway</html>"), Away),
        (httpx.Response(404, text="<html>nothing here</html>"), Away),
        (httpx.Response(200, text="<html>please log in</html>"), Away),
        (httpx.Response(302, headers={"location": "http://elsewhere/"}), Away),
    ],
)
async def test_send_when_refused_or_away_then_the_two_are_told_apart(
    response: httpx.Response, expected: type[Exception]
) -> None:
    with pytest.raises(expected):
        await ask(response)


async def test_send_when_told_to_wait_then_the_wait_is_known_and_bounded() -> None:
    with pytest.raises(Away) as short:
        await ask(problem(ErrorCode.DEPENDENCY_AWAY, **{"Retry-After": "2"}))
    with pytest.raises(Away) as long:
        await ask(problem(ErrorCode.DEPENDENCY_AWAY, **{"Retry-After": "86400"}))

    assert (short.value.retry_after_seconds, long.value.retry_after_seconds) == (2.0, 5.0)


@pytest.mark.parametrize("url", ["", "10.0.0.5:7070", "ftp://host", "http://", "unix:///run/socket"])
def test_check_url_when_it_is_no_http_address_then_refused(url: str) -> None:
    with pytest.raises(BadAddress):
        check_url(url)
