"""How the client sends: credentials, keys of idempotency, repetition, errors."""

import httpx
import pytest

from millpond.client.client import Client
from millpond.client.errors import (
    Conflict,
    InvalidRequest,
    MillpondError,
    NotFound,
    ServerError,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from millpond_contracts.bodies.tenants import TenantSpec
from millpond_contracts.errors import ErrorCode
from millpond_contracts.ids import TenantId
from tests.unit.client.fake_api import KEY, FakeApi, page, problem
from tests.unit.client.things import tenant

pytestmark = pytest.mark.unit

SPEC = TenantSpec(name="acme")


def test_create_when_answered_then_sends_key_body_and_credentials() -> None:
    api = FakeApi().on("POST", "/v1/tenants", tenant())
    made = api.client().tenants.create(SPEC)
    (request,) = api.requests
    assert made == tenant()
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert len(request.headers["idempotency-key"]) == 32
    assert TenantSpec.model_validate_json(request.content) == SPEC


def test_create_when_called_twice_then_the_keys_differ() -> None:
    api = FakeApi().on("POST", "/v1/tenants", tenant())
    client = api.client()
    client.tenants.create(SPEC)
    client.tenants.create(SPEC)
    assert api.requests[0].headers["idempotency-key"] != api.requests[1].headers["idempotency-key"]


@pytest.mark.parametrize(
    "first",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        httpx.RemoteProtocolError("cut"),
        problem(ErrorCode.IDEMPOTENCY_KEY_IN_FLIGHT, "running", {"Retry-After": "1"}),
        problem(ErrorCode.RATE_LIMITED, "slow down"),
        problem(ErrorCode.DEPENDENCY_AWAY, "away"),
        httpx.Response(502, text="bad gateway"),
    ],
)
def test_create_when_the_first_try_fails_then_repeats_with_the_same_key(first: Exception | httpx.Response) -> None:
    api = FakeApi().on("POST", "/v1/tenants", first, tenant())
    assert api.client().tenants.create(SPEC) == tenant()
    assert len(api.requests) == 2
    assert len({each.headers["idempotency-key"] for each in api.requests}) == 1
    assert len({each.content for each in api.requests}) == 1


def test_delay_when_the_server_names_one_then_it_is_kept_up_to_the_longest() -> None:
    told = [problem(ErrorCode.DEPENDENCY_AWAY, "away", {"Retry-After": seconds}) for seconds in ("3", "9999")]
    api = FakeApi().on("GET", "/v1/me", *told, problem(ErrorCode.DEPENDENCY_AWAY, "away", {"Retry-After": "0"}))
    with pytest.raises(Unavailable):
        api.client(attempts=3, longest_delay_seconds=10).me()
    assert api.slept == [3.0, 10.0]


def test_delay_when_the_server_names_none_then_it_doubles() -> None:
    api = FakeApi().on("GET", "/v1/me", httpx.ConnectError("refused"))
    with pytest.raises(Unreachable) as caught:
        api.client(attempts=4).me()
    assert len(api.requests) == 4
    assert all(low <= delay <= 2 * low for delay, low in zip(api.slept, (0.1, 0.2, 0.4), strict=True))
    assert "refused" in caught.value.detail
    assert "millpond up" in caught.value.detail


def test_replace_when_the_connection_breaks_after_sending_then_it_is_not_repeated() -> None:
    path = f"/v1/tenants/{tenant().tenant_id}"
    api = FakeApi().on("PUT", path, httpx.ReadTimeout("slow"))
    with pytest.raises(Unreachable):
        api.client().tenants.replace(tenant(), SPEC)
    assert len(api.requests) == 1
    assert api.requests[0].headers["if-match"] == '"3"'


def test_replace_when_it_was_never_sent_then_it_is_repeated() -> None:
    path = f"/v1/tenants/{tenant().tenant_id}"
    api = FakeApi().on("PUT", path, httpx.ConnectError("refused"), tenant())
    assert api.client().tenants.replace(tenant(), SPEC) == tenant()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.CREDENTIALS_REVOKED, Unauthenticated),
        (ErrorCode.TENANT_NOT_FOUND, NotFound),
        (ErrorCode.NAME_TAKEN, Conflict),
        (ErrorCode.BODY_INVALID, InvalidRequest),
        (ErrorCode.IF_MATCH_MISSING, InvalidRequest),
        (ErrorCode.INTERNAL, ServerError),
    ],
)
def test_errors_when_refused_then_carry_code_detail_and_request(code: ErrorCode, kind: type[MillpondError]) -> None:
    api = FakeApi().on("GET", "/v1/me", problem(code, "what is wrong"))
    with pytest.raises(kind) as caught:
        api.client().me()
    error = caught.value
    assert (error.code, error.detail, error.status, error.request_id) == (code, "what is wrong", code.status, "req-1")
    assert len(api.requests) == 1


def test_errors_when_the_answer_is_no_problem_then_the_address_is_doubted() -> None:
    api = FakeApi().on("GET", "/v1/me", httpx.Response(404, text="<html>nginx</html>"))
    with pytest.raises(NotFound) as caught:
        api.client().me()
    assert caught.value.code == "http.404"
    assert "is this address a Millpond?" in caught.value.detail


def test_answer_when_it_has_unknown_fields_then_they_are_ignored() -> None:
    document = {**tenant().model_dump(mode="json"), "mood": "good"}
    api = FakeApi().on("POST", "/v1/tenants", httpx.Response(201, json=document))
    assert api.client().tenants.create(SPEC) == tenant()


def test_answer_when_it_is_something_else_then_says_where() -> None:
    api = FakeApi().on("GET", "/v1/me", httpx.Response(200, json={"rôle": "king"}))
    with pytest.raises(MillpondError) as caught:
        api.client().me()
    assert (caught.value.code, "role" in caught.value.detail) == ("client.answer.unexpected", True)


def test_list_when_it_has_pages_then_all_are_read() -> None:
    first, second = tenant("a", TenantId.new()), tenant("b", TenantId.new())
    api = FakeApi().on("GET", "/v1/tenants", page([first], "more"), page([second]))
    assert list(api.client().tenants.list()) == [first, second]
    assert [dict(each.url.params).get("cursor") for each in api.requests] == [None, "more"]


@pytest.mark.parametrize("url", ["localhost:7070", "", "ftp://somewhere", "http://[::1"])
def test_client_when_the_address_is_none_then_says_what_is_expected(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Client(url, KEY)
    assert "http://127.0.0.1:7070" in caught.value.detail
