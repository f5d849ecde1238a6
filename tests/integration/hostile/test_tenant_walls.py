"""A tenant's keys on every operation of every service, with every id of another tenant: nothing is told or changed.

The services run as their own login roles. The requests are made from the OpenAPI documents (`crawling`).
"""

from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from millpond_contracts.bodies.tenants import Role
from millpond_contracts.errors import ErrorCode
from millpond_kernel.migrate import service_role
from tests.integration.hostile.bodies import bodies
from tests.integration.hostile.crawling import ID, Ask, Operation, asks, operations_of
from tests.integration.hostile.routes import PUBLISHERS
from tests.integration.hostile.world import (
    COMMAND_CANARY,
    ENVIRONMENT_CANARY,
    NAME_CANARY,
    World,
    check_problem,
    differences,
)

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

CODES = frozenset(code.value for code in ErrorCode)
CANARIES = (COMMAND_CANARY, ENVIRONMENT_CANARY, NAME_CANARY)


async def described(world: World) -> list[Operation]:
    """Every operation of every service, as it is described while it runs."""
    documents = [(await world.services.http.get(f"/openapi/{service}.json")).json() for service in PUBLISHERS]
    return [operation for document in documents for operation in operations_of(document)]


async def ids_of_acme(world: World, operations: list[Operation]) -> list[str]:
    """Every id that acme's own administrator can read anywhere, and what operators know of it; not what all share."""
    found = {value for value in world.ids.values() if ID.fullmatch(value)}
    admin = world.services.as_key(world.keys[Role.TENANT_ADMIN])
    for operation in operations:
        if operation.method == "GET":
            path = operation.template.format_map(world.ids)
            end = "?follow=false&after=0" if "/events/" in path else ""
            found |= set(ID.findall((await admin("GET", path + end)).text))
    operator = world.services.as_key()
    pools = (await operator("GET", "/v1/pools", expect=200)).json()["items"]
    prices = (await operator("GET", "/v1/price-books", expect=200)).json()["items"]
    shared = {pool["pool_id"] for pool in pools if pool["isolation"] == "shared"} | set(world.other_ids.values())
    public = [price for price in prices if price["tenant_id"] is None]
    return sorted(found - shared - set(ID.findall(str(public))))


def wrong_in(ask: Ask, role: Role, answer: httpx.Response, private: list[str]) -> list[str]:
    """What an answer tells or does that it may not."""
    status, text = answer.status_code, answer.text
    told = [one for one in (*private, *CANARIES) if one in text and one not in ask.named]
    wrong = [f"tells {told}"] if told else []
    wrong += check_problem(answer, CODES) if status >= 400 else []
    if role.value not in ask.operation.roles:
        return wrong if status == 403 else [*wrong, f"status {status}, where the role may not call it"]
    # Of nothing named, 422 is a parameter that must be there.
    allowed = {"path": (404,), "query": (200, 404, 422), "body": (404, 422), "": (200, 422)}[ask.where]
    return wrong if status in allowed else [*wrong, f"status {status}: {text[:200]}"]


async def test_services_when_they_run_here_then_as_their_own_login_roles(world: World) -> None:
    for service, settings in world.services.settings.items():
        assert urlsplit(settings.database_url.get_secret_value()).username == service_role(service)


async def test_everything_when_another_tenant_asks_with_every_id_then_nothing_is_told_and_nothing_changes(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    operations = await described(world)
    private = await ids_of_acme(world, operations)
    own = {value.partition("_")[0]: value for value in world.other_ids.values()}
    rights: dict[str, Any] = bodies(world)
    capfd.readouterr()
    before, wrong, seen = await world.digest(), {}, Counter[tuple[str, int]]()
    for operation in operations:
        for ask in asks(operation, private, own, rights.get(str(operation))):
            # An administrator may do whatever another role of the tenant may.
            for role in (Role.TENANT_ADMIN, Role.VIEWER) if ask.where == "path" else (Role.TENANT_ADMIN,):
                caller = world.services.as_key(world.others[role])
                answer = await caller(operation.method, ask.path, ask.body, headers={"If-Match": "*"})
                seen[ask.where, answer.status_code] += 1
                if found := wrong_in(ask, role, answer, private):
                    wrong[f"{ask} as {role}"] = found
    written = capfd.readouterr()
    assert wrong == {}
    assert differences(before, await world.digest()) == {}
    logged = [one for one in (*private, *CANARIES) if one in written.out + written.err]
    assert logged == []
    for service in PUBLISHERS:
        metrics = (await world.services.http.get(f"/metrics/{service}")).text
        assert [one for one in (*private, *world.other_ids.values(), *CANARIES) if one in metrics] == []
    # It found ids of many kinds, and asked with them in every place.
    assert len({one.partition("_")[0] for one in private}) >= 10, private
    assert seen["path", 404] >= 50, seen
    assert seen["body", 404] >= 10, seen
    assert seen["query", 200] >= 100, seen
    assert seen["", 200] >= 20, seen
