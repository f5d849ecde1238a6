"""Without credentials, with wrong ones, or with those of another role, nothing is told and nothing happens."""

import pytest

from millpond_contracts.bodies.tenants import Role
from millpond_contracts.errors import ErrorCode
from tests.integration.hostile.routes import OPEN, PUBLIC, PUBLISHERS, ROUTES
from tests.integration.hostile.world import World, check_problem, differences

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

MISSING = frozenset({ErrorCode.CREDENTIALS_MISSING.value})
WRONG = frozenset({ErrorCode.CREDENTIALS_INVALID.value, ErrorCode.CREDENTIALS_REVOKED.value})
FORBIDDEN = frozenset({ErrorCode.ROLE_FORBIDDEN.value})
GUARDED = [route for route in ROUTES if route.roles is not OPEN]


async def test_table_when_compared_with_the_services_then_it_names_every_route(world: World) -> None:
    described: set[str] = set()
    for service in PUBLISHERS:
        document = (await world.services.http.get(f"/openapi/{service}.json")).json()
        for path, operations in document["paths"].items():
            described |= {f"{method.upper()} {path}" for method in operations}
    assert described == set(PUBLIC)


async def test_routes_when_called_without_credentials_then_401(world: World) -> None:
    before, wrong = await world.digest(), {}
    for route in GUARDED:
        answer = await world.send(route, None, b"{}")
        found = check_problem(answer, MISSING) + ([] if answer.status_code == 401 else [str(answer.status_code)])
        if found:
            wrong[str(route)] = found
    assert wrong == {}
    assert differences(before, await world.digest()) == {}


async def test_routes_when_called_with_spoilt_credentials_then_401(world: World) -> None:
    before, wrong = await world.digest(), {}
    spoilt = list(world.bad_credentials.items())
    # Each route with one of them in turn, and one route of each service with all.
    for number, route in enumerate(GUARDED):
        chosen = spoilt if "/audit/" in route.template else [spoilt[number % len(spoilt)]]
        for why, credentials in chosen:
            answer = await world.send(route, credentials, b"{}")
            found = check_problem(answer, WRONG) + ([] if answer.status_code == 401 else [str(answer.status_code)])
            if found:
                wrong[f"{route} with {why}"] = found
    assert wrong == {}
    assert differences(before, await world.digest()) == {}


async def test_routes_when_called_with_another_role_then_403(world: World) -> None:
    before, wrong = await world.digest(), {}
    for role in Role:
        for route in GUARDED:
            if role in route.roles:
                continue
            answer = await world.send(route, world.keys[role], b"{}")
            found = check_problem(answer, FORBIDDEN) + ([] if answer.status_code == 403 else [str(answer.status_code)])
            if found:
                wrong[f"{route} as {role}"] = found
    assert wrong == {}
    assert differences(before, await world.digest()) == {}
