"""A key of idempotency used again, in every way it can be meant and not meant; and the services' own routes."""

import json

import pytest

from millpond_contracts.bodies.tenants import Role
from millpond_contracts.errors import ErrorCode
from millpond_contracts.routes import service_for_path
from tests.integration.hostile.bodies import bodies
from tests.integration.hostile.routes import PUBLISHERS, ROUTES, Route
from tests.integration.hostile.world import World, check_problem, differences

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

CODES = frozenset(code.value for code in ErrorCode)
CREATING = [route for route in ROUTES if route.needs_idempotency_key]
SNAPSHOTS = {
    "quota": ("virtual-pools", "tenants"),
    "registry": ("nodes", "pools", "flavors", "capacity"),
    "scheduler": ("allocations", "demand"),
    "billing": ("prices",),
}


def beside(route: Route) -> list[Route]:
    """Other creating routes of the same service and roles: they share the route's keys."""
    service = service_for_path(route.template)
    return [
        one
        for one in CREATING
        if one != route and one.roles == route.roles and service_for_path(one.template) == service
    ]


@pytest.mark.parametrize("route", CREATING, ids=str)
async def test_key_when_used_again_then_one_effect(world: World, route: Route) -> None:
    body = bodies(world)[str(route)]
    if route.template == "/v1/virtual-pools":
        # The pool allows no more than it may; a share of nothing fits always.
        body = {**body, "limits": {"cpu": {}, "memory": {}}}
    content, key = json.dumps(body).encode(), {"Idempotency-Key": f"again-{route.template}"}
    first = await world.send(route, world.key_for(route), content, headers=key)
    assert first.status_code in (201, 202), first.text
    before = await world.digest()

    again = await world.send(route, world.key_for(route), content, headers=key)
    assert (again.status_code, again.headers.get("idempotency-replayed")) == (first.status_code, "true")
    secrets = ("secret", "token")
    assert again.json() == {name: None if name in secrets else value for name, value in first.json().items()}

    other = await world.send(route, world.key_for(route), b"{" + content[1:] + b" ", headers=key)
    assert check_problem(other, frozenset({"kernel.idempotency_key.reused"})) == []
    for elsewhere in beside(route):
        moved = json.dumps(bodies(world)[str(elsewhere)]).encode()
        answer = await world.send(elsewhere, world.key_for(route), moved, headers=key)
        assert check_problem(answer, frozenset({"kernel.idempotency_key.reused"})) == []
    assert differences(before, await world.digest()) == {}


async def test_key_when_another_tenant_uses_it_then_nothing_is_replayed(world: World) -> None:
    key = {"Idempotency-Key": "of-two-tenants"}
    body = {"name": "same-name"}
    mine = await world.services.as_key(world.keys[Role.TENANT_ADMIN])("POST", "/v1/projects", body, headers=key)
    theirs = await world.services.as_key(world.others[Role.TENANT_ADMIN])("POST", "/v1/projects", body, headers=key)
    assert (mine.status_code, theirs.status_code) == (201, 201)
    assert "idempotency-replayed" not in theirs.headers
    assert mine.json()["tenant_id"] != theirs.json()["tenant_id"]


async def test_internal_routes_when_their_values_are_bad_then_a_problem(world: World) -> None:
    before, wrong, service = await world.digest(), {}, world.services.as_key(world.keys[Role.SERVICE])
    paths = [f"/internal/v1/events/{name}?after=" for name in PUBLISHERS]
    paths += [f"/internal/v1/events/{name}?limit=" for name in PUBLISHERS]
    for name, nouns in SNAPSHOTS.items():
        for noun in nouns:
            right = await service("GET", f"/internal/v1/snapshot/{name}/{noun}")
            assert right.status_code == 200, f"{name}/{noun}: {right.text}"
            paths += [f"/internal/v1/snapshot/{name}/{noun}?{field}=" for field in ("after", "limit")]
    for path in paths:
        for value in ("zzz", "%00", "%ED%A0%80", "-1", str(2**70), "9e30", "a" * 300, "0" * 31 + "g"):
            answer = await service("GET", path + value)
            found = [] if answer.status_code == 200 else check_problem(answer, CODES)
            if found:
                wrong[path + value[:40]] = found
    assert wrong == {}
    assert differences(before, await world.digest()) == {}


@pytest.mark.parametrize("path", ["/v1/tokens", "/internal/v1/tokens/quota"])
async def test_exchange_when_the_key_is_bad_then_refused_and_not_repeated(world: World, path: str) -> None:
    wrong = {}
    for why, credentials in world.bad_credentials.items():
        answer = await world.services.http.post(path, json={"api_key": credentials})
        found = check_problem(answer, CODES)
        if found or answer.status_code not in (401, 422) or credentials in answer.text:
            wrong[why] = [str(answer.status_code), *found]
    assert wrong == {}
