"""Ids that are no ids, unknown ids, ids of others, strange paths and methods, cursors and limits: a clear problem."""

import base64

import pytest

from millpond_contracts.bodies.tenants import Role
from millpond_contracts.errors import ErrorCode
from millpond_kernel.pagination import encode_cursor
from tests.integration.hostile.bodies import bodies
from tests.integration.hostile.routes import LISTS, PUBLIC, ROUTES, Route
from tests.integration.hostile.world import NAME_CANARY, World, check_problem, differences

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

CODES = frozenset(code.value for code in ErrorCode)
WITH_ID = [route for route in ROUTES if route.parameter and str(route) in PUBLIC]
PAGED = [route for route in ROUTES if route.is_list]
MALFORMED = (
    "x",
    "NaN",
    "-1",
    "9e30",
    str(2**62),
    "%00",
    "%ED%A0%80",
    "job_",
    "00000000-0000-0000-0000-000000000000",
    "null",
    "%27%3B--",
    "a" * 2000,
    "ten_0000000000000000000000000O",
    "job_%F0%9F%98%80",
)


def unknown_id(real: str) -> str:
    """Another id of the same kind that nothing has."""
    prefix, _, rest = real.rpartition("_")
    return f"{prefix}_{rest[:10]}{'0' * 15}1" if prefix else "unknown"


def all_ids(world: World, **changed: str) -> dict[str, str]:
    return {**world.ids, **changed}


async def send_with(world: World, route: Route, value: str) -> list[str]:
    """What is wrong with the answer on a path with this id, and its status."""
    assert route.parameter is not None
    path = world.path(route, all_ids(world, **{route.parameter: value}))
    body = bodies(world).get(str(route), {})
    answer = await world.services.as_key(world.key_for(route))(
        route.method, path, body if route.method != "GET" else None, headers={"If-Match": "*"}
    )
    return [str(answer.status_code), *check_problem(answer, CODES)]


async def test_ids_when_they_are_no_ids_then_422(world: World) -> None:
    before, wrong = await world.digest(), {}
    for route in WITH_ID:
        # Flavors are named; what is no name names none.
        right = (["422"], ["404"]) if route.parameter == "name" else (["422"],)
        for value in MALFORMED:
            found = await send_with(world, route, value)
            if found not in right:
                wrong[f"{route} with {value[:40]}"] = found
    assert wrong == {}
    assert differences(before, await world.digest()) == {}


async def test_ids_when_nothing_has_them_then_404(world: World) -> None:
    before, wrong = await world.digest(), {}
    for route in WITH_ID:
        assert route.parameter is not None
        found = await send_with(world, route, unknown_id(world.ids[route.parameter]))
        if found != ["404"]:
            wrong[str(route)] = found
    assert wrong == {}
    assert differences(before, await world.digest()) == {}


async def test_ids_when_they_are_of_another_kind_then_422(world: World) -> None:
    wrong = {}
    for route in WITH_ID:
        if route.parameter == "name":
            continue
        other = world.ids["job_id"] if route.parameter != "job_id" else world.ids["node_id"]
        found = await send_with(world, route, other)
        if found != ["422"]:
            wrong[str(route)] = found
    assert wrong == {}


async def test_filters_when_they_name_anothers_objects_then_empty_or_404(world: World) -> None:
    ids, wrong = world.ids, {}
    for path in (
        f"/v1/api-keys?tenant_id={ids['tenant_id']}",
        f"/v1/projects?tenant_id={ids['tenant_id']}",
        f"/v1/virtual-pools?tenant_id={ids['tenant_id']}",
        f"/v1/jobs?virtual_pool={ids['virtual_pool']}",
        f"/v1/jobs?project={ids['project_id']}",
        f"/v1/jobs?label=team={NAME_CANARY}",
        f"/v1/allocations?job_id={ids['job_id']}",
        f"/v1/allocations?node_id={ids['node_id']}",
        f"/v1/allocations?virtual_pool={ids['virtual_pool']}",
        f"/v1/usage?virtual_pool={ids['virtual_pool']}",
        f"/v1/charges?job_id={ids['job_id']}",
        f"/v1/charges?tenant_id={ids['tenant_id']}",
        f"/v1/statements?tenant_id={ids['tenant_id']}",
        f"/v1/statements/current?tenant_id={ids['tenant_id']}",
        f"/v1/exports?tenant_id={ids['tenant_id']}",
        f"/v1/audit/quota?object={ids['project_id']}",
    ):
        answer = await world.services.as_key(world.others[Role.TENANT_ADMIN])("GET", path)
        if not (answer.status_code == 404 or answer.json().get("items") == []):
            # A filter that narrows a list to nothing may also leave what the caller has anyway, never the other's.
            wrong[path] = (answer.status_code, answer.text[:200])
    assert wrong == {}


async def test_u3_lists_when_the_limit_is_negative_or_huge_then_refused_before_anything_is_read(world: World) -> None:
    wrong = {}
    for route in PAGED:
        for limit in ("-1", "1000000000", f"-{10**18}"):
            answer = await world.services.as_key(world.key_for(route))("GET", f"{world.path(route)}?limit={limit}")
            if answer.status_code != 422 or "/query/limit" not in answer.text or len(answer.content) > 2000:
                wrong[f"{route}?limit={limit}"] = (answer.status_code, answer.text[:200])
    assert wrong == {}


