"""Bodies and headers that nobody can mean: never a 5xx, always a problem document, and no change."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from millpond_contracts.bodies.tenants import Role
from millpond_contracts.errors import ErrorCode
from tests.integration.hostile.bodies import bodies
from tests.integration.hostile.routes import ROUTES, Route
from tests.integration.hostile.values import RAW, bad_bodies
from tests.integration.hostile.world import World, check_problem, differences

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

CODES = frozenset(code.value for code in ErrorCode)
WITH_BODY = tuple(
    route
    for route in ROUTES
    if route.method in ("POST", "PUT", "PATCH")
    and not route.template.endswith(("/revoke", "/cancel", "/accept", "/withdraw"))
)


def route_of(text: str) -> Route:
    return next(route for route in ROUTES if str(route) == text)


async def test_bodies_when_they_are_no_objects_of_the_schema_then_422(world: World) -> None:
    before, wrong = await world.digest(), {}
    for route in WITH_BODY:
        for why, (content, status, codes) in RAW.items():
            answer = await world.send(route, world.key_for(route), content)
            found = check_problem(answer, codes)
            if found or answer.status_code != status:
                wrong[f"{route}: {why}"] = [str(answer.status_code), *found]
    assert wrong == {}
    assert differences(before, await world.digest()) == {}


@pytest.mark.parametrize("route", WITH_BODY, ids=str)
async def test_body_when_one_value_cannot_be_meant_then_refused_and_no_change(world: World, route: Route) -> None:
    right = bodies(world)[str(route)]
    before, wrong = await world.digest(), {}
    for bad in bad_bodies(right):
        answer = await world.send(route, world.key_for(route), bad.content)
        found = check_problem(answer, CODES)
        if found:
            wrong[bad.why] = found
    assert wrong == {}
    assert differences(before, await world.digest()) == {}


@pytest.mark.parametrize("kind", ["with its length", "in chunks"])
async def test_bodies_when_ten_megabytes_then_413(world: World, kind: str) -> None:
    piece = b"x" * 65_536

    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"name": "'
        for _ in range(160):
            yield piece
        yield b'"}'

    before, wrong = await world.digest(), {}
    for route in WITH_BODY:
        headers = {"Authorization": f"Bearer {world.key_for(route)}", "Content-Type": "application/json"}
        content = chunks() if kind == "in chunks" else b'{"name": "' + piece * 160 + b'"}'
        answer = await world.services.http.request(route.method, world.path(route), content=content, headers=headers)
        found = check_problem(answer, frozenset({ErrorCode.BODY_TOO_LARGE.value}))
        if found or answer.status_code != 413:
            wrong[str(route)] = [str(answer.status_code), *found]
    assert wrong == {}
    assert differences(before, await world.digest()) == {}


async def test_bodies_when_of_another_media_type_then_refused(world: World) -> None:
    before, wrong = await world.digest(), {}
    for route in WITH_BODY:
        content = json.dumps(bodies(world)[str(route)]).encode()
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "nonsense"):
            answer = await world.send(route, world.key_for(route), content, headers={"Content-Type": kind})
            found = check_problem(answer, CODES)
            if found:
                wrong[f"{route} as {kind}"] = found
    assert wrong == {}
    assert differences(before, await world.digest()) == {}


async def test_idempotency_keys_when_missing_or_malformed_then_400(world: World) -> None:
    before, wrong = await world.digest(), {}
    for route in (one for one in ROUTES if one.needs_idempotency_key):
        content = json.dumps(bodies(world)[str(route)]).encode()
        for value in ("", "a b", "x" * 129, "\x7f"):
            answer = await world.send(route, world.key_for(route), content, headers={"Idempotency-Key": value})
            found = check_problem(answer, frozenset({"kernel.idempotency_key.invalid"}))
            if found or answer.status_code != 400:
                wrong[f"{route} with {value[:20]!r}"] = [str(answer.status_code), *found]
        bare = {"Authorization": f"Bearer {world.key_for(route)}", "Content-Type": "application/json"}
        answer = await world.services.http.request(route.method, route.template, content=content, headers=bare)
        found = check_problem(answer, frozenset({"kernel.idempotency_key.missing"}))
        if found or answer.status_code != 400:
            wrong[f"{route} without"] = [str(answer.status_code), *found]
    assert wrong == {}
    assert differences(before, await world.digest()) == {}


async def test_if_match_when_missing_or_stale_then_428_or_412(world: World) -> None:
    before, wrong = await world.digest(), {}
    for route in (one for one in ROUTES if one.needs_if_match):
        body = bodies(world).get(str(route))
        content = None if body is None else json.dumps(body).encode()
        for value, status, code in (
            (" ", 428, "kernel.if_match.missing"),
            ('"999999"', 412, "kernel.if_match.stale"),
            ("1", 412, "kernel.if_match.stale"),
            ('"-1"', 412, "kernel.if_match.stale"),
            ("x" * 4000, 412, "kernel.if_match.stale"),
            (f'"{2**70}"', 412, "kernel.if_match.stale"),
        ):
            answer = await world.send(route, world.key_for(route), content, headers={"If-Match": value})
            found = check_problem(answer, frozenset({code}))
            if found or answer.status_code != status:
                wrong[f"{route} with {value[:20]!r}"] = [str(answer.status_code), *found]
    assert wrong == {}
    assert differences(before, await world.digest()) == {}


async def test_names_when_taken_then_409(world: World) -> None:
    """The very bodies that made what exists."""
    ids, operator = world.ids, world.services.as_key()
    limits: dict[str, Any] = {"cpu": {}, "memory": {}}
    share = {"tenant_id": ids["tenant_id"], "pool_id": ids["pool_id"], "limits": limits}
    before = await world.digest()
    answers: list[httpx.Response] = [
        await operator("POST", path, body)
        for path, body in (
            ("/v1/tenants", {"name": "acme"}),
            ("/v1/pools", {"name": "metal"}),
            ("/v1/flavors", {"name": "own-flavor", "selector": {"vendor": "nobody"}}),
            ("/v1/projects", {"name": "project-acme", "tenant_id": ids["tenant_id"]}),
            ("/v1/virtual-pools", {"name": "canary-of-acme", **share}),
        )
    ]
    assert [(answer.status_code, answer.json()["code"]) for answer in answers] == [(409, "kernel.name.taken")] * 5
    assert differences(before, await world.digest()) == {}


MONEY: tuple[tuple[Any, str], ...] = (
    (3.6, "a number"),
    (4, "an integer"),
    ("1e3", "an exponent"),
    ("1E-3", "an exponent"),
    ("NaN", "not a number"),
    ("Infinity", "infinite"),
    ("-Infinity", "infinite"),
    ("-1", "negative"),
    ("", "empty"),
    (" 1", "a space"),
    ("1 ", "a space"),
    ("1_000", "an underscore"),
    ("1,5", "a comma"),
    ("0x10", "hexadecimal"),
    ("+1", "a plus sign"),
    ("01", "a leading zero"),
    (".5", "no digit before the point"),
    ("5.", "no digit after the point"),
    ("٣", "digits of another script"),
    ("9" * 21, "21 digits before the point"),
    ("9" * 20, "more than any price"),
    ("0." + "0" * 24 + "1", "25 digits after the point"),
    ("1\n", "a line end"),
    (None, "null"),
    ({"amount": "1", "currency": "CNY"}, "an object"),
)


async def test_prices_when_not_written_as_exact_decimals_then_422(world: World) -> None:
    before, wrong = await world.digest(), {}
    for value, why in MONEY:
        body = {"lines": [{"sku": "device/*/on_demand", "per_hour": value}], "tenant_id": world.ids["tenant_id"]}
        answer = await world.services.as_key()("POST", "/v1/price-books", body)
        found = check_problem(answer, CODES)
        if found or answer.status_code != 422:
            wrong[f"{value!r}: {why}"] = [str(answer.status_code), *found]
    assert wrong == {}
    assert differences(before, await world.digest()) == {}


async def test_roles_when_a_key_is_made_for_more_than_its_maker_may_then_refused(world: World) -> None:
    before, ids = await world.digest(), world.ids
    admin = world.services.as_key(world.keys[Role.TENANT_ADMIN])
    stranger = world.services.as_key(world.others[Role.TENANT_ADMIN])
    answers = [
        await admin("POST", "/v1/api-keys", {"name": "up", "role": "operator"}),
        await admin("POST", "/v1/api-keys", {"name": "up", "role": "service"}),
        await admin("POST", "/v1/api-keys", {"name": "up", "role": "node"}),
        await admin("PUT", f"/v1/api-keys/{ids['api_key_id']}/role", {"role": "operator"}, headers={"If-Match": "*"}),
        await admin("PUT", f"/v1/api-keys/{ids['api_key_id']}/role", {"role": "service"}, headers={"If-Match": "*"}),
        await stranger("POST", "/v1/api-keys", {"name": "in", "role": "viewer", "tenant_id": ids["tenant_id"]}),
        await stranger("POST", "/v1/api-keys", {"name": "in", "role": "viewer", "project_id": ids["project_id"]}),
        await stranger("POST", "/v1/projects", {"name": "in", "tenant_id": ids["tenant_id"]}),
        await stranger("POST", "/v1/exports", {"tenant_id": ids["tenant_id"]}),
        await stranger("POST", "/v1/jobs", bodies(world)["POST /v1/jobs"]),
    ]
    assert [answer.status_code for answer in answers] == [422] * 5 + [404] * 5
    assert differences(before, await world.digest()) == {}
