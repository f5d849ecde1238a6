"""Two tenants with one object of every kind, credentials of every role, and right bodies for every route with one."""

import asyncio
import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote
from uuid import uuid4

import asyncpg
import httpx

from millpond_contracts.bodies.tenants import Role
from tests.factories.registry import Agent, gpu, inventory
from tests.integration.databases import MigratedDatabase
from tests.integration.hostile.routes import Route
from tests.integration.services import Caller, Services, eventually

FLAVOR = "nvidia-a100-sxm4-80gb"
# In acme's command and environment, in its names, and in the others': neither may turn up where it does not belong.
COMMAND_CANARY = "canary-in-the-command"
ENVIRONMENT_CANARY = "canary-in-the-environment"
NAME_CANARY = "canary-of-acme"

# What moves by itself: when a key was last used, and the public keys that services learn from one another.
_UNWATCHED_COLUMNS = {"api_key": ("last_used_at",)}
_UNWATCHED_TABLES = frozenset({"signing_key"})
# RFC 6901, of fields as a caller wrote them: no name of ours for a branch of a schema.
_POINTER = re.compile(r"(/([^/~\[\]]|~[01])*)*")
_TABLES = """
SELECT n.nspname AS schema, c.relname AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname IN ('quota', 'registry', 'scheduler', 'billing') ORDER BY 1, 2
"""


class _RawUrl:
    """A path as it was written."""

    def __init__(self, path: str) -> None:
        self.path = unquote(path, errors="replace")
        self.raw_path = path.encode()
        self.query = b""
        self.scheme, self.host, self.port = "http", "millpond", None


