"""What comes over HTTP and cannot be meant: a clear problem document, and no change."""

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.integration.databases import MigratedDatabase
from tests.integration.services import Services, run_services

pytestmark = pytest.mark.integration

NAME = '"name": "acme"'


@pytest.fixture
async def services(migrated: MigratedDatabase) -> AsyncIterator[Services]:
    async with run_services(migrated, ["quota"], workers=False) as running:
        yield running


def headers(services: Services, **more: str) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {services.operator_key}",
        "Idempotency-Key": "k",
        "Content-Type": "application/json",
        **more,
    }


async def post(services: Services, body: bytes, **more: str) -> httpx.Response:
    return await services.http.post("/v1/tenants", content=body, headers=headers(services, **more))


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == answer.status_code
    assert body["request_id"] == answer.headers["x-request-id"]
    return answer.status_code, body["code"]


BODIES = {
    "not json": (b"{", "kernel.body.not_json"),
    "not utf-8": (b'{"name": "\xff"}', "kernel.body.not_json"),
    "a number of 5000 digits": (b'{"name": ' + b"9" * 5000 + b"}", "kernel.body.not_json"),
    "NaN": (b'{"name": NaN}', "kernel.body.invalid"),
    "Infinity": (b'{"name": "acme", "labels": {"a": -Infinity}}', "kernel.body.invalid"),
    "a key twice": (b'{"name": "acme", "name": "other"}', "kernel.body.invalid"),
    "a key twice deep inside": (b'{"name": "acme", "labels": {"a": "1", "a": "2"}}', "kernel.body.invalid"),
    "65 levels": (b'{"name": ' + b"[" * 64 + b"]" * 64 + b"}", "kernel.body.invalid"),
    "100,000 levels": (b"[" * 100_000, "kernel.body.not_json"),
    "NUL in a value": (b'{"name": "acme", "labels": {"a": "b\\u0000c"}}', "kernel.body.invalid"),
    "half a pair": (b'{"name": "acme", "labels": {"a": "\\ud800"}}', "kernel.body.invalid"),
    "a list": (b"[]", "kernel.body.invalid"),
    "unknown field": (b'{"name": "acme", "nmae": 1}', "kernel.body.invalid"),
    "a number for text": (b'{"name": 9e30}', "kernel.body.invalid"),
    "empty": (b"", "kernel.body.invalid"),
}


async def test_body_when_it_cannot_be_meant_then_422_and_no_change(services: Services) -> None:
    answers = {case: problem(await post(services, body)) for case, (body, _) in BODIES.items()}
    assert answers == {case: (422, code) for case, (_, code) in BODIES.items()}
    assert (await services.as_key()("GET", "/v1/tenants", expect=200)).json()["items"] == []
    # Nothing was stored under the key either: the corrected request goes through.
    assert (await post(services, b'{"name": "acme"}')).status_code == 201


async def test_body_when_64_levels_then_it_reaches_the_schema(services: Services) -> None:
    answer = await post(services, b'{"name": ' + b"[" * 63 + b"]" * 63 + b"}")
    assert answer.json()["errors"][0]["pointer"] == "/name"


async def test_body_when_its_media_type_is_given_twice_then_read_as_strictly_as_ever(services: Services) -> None:
    kinds = [(key, value) for key, value in headers(services).items() if key != "Content-Type"]
    for first, second in (("application/json", "text/plain"), ("text/plain", "application/json")):
        given = [*kinds, ("Content-Type", first), ("Content-Type", second)]
        twice = b'{"name": "acme", "name": "other"}'
        answer = await services.http.post("/v1/tenants", content=twice, headers=given)
        assert problem(answer) == (422, "kernel.body.invalid")


async def test_body_when_too_large_then_413_with_and_without_its_length(services: Services) -> None:
    large = b'{"name": "' + b"x" * 1_100_000 + b'"}'
    assert problem(await post(services, large)) == (413, "kernel.body.too_large")

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 65_536):
            yield large[start : start + 65_536]

    answer = await services.http.post("/v1/tenants", content=chunks(), headers=headers(services))
    assert problem(answer) == (413, "kernel.body.too_large")
    lying = await post(services, b"{}", **{"Content-Length": "99999999999999999999999"})
    assert problem(lying) == (413, "kernel.body.too_large")


