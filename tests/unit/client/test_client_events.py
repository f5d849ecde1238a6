"""Watching events: the stream's format, and resuming where a connection broke."""

import json

import httpx
import pytest

from millpond.client.errors import Forbidden, MillpondError, Unreachable
from millpond.client.server_sent import EventReading
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import EventId, TenantId
from tests.unit.client.fake_api import FakeApi, problem
from tests.unit.client.things import NOW

pytestmark = pytest.mark.unit


def event(seq: int) -> str:
    body = {
        "seq": seq,
        "id": str(EventId.new().hex),
        "type": "quota.tenant_changed.v1",
        "source": "quota",
        "subject": str(TenantId.new()),
        "tenant_id": None,
        "generation": 1,
        "happened_at": NOW.isoformat(),
        "body": {"tenant": {}},
    }
    return f"id: {seq}\nevent: quota.tenant_changed.v1\ndata: {json.dumps(body)}\n\n"


def stream(*parts: str) -> httpx.Response:
    return httpx.Response(200, text="".join(parts), headers={"content-type": "text/event-stream"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data: a\n\n", [("message", "a")]),
        ("event: x\ndata: a\ndata: b\n\n", [("x", "a\nb")]),
        (": still here\n\ndata:a\n\n", [("message", "a")]),
        ("event: x\n\ndata: a\n\n", [("message", "a")]),
        ("data: cut off", []),
        ('data: {"a": "b: c"}\n\n', [("message", '{"a": "b: c"}')]),
    ],
)
def test_parse_events_when_read_then_as_the_standard_says(text: str, expected: list[tuple[str, str]]) -> None:
    reading = EventReading()
    events = [event for line in text.split("\n") if (event := reading.take(line)) is not None]
    assert [(event.kind, event.data) for event in events] == expected


def test_watch_when_not_followed_then_ends_with_the_newest() -> None:
    api = FakeApi().on("GET", "/v1/events/quota", stream(": watching\n\n", event(4), event(5)))
    assert [each.seq for each in api.client().events.watch("quota", after=3, follow=False)] == [4, 5]
    assert dict(api.requests[0].url.params) == {"follow": "false", "after": "3"}


def test_watch_when_the_connection_breaks_then_resumes_after_the_last_seen() -> None:
    api = FakeApi().on(
        "GET", "/v1/events/quota", stream(event(4)), httpx.ReadError("cut"), stream(event(5)), stream(event(6))
    )
    watch = api.client().events.watch("quota")
    assert [next(watch).seq for _ in range(3)] == [4, 5, 6]
    assert [dict(each.url.params).get("after") for each in api.requests] == [None, "4", "4", "5"]


def test_watch_when_the_service_stays_away_then_gives_up() -> None:
    api = FakeApi().on("GET", "/v1/events/quota", httpx.ConnectError("refused"))
    with pytest.raises(Unreachable):
        next(api.client(attempts=2).events.watch("quota"))
    assert len(api.requests) == 3


def test_watch_when_refused_then_says_why() -> None:
    api = FakeApi().on("GET", "/v1/events/quota", problem(ErrorCode.ROLE_FORBIDDEN, "not you"))
    with pytest.raises(Forbidden, match="not you"):
        next(api.client().events.watch("quota"))


def test_watch_when_the_key_is_revoked_meanwhile_then_the_stream_says_so() -> None:
    ending = 'event: problem\ndata: {"code": "kernel.credentials.revoked", "detail": "revoked"}\n\n'
    api = FakeApi().on("GET", "/v1/events/quota", stream(event(4), ending))
    watch = api.client().events.watch("quota")
    assert next(watch).seq == 4
    with pytest.raises(MillpondError) as caught:
        next(watch)
    assert (caught.value.code, caught.value.detail) == ("kernel.credentials.revoked", "revoked")
