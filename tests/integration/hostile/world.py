"""Two tenants with one object of every kind, credentials of every role, and right bodies for every route with one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import unquote
from uuid import uuid4

import asyncpg
import httpx

from millpond_contracts.bodies.tenants import Role
from tests.factories.registry import Agent
from tests.integration.hostile.routes import Route
from tests.integration.services import Services

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
WHERE c.relkind IN ('r', 'p') AND n.nspname IN ('quota', 'registry', 'scheduler', 'billing', 'autoscaler') ORDER BY 1, 2
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