REQUESTS: list[tuple[str, str, tuple[int, str]]] = [
    ("GET", "/v1/nothing", (404, "kernel.route.not_found")),
    ("GET", "/v1/tenants/", (404, "kernel.route.not_found")),
    ("GET", "/internal/v1/tokens/quota", (405, "kernel.route.method_not_allowed")),
    ("OPTIONS", "/v1/tenants", (405, "kernel.route.method_not_allowed")),
    ("BREW", "/v1/tenants", (405, "kernel.route.method_not_allowed")),
    ("GET", "/v1/tenants/ten_0", (422, "kernel.body.invalid")),
    ("GET", "/v1/tenants/%00", (422, "kernel.body.invalid")),
    ("GET", "/v1/tenants?name=a%00b", (422, "kernel.body.invalid")),
    ("GET", "/v1/tenants?limit=201", (422, "kernel.body.invalid")),
    ("GET", "/v1/tenants?limit=99999999999999999999", (422, "kernel.body.invalid")),
    ("GET", "/v1/tenants?cursor=%F0%9F%98%80", (400, "kernel.cursor.invalid")),
    ("GET", "/v1/audit/quota?object=%00", (422, "kernel.body.invalid")),
    ("GET", "/v1/events/quota?after=-1", (422, "kernel.body.invalid")),
    ("GET", f"/v1/events/quota?after={2**63}", (422, "kernel.body.invalid")),
]


async def test_request_when_no_route_takes_it_then_problem(services: Services) -> None:
    caller = services.as_key()
    answers = [(method, path, problem(await caller(method, path))) for method, path, _ in REQUESTS]
    assert answers == REQUESTS
    not_allowed = await caller("OPTIONS", "/v1/tenants")
    assert set(not_allowed.headers["allow"].split(", ")) >= {"POST"}
    assert (await caller("HEAD", "/v1/tenants")).status_code == 405


CREDENTIALS = [
    b"",
    b"Basic abc",
    b"Bearer",
    b"Bearer \xff\xfe",
    b"Bearer mp_",
    b"Bearer mp_x_\xc3\xa9",
    b"Bearer mp_01k9zzzzzzzzzzzzzzzzzzzzzz_00",
    b"Bearer " + b"x" * 5000,
    b"Bearer " + b"mp_" + b"x" * 500,
    b"Bearer a.b.c",
    # A header of 2,900 nested lists, in base 64.
    b"Bearer " + b"W1tb" * 967 + b".e30.x",
    b"Bearer eyJraWQiOiAicXVvdGEtMDAifQ.e30.c2ln",
    b"Bearer eyJraWQiOiBudWxsfQ.e30.c2ln",
]


async def test_credentials_when_they_cannot_be_read_then_401(services: Services) -> None:
    for credentials in CREDENTIALS:
        answer = await services.http.get("/v1/me", headers=[(b"authorization", credentials)])
        status, code = problem(answer)
        assert status == 401, credentials
        assert code in {"kernel.credentials.missing", "kernel.credentials.invalid"}, credentials
        assert answer.headers["www-authenticate"] == "Bearer"


async def test_request_id_when_given_then_returned_and_when_strange_then_replaced(services: Services) -> None:
    kept = await services.http.get("/v1/me", headers={"X-Request-Id": "abc-1"})
    assert kept.headers["x-request-id"] == "abc-1"
    for strange in ("x" * 65, "a b\x7f"):
        replaced = await services.http.get("/v1/me", headers={"X-Request-Id": strange})
        assert replaced.headers["x-request-id"] != strange
    await services.as_key()("BREW-1", "/v1/tenants")
    metrics = (await services.http.get("/metrics/quota")).text
    assert 'method="other"' in metrics
    assert "BREW" not in metrics