@dataclass(slots=True)
class World:
    """`ids` = a path's parameter -> acme's object; `keys` = credentials by role; `others` = those of another tenant."""

    services: Services
    owner: asyncpg.Connection
    agent: Agent
    ids: dict[str, str] = field(default_factory=dict)
    keys: dict[Role, str] = field(default_factory=dict)
    others: dict[Role, str] = field(default_factory=dict)
    bad_credentials: dict[str, str] = field(default_factory=dict)
    other_ids: dict[str, str] = field(default_factory=dict)
    join_token: str = ""
    allocation: dict[str, Any] = field(default_factory=dict)

    async def send(
        self,
        route: Route,
        credentials: str | None,
        content: bytes | None = None,
        *,
        path: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """A request on a route as complete as its headers allow."""
        given = {"Content-Type": "application/json", "If-Match": "*", "Idempotency-Key": uuid4().hex}
        if credentials is not None:
            given["Authorization"] = f"Bearer {credentials}"
        given.update(headers or {})
        target = path or self.path(route)
        return await self.services.http.request(route.method, target, content=content, headers=given)

    async def send_raw(self, path: str, headers: Mapping[str, str]) -> httpx.Response:
        """A GET of exactly this path; a client of HTTP would tidy it up first."""
        request = httpx.Request("GET", "http://millpond/", headers=headers)
        # The transport reads `path` and `raw_path` of the URL, and nothing else of it.
        request.url = cast(httpx.URL, _RawUrl(path))
        answer = await self.services.transport.handle_async_request(request)
        await answer.aread()
        return answer

    def path(self, route: Route, ids: Mapping[str, str] | None = None) -> str:
        """The route's path with acme's ids."""
        return route.template.format_map(ids or self.ids)

    def key_for(self, route: Route) -> str | None:
        """Credentials that may use the route; a tenant's own where the route takes them."""
        for role in (Role.TENANT_ADMIN, Role.OPERATOR, Role.NODE, Role.SERVICE):
            if role in route.roles:
                return self.keys[role]
        return None

    async def digest(self) -> dict[str, str]:
        """A fingerprint of every table, as a caller could have changed it."""
        tables = [table for table in await self.owner.fetch(_TABLES) if table["name"] not in _UNWATCHED_TABLES]
        queries = []
        for table in tables:
            row = "to_jsonb(t)"
            for column in _UNWATCHED_COLUMNS.get(table["name"], ()):
                row += f" - '{column}'"
            name = f"{table['schema']}.{table['name']}"
            queries.append(
                f"SELECT '{name}' AS name, count(*) || ' rows ' || coalesce(md5(string_agg(row, '' ORDER BY row)), '')"
                f" AS sum FROM (SELECT md5(({row})::text) AS row FROM {name} t) rows"
            )
        return {row["name"]: row["sum"] for row in await self.owner.fetch(" UNION ALL ".join(queries))}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    """The tables that changed, with their rows before and after."""
    return {name: (before[name], after.get(name)) for name in before if before[name] != after.get(name)}


def check_problem(answer: httpx.Response, codes: frozenset[str]) -> list[str]:
    """What is wrong with an answer as a problem document; empty when nothing is."""
    if answer.status_code >= 500 or answer.status_code < 400:
        return [f"status {answer.status_code}: {answer.text[:200]}"]
    if answer.headers.get("content-type") != "application/problem+json":
        return [f"content type {answer.headers.get('content-type')}"]
    body = answer.json()
    wrong = []
    if body.get("status") != answer.status_code:
        wrong.append(f"status {body.get('status')} in the body of a {answer.status_code}")
    if body.get("code") not in codes:
        wrong.append(f"code {body.get('code')}")
    if not body.get("request_id") or body["request_id"] != answer.headers.get("x-request-id"):
        wrong.append(f"request id {body.get('request_id')}")
    wrong += [f"pointer {one['pointer']}" for one in body.get("errors", ()) if not _POINTER.fullmatch(one["pointer"])]
    if len(answer.content) > 20_000:
        wrong.append(f"{len(answer.content)} bytes")
    if COMMAND_CANARY in answer.text or ENVIRONMENT_CANARY in answer.text:
        wrong.append("the command or environment of a job")
    return wrong


async def build_world(services: Services, migrated: MigratedDatabase, owner: asyncpg.Connection) -> World:
    """Everything that a hostile caller could reach for; afterwards the workers stand still."""
    world = World(services, owner, Agent(services.http))
    operator = services.as_key()
    world.keys |= {Role.OPERATOR: services.operator_key}
    world.keys[Role.SERVICE] = services.settings["quota"].service_key.get_secret_value()
    await _join(world, operator)
    await _make_tenant(world, operator, "acme", world.ids, world.keys)
    await _make_tenant(world, operator, "other", world.other_ids, world.others)
    await _make_prices(world, operator)
    await _run_job(world)
    await _spoil_credentials(world, operator)
    exported = (await services.as_key(world.keys[Role.TENANT_ADMIN])("POST", "/v1/exports", {}, expect=202)).json()
    world.ids["export_id"] = exported["export_id"]
    world.ids["statement_id"] = "stmt_01m8mrpz00000000000000000z"
    await _stand_still(world)
    return world


async def _join(world: World, operator: Caller) -> None:
    pool = {"name": "metal", "allow_oversubscription": True, "lease_seconds": 3600, "unreachable_after_seconds": 3600}
    world.ids["pool_id"] = (await operator("POST", "/v1/pools", pool, expect=201)).json()["pool_id"]
    made = (await operator("POST", "/v1/join-tokens", {"pool_id": world.ids["pool_id"]}, expect=201)).json()
    world.join_token, world.ids["join_token_id"] = made["token"], made["join_token_id"]
    await world.agent.become_ready(made["token"], inventory([gpu(0), gpu(1)]))
    world.ids["node_id"] = world.agent.node_id
    world.keys[Role.NODE] = world.agent.token
    node = (await operator("GET", f"/v1/nodes/{world.agent.node_id}", expect=200)).json()
    world.ids["device_id"] = node["devices"][0]["device_id"]
    flavor = {"name": "own-flavor", "selector": {"vendor": "nobody"}}
    world.ids["name"] = (await operator("POST", "/v1/flavors", flavor, expect=201)).json()["name"]


async def _make_tenant(world: World, operator: Caller, name: str, ids: dict[str, str], keys: dict[Role, str]) -> None:
    spec = {"name": name, "labels": {"note": NAME_CANARY if name == "acme" else "-"}}
    tenant = (await operator("POST", "/v1/tenants", spec, expect=201)).json()["tenant_id"]
    ids["tenant_id"] = tenant
    project = {"name": f"project-{name}", "tenant_id": tenant}
    ids["project_id"] = (await operator("POST", "/v1/projects", project, expect=201)).json()["project_id"]
    for role in (Role.TENANT_ADMIN, Role.MEMBER, Role.VIEWER):
        spec = {"name": role.value.replace("_", "-"), "role": role.value, "tenant_id": tenant}
        made = (await operator("POST", "/v1/api-keys", spec, expect=201)).json()
        keys[role], ids["api_key_id"] = made["secret"], made["api_key_id"]
    share = {
        "name": "canary-of-acme" if name == "acme" else "share",
        "tenant_id": tenant,
        "pool_id": world.ids["pool_id"],
        "limits": {
            "cpu": {"guaranteed": 4000},
            "memory": {"guaranteed": 8192},
            "devices": {FLAVOR: {"guaranteed": 1000}},
        },
    }

    async def created() -> Any:
        answer = await operator("POST", "/v1/virtual-pools", share)
        return answer.json() if answer.status_code == 201 else None

    ids["virtual_pool_id"] = ids["virtual_pool"] = (await eventually(created))["virtual_pool_id"]


async def _make_prices(world: World, operator: Caller) -> None:
    """A price of acme's own; billing must have heard of the tenant."""
    spec = {"lines": [{"sku": "device/*/on_demand", "per_hour": "3.6"}], "tenant_id": world.ids["tenant_id"]}

    async def published() -> Any:
        answer = await operator("POST", "/v1/price-books", spec)
        return answer.json() if answer.status_code == 201 else None

    world.ids["price_version_id"] = (await eventually(published))["price_version_id"]


def job_of(world: World) -> dict[str, Any]:
    """A job with canaries in what must stay between the tenant and its node."""
    group = {
        "name": "main",
        "count": 1,
        "resources": {
            "cpu_milli": 1000,
            "memory_mib": 1024,
            "devices": [{"kind": "gpu", "count": 1, "milli": 1000, "memory_mib": 1024, "flavors": [FLAVOR]}],
        },
        "requires": {
            "attributes": {"memory_gib": ">=40"},
            "ecosystem": {"runtime": ["cuda"], "frameworks": {"pytorch": ">=2.1"}},
            "labels": {"rack": "1"},
            "arch": ["x86_64"],
            "allow_unknown": True,
        },
        "tolerations": [{"key": "simulated", "value": "yes"}],
        "run": {"command": ["python", COMMAND_CANARY], "env": {"TOKEN": ENVIRONMENT_CANARY}},
        "stop_grace_seconds": 10,
    }
    return {
        "name": NAME_CANARY,
        "virtual_pool": world.ids["virtual_pool_id"],
        "kind": "batch",
        "priority": 50,
        "groups": [group],
        "time_limit_seconds": 3600,
        "retry": {"max": 1, "on": ["node_lost"]},
        "labels": {"team": NAME_CANARY},
        "project_id": world.ids["project_id"],
    }


async def _run_job(world: World) -> None:
    """A job that runs and has written a log, and one that waits for the limit."""
    member = world.services.as_key(world.keys[Role.MEMBER])
    await world.agent.send("POST", "/v1/work/poll", bodies(world)["POST /v1/work/poll"], expect=200)
    body = job_of(world)
    body["groups"][0]["requires"] = {}

    async def submitted() -> Any:
        answer = await member("POST", "/v1/jobs", body)
        return answer.json() if answer.status_code == 201 else None

    job = await eventually(submitted)
    world.ids["job_id"] = job["job_id"]

    async def assigned() -> Any:
        answer = await world.agent.send("POST", "/v1/work/poll", bodies(world)["POST /v1/work/poll"], expect=200)
        return answer.json()["assignments"]

    world.allocation = (await eventually(assigned))[0]
    world.ids |= {key: world.allocation[key] for key in ("allocation_id", "task_id")}
    reports = bodies(world)["POST /v1/work/reports"]
    reports["reports"] = [
        {**reports["reports"][0], "kind": kind, "sequence": number} for number, kind in ((1, "starting"), (2, "active"))
    ]
    await world.agent.send("POST", "/v1/work/reports", reports, expect=200)
    await world.agent.send("POST", "/v1/work/logs", bodies(world)["POST /v1/work/logs"], expect=200)
    await member("POST", "/v1/jobs", body, expect=201)


async def _spoil_credentials(world: World, operator: Caller) -> None:
    """Credentials that were right once, or nearly are."""
    spec = {"name": "spoilt", "role": "viewer", "tenant_id": world.ids["tenant_id"]}
    expired = (await operator("POST", "/v1/api-keys", {**spec, "expires_in_seconds": 1}, expect=201)).json()
    spec = {**spec, "name": "revoked"}
    revoked = (await operator("POST", "/v1/api-keys", spec, expect=201)).json()
    await operator("POST", f"/v1/api-keys/{revoked['api_key_id']}/revoke", expect=200)
    token = (await operator("POST", "/v1/tokens", {"api_key": world.keys[Role.VIEWER]}, expect=200)).json()["token"]
    head, body, signature = token.split(".")
    swapped = "A" if signature[10] != "A" else "B"
    claims = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).replace(b"viewer", b"operator")
    raised = base64.urlsafe_b64encode(claims).rstrip(b"=").decode()
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').rstrip(b"=").decode()
    key = world.keys[Role.VIEWER]
    await asyncio.sleep(1.1)
    world.bad_credentials = {
        "an expired key": expired["secret"],
        "a revoked key": revoked["secret"],
        "a key with another secret": key[:-1] + ("0" if key[-1] != "0" else "1"),
        "a key of nobody": f"mp_{'0' * 26}_{'0' * 64}",
        "a token with another signature": f"{head}.{body}.{signature[:10]}{swapped}{signature[11:]}",
        "a token with a higher role": f"{head}.{raised}.{signature}",
        "a token without signature": f"{unsigned}.{raised}.",
        "a join token": world.join_token,
        "no key at all": "nonsense",
    }


