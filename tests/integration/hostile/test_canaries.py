"""The command and the environment of a job stay between its tenant, the scheduler's own row, and its node."""

import re

import pytest

from millpond_contracts.bodies.tenants import Role
from tests.integration.hostile.bodies import bodies
from tests.integration.hostile.routes import INTERNAL, PUBLISHERS, ROUTES
from tests.integration.hostile.world import COMMAND_CANARY, ENVIRONMENT_CANARY, NAME_CANARY, World
from tests.integration.searching import SECRETS, redis_texts, tables_holding

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

CANARIES = (COMMAND_CANARY, ENVIRONMENT_CANARY)
# Where the tenant itself reads what it submitted.
DETAIL = "/v1/jobs/{job_id}"


async def test_answers_when_read_by_anyone_then_command_and_environment_only_in_the_tenants_own_job(
    world: World,
) -> None:
    found, read = set(), 0
    callers = {f"acme's {role}": world.keys[role] for role in (Role.TENANT_ADMIN, Role.MEMBER, Role.VIEWER)}
    callers |= {f"other's {role}": key for role, key in world.others.items()}
    callers |= {str(role): world.keys[role] for role in (Role.OPERATOR, Role.SERVICE, Role.NODE)}
    for who, key in callers.items():
        for route in (one for one in ROUTES if one.method == "GET"):
            end = "?after=0&follow=false" if "/events/" in route.template else ""
            answer = await world.services.as_key(key)("GET", world.path(route) + end)
            read += answer.status_code == 200
            if any(canary in answer.text for canary in CANARIES):
                found.add((who, route.template))
    assert found == {(f"acme's {role}", DETAIL) for role in (Role.TENANT_ADMIN, Role.MEMBER, Role.VIEWER)}
    assert read > 200


async def test_open_pages_when_read_by_anyone_then_no_names_of_tenants(world: World) -> None:
    told = []
    for service in PUBLISHERS:
        for page in (f"/metrics/{service}", f"/healthz/{service}", f"/readyz/{service}", f"/openapi/{service}.json"):
            answer = await world.services.http.get(page)
            assert answer.status_code == 200, page
            told += [(page, text) for text in (*CANARIES, NAME_CANARY, *world.ids.values()) if text in answer.text]
    assert told == []


async def test_tables_when_searched_then_command_and_environment_only_in_the_jobs_own(world: World) -> None:
    holding = await tables_holding(world.owner, "|".join(map(re.escape, CANARIES)))
    assert len(holding) == 1
    assert holding.pop().startswith("scheduler.job")


async def test_tables_when_searched_then_no_secret_as_it_was_given_out(world: World) -> None:
    given = [*world.keys.values(), *world.others.values(), world.join_token, *world.bad_credentials.values()]
    secrets = [key for key in given if SECRETS.search(key)]
    assert len(secrets) >= 8
    assert await tables_holding(world.owner, SECRETS.pattern) == set()


async def test_redis_when_searched_then_no_command_no_environment_and_no_secret(world: World) -> None:
    settings = world.services.settings["scheduler"]
    texts = [one async for one in redis_texts(settings.redis_url.get_secret_value(), settings.redis_prefix)]
    assert len(texts) > 5
    held = [name for name, text in texts if SECRETS.search(text) or any(canary in text for canary in CANARIES)]
    assert held == []


async def test_feeds_when_read_by_a_service_then_they_hold_the_job_without_its_command(world: World) -> None:
    feed = await world.services.as_key(world.keys[Role.SERVICE])("GET", "/internal/v1/events/scheduler", expect=200)
    assert world.ids["job_id"] in feed.text
    assert NAME_CANARY in feed.text
    assert "GET /internal/v1/events/scheduler" in INTERNAL


async def test_refusals_when_a_job_is_bad_then_problem_and_log_repeat_no_command_and_no_environment(
    world: World, capfd: pytest.CaptureFixture[str]
) -> None:
    member = world.services.as_key(world.keys[Role.MEMBER])
    right = bodies(world)["POST /v1/jobs"]
    group = right["groups"][0]
    runs = [
        {"command": [COMMAND_CANARY], "env": {"A": {"value": ENVIRONMENT_CANARY}}},
        {"command": COMMAND_CANARY, "env": ENVIRONMENT_CANARY},
        {"command": [COMMAND_CANARY], "env": {"MILLPOND_X": ENVIRONMENT_CANARY}},
        {"command": [COMMAND_CANARY], "env": {}, "surplus": ENVIRONMENT_CANARY},
        {"command": [COMMAND_CANARY + "\x00"], "env": {"A": ENVIRONMENT_CANARY}},
    ]
    wrong = []
    for run in runs:
        answer = await member("POST", "/v1/jobs", {**right, "groups": [{**group, "run": run}]})
        if answer.status_code != 422 or any(canary in answer.text for canary in CANARIES):
            wrong.append((run, answer.status_code, answer.text[:300]))
    written = capfd.readouterr()
    assert wrong == []
    assert not any(canary in written.out + written.err for canary in CANARIES)