async def test_limits_and_cursors_when_wrong_then_refused(world: World) -> None:
    wrong = {}
    other_kinds = {"uuid": encode_cursor("text"), "int": encode_cursor("text"), "text": encode_cursor(7)}
    flipped = base64.urlsafe_b64encode(b"\0" * 6 + b"i7").decode()
    for route in PAGED:
        for query, status in (
            ("limit=0", 422),
            ("limit=-1", 422),
            ("limit=100000", 422),
            ("limit=9e30", 422),
            (f"limit={2**70}", 422),
            ("limit=NaN", 422),
            ("limit=1&limit=x", 422),
            ("cursor=AAAA", 400),
            ("cursor=%00", 400),
            ("cursor=%ED%A0%80", 400),
            (f"cursor={flipped}", 400),
            (f"cursor={'a' * 10_001}", 422),
            (f"cursor={other_kinds[LISTS[route.template]]}", 400),
        ):
            path = f"{world.path(route)}?{query}"
            answer = await world.services.as_key(world.key_for(route))("GET", path)
            found = check_problem(answer, CODES)
            missing = "/statements/" in path and answer.status_code == 404  # None is closed: the id is looked up first.
            if found or (answer.status_code != status and not missing):
                wrong[f"{route}?{query[:40]}"] = [str(answer.status_code), *found]
    assert wrong == {}


async def test_numbers_in_cursors_when_out_of_range_then_refused(world: World) -> None:
    wrong = {}
    for route in PAGED:
        kind = LISTS[route.template]
        cursors = {"int": [encode_cursor(2**70), encode_cursor(-1)], "text": [encode_cursor("\x00"), encode_cursor("")]}
        for cursor in cursors.get(kind, []):
            answer = await world.services.as_key(world.key_for(route))("GET", f"{world.path(route)}?cursor={cursor}")
            if answer.status_code >= 500:
                wrong[f"{route}?cursor={cursor}"] = answer.status_code
    assert wrong == {}


STRANGE_PATHS = (
    "/",
    "/v1",
    "/v1/",
    "//v1/tenants",
    "/v1//tenants",
    "/v1/tenants/",
    "/v1/tenants/..",
    "/v1/../internal/v1/jwks/quota",
    "/v1/tenants/../../internal/v1/jwks/quota",
    "/v1/tenants/%2e%2e/%2e%2e/internal/v1/events/quota",
    "/v1/tenants/..%2f..%2finternal",
    "/v1/tenants/%00",
    "/v1/tenants%00",
    "/v1/jobs/%00/logs",
    "/v1/exports/../../../etc/passwd",
    "/v1/exports/..%2f..%2fetc%2fpasswd/content",
    "/V1/tenants",
    "/v1/nothing",
    "/v1/tenants;x=1",
    "/internal/v1/nothing",
    "/internal/v1/snapshot/quota/nothing",
    "/docs/nothing",
    "/openapi/nothing.json",
    "/healthz",
    "/metrics",
    "/.env",
    f"/v1/{'a' * 5000}",
)


async def test_paths_when_strange_then_a_problem(world: World) -> None:
    wrong = {}
    for path in STRANGE_PATHS:
        for key in (None, world.keys[Role.OPERATOR], world.keys[Role.VIEWER]):
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            answer = await world.send_raw(path, headers)
            found = check_problem(answer, CODES)
            if found or answer.status_code not in (401, 403, 404, 422):
                wrong[path[:60]] = [str(answer.status_code), *found]
    assert wrong == {}


async def test_methods_when_a_path_does_not_take_them_then_405(world: World) -> None:
    before, wrong = await world.digest(), {}
    taken: dict[str, set[str]] = {}
    for route in ROUTES:
        taken.setdefault(route.template, set()).add(route.method)
    for route in ROUTES:
        for method in ("HEAD", "OPTIONS", "TRACE", "CONNECT", "PUT", "PATCH", "DELETE", "POST", "BREW"):
            # `/v1/nodes/join` is no id of a node, and `/v1/statements/current` none of a statement.
            if method in taken[route.template] or route.template in ("/v1/nodes/join", "/v1/statements/current"):
                continue
            answer = await world.services.as_key(world.keys[Role.OPERATOR])(method, world.path(route))
            if answer.status_code != 405 or "allow" not in answer.headers:
                wrong[f"{method} {route.template}"] = answer.status_code
    assert wrong == {}
    assert differences(before, await world.digest()) == {}


async def test_queries_when_their_values_are_bad_then_refused(world: World) -> None:
    wrong = {}
    for service in ("quota", "registry", "scheduler", "billing", "autoscaler"):
        document = (await world.services.http.get(f"/openapi/{service}.json")).json()
        for template, operations in document["paths"].items():
            for parameter in operations.get("get", {}).get("parameters", ()):
                if parameter["in"] != "query" or parameter["name"] == "follow":
                    continue
                route = Route("GET", template, PUBLIC[f"GET {template}"])
                for value in ("%00", "%ED%A0%80", "a" * 3000, str(2**70), "9e30", "-1", "%F0%9F%98%80", ""):
                    end = "&follow=false" if "/events/" in template else ""
                    path = f"{world.path(route)}?{parameter['name']}={value}{end}"
                    answer = await world.services.as_key(world.key_for(route))("GET", path)
                    wrong_here = [] if answer.status_code == 200 else check_problem(answer, CODES)
                    if wrong_here:
                        wrong[path[:120]] = wrong_here
    assert wrong == {}