async def _stand_still(world: World) -> None:
    """Ends the workers once nothing moves any more, so that every later change of a table is a caller's."""
    before = await world.digest()

    async def settled() -> bool:
        nonlocal before
        await asyncio.sleep(0.3)
        after = await world.digest()
        moved = [name for name in differences(before, after) if name.endswith((".outbox", ".alert", ".audit"))]
        before = after
        return not moved

    await eventually(settled, 20)
    world.services.stop.set()
    await asyncio.sleep(1.5)


def bodies(world: World) -> dict[str, dict[str, Any]]:
    """A body that each route takes, as full as it can be."""
    return (
        _bodies_of_quota(world)
        | _bodies_of_registry(world)
        | _bodies_of_agents(world)
        | _bodies_of_scheduler_and_billing(world)
    )


def _bodies_of_quota(world: World) -> dict[str, dict[str, Any]]:
    ids = world.ids
    limit = {"guaranteed": 1000, "borrow": 1, "lend": 1, "hard": 2000}
    limits = {"cpu": limit, "memory": limit, "devices": {FLAVOR: limit}}
    tenant = {"name": "new-tenant", "timezone": "UTC", "currency": "CNY", "labels": {"a": "b"}}
    return {
        "POST /v1/tenants": tenant,
        "PUT /v1/tenants/{tenant_id}": tenant,
        "POST /v1/projects": {"name": "new-project", "tenant_id": ids.get("tenant_id"), "labels": {"a": "b"}},
        "POST /v1/api-keys": {
            "name": "new-key",
            "role": "viewer",
            "tenant_id": ids.get("tenant_id"),
            "project_id": ids.get("project_id"),
            "expires_in_seconds": 60,
        },
        "PUT /v1/api-keys/{api_key_id}/role": {"role": "member"},
        "POST /v1/tokens": {"api_key": world.keys.get(Role.VIEWER)},
        "POST /v1/virtual-pools": {
            "name": "new-share",
            "tenant_id": ids.get("tenant_id"),
            "pool_id": ids.get("pool_id"),
            "limits": limits,
            "policy": "priority",
            "labels": {"a": "b"},
        },
        "PATCH /v1/virtual-pools/{virtual_pool_id}": {"limits": limits, "policy": "fifo", "labels": {"a": "b"}},
    }


def _bodies_of_registry(world: World) -> dict[str, dict[str, Any]]:
    ids = world.ids
    pool = {
        "name": "new-pool",
        "priority": 1,
        "selector": {"labels": {"rack": "1"}, "arch": "x86_64", "region": "north", "vendor": "nvidia"},
        "performance_class": "standard",
        "region": "north",
        "zone": "north-a",
        "isolation": "shared",
        "device_sharing": "any",
        "allow_oversubscription": True,
        "unreachable_after_seconds": 30,
        "lease_seconds": 300,
        "stop_grace_seconds": 30,
        "reference_task_milli": 1000,
        "labels": {"a": "b"},
    }
    flavor = {"name": "new-flavor", "kind": "gpu", "profiles": ["1g.10gb"]}
    flavor |= {"selector": {"vendor": "nvidia", "model_key": "x", "memory_mib_min": 1, "memory_mib_max": 2}}  # type: ignore[dict-item]
    return {
        "POST /v1/pools": pool,
        "PUT /v1/pools/{pool_id}": pool,
        "POST /v1/flavors": flavor,
        "PUT /v1/flavors/{name}": flavor,
        "POST /v1/join-tokens": {
            "pool_id": ids.get("pool_id"),
            "expires_in_seconds": 3600,
            "max_uses": 1,
            "labels": {"a": "b"},
        },
        "POST /v1/nodes/{node_id}/cordon": {"generation": 1},
        "POST /v1/nodes/{node_id}/uncordon": {"generation": 1},
        "POST /v1/nodes/{node_id}/drain": {"deadline_seconds": 60, "generation": 1},
        "POST /v1/nodes/{node_id}/move": {"pool_id": ids.get("pool_id"), "deadline_seconds": 60},
    }


def _bodies_of_agents(world: World) -> dict[str, dict[str, Any]]:
    ids = world.ids
    machine = inventory([gpu(0)], labels={"rack": "1"}).model_dump(mode="json", exclude_none=True)
    return {
        "POST /v1/nodes/join": {
            "token": world.join_token,
            "public_key": world.agent.public_key,
            "name": "machine",
            "inventory": machine,
            "labels": {"a": "b"},
        },
        "POST /v1/agent/challenges": {"node_id": ids.get("node_id")},
        "POST /v1/agent/sessions": {
            "node_id": ids.get("node_id"),
            "nonce": "nonce",
            "signature": "A" * 86,
            "boot_id": "boot-1",
            "agent_version": "1",
        },
        "POST /v1/agent/sessions/renew": {},
        "PUT /v1/agent/inventory": {"sequence": 10, "inventory": machine},
        "POST /v1/agent/ready": {"checks": {"cpu": "ok"}},
        "POST /v1/agent/heartbeat": {
            "boot_id": "boot-1",
            "monotonic_ms": 1000,
            "inventory_sequence": 1,
            "signals": [{"target": "node", "name": "cpu_busy", "at_monotonic_ms": 1000, "value": 0.5}],
            "conditions": [{"target": "node", "name": "disk_full", "open": True, "evidence": "text"}],
        },
    }


def _bodies_of_scheduler_and_billing(world: World) -> dict[str, dict[str, Any]]:
    ids = world.ids
    held = world.allocation or {"allocation_id": "alloc_01m8mrpz00000000000000000z", "epoch": 1}
    names = {"allocation_id": held["allocation_id"], "epoch": held["epoch"]}
    report = {"sequence": 3, "kind": "active", "boot_id": "boot-1", "at_monotonic_ms": 1000, "message": "text"}
    return {
        "POST /v1/jobs": job_of(world) if "virtual_pool_id" in ids else {},
        "POST /v1/work/poll": {
            "boot_id": "boot-1",
            "sent_monotonic_ms": 1000,
            "held": [names] if world.allocation else [],
            "wait_seconds": 0.0,
        },
        "POST /v1/work/reports": {"boot_id": "boot-1", "sent_monotonic_ms": 1000, "reports": [{**names, **report}]},
        "POST /v1/work/logs": {
            **names,
            "offset": 0,
            "data_base64": base64.b64encode(b"step 1\n").decode(),
            "ended": False,
            "cut": False,
        },
        "POST /v1/price-books": {
            "currency": "CNY",
            "minimum_seconds": 60,
            "lines": [{"sku": "device/*/on_demand", "per_hour": "3.6"}],
            "tenant_id": ids.get("tenant_id"),
            "note": "text",
        },
        "POST /v1/exports": {"tenant_id": ids.get("tenant_id"), "format": "csv"},
    }
