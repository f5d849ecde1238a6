"""What a test says to a stack over HTTP, and the record of it that the checker holds against the database."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

import httpx

from tests.waiting import eventually

T = TypeVar("T")
ENDED = ("succeeded", "failed", "cancelled")
_PAUSE_SECONDS = 0.1


@dataclass(slots=True)
class Submission:
    """One submit as the client saw it: `acknowledged` = the job's id; without one the job may exist, at most once."""

    name: str
    invoked_at: float
    acknowledged: str | None = None
    attempts: int = 0


@dataclass(slots=True)
class History:
    """Every submit of a test."""

    submissions: list[Submission] = field(default_factory=list)

    @property
    def job_ids(self) -> list[str]:
        """The jobs that were acknowledged."""
        return [one.acknowledged for one in self.submissions if one.acknowledged is not None]


@dataclass(frozen=True, slots=True)
class Caller:
    """Requests with one set of credentials."""

    http: httpx.AsyncClient
    key: str

    async def __call__(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        expect: int | None = None,
    ) -> httpx.Response:
        sent = {"Authorization": f"Bearer {self.key}"}
        if method == "POST":
            sent["Idempotency-Key"] = uuid4().hex
        sent.update(headers or {})
        response = await self.http.request(method, path, json=json, headers=sent)
        if expect is not None:
            assert response.status_code == expect, f"{method} {path}: {response.status_code} {response.text}"
        return response

    async def items(self, path: str) -> list[Any]:
        """All items of a list, page by page."""
        found: list[Any] = []
        cursor = None
        while True:
            joiner = "&" if "?" in path else "?"
            page = (await self("GET", path + (f"{joiner}cursor={cursor}" if cursor else ""), expect=200)).json()
            found += page["items"]
            cursor = page.get("next_cursor")
            if not cursor:
                return found

    async def patiently(self, method: str, path: str, json: Any = None, *, seconds: float = 30.0) -> httpx.Response:
        """A request that is repeated with one Idempotency-Key until it is answered below 500, as a client does."""
        headers = {"Idempotency-Key": uuid4().hex} if method == "POST" else {}
        deadline = time.monotonic() + seconds
        while True:
            answer = await self._try(method, path, json, headers)
            if isinstance(answer, httpx.Response) and not _passes(answer):
                return answer
            assert time.monotonic() < deadline, f"{method} {path}: {answer!r} {getattr(answer, 'text', '')}"
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _try(self, method: str, path: str, json: Any, headers: Mapping[str, str]) -> httpx.Response | Exception:
        try:
            return await self(method, path, json, headers=headers)
        except httpx.HTTPError as error:
            return error


def _passes(answer: httpx.Response) -> bool:
    """Whether the answer tells to try again."""
    return answer.status_code >= 500 or (answer.status_code in (409, 429) and "Retry-After" in answer.headers)


@asynccontextmanager
async def open_caller(url: str, key: str) -> AsyncIterator[Caller]:
    """A caller on a connection pool of its own."""
    async with httpx.AsyncClient(base_url=url, timeout=15) as http:
        yield Caller(http, key)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant with a member's key and one virtual pool."""

    tenant_id: str
    virtual_pool: str
    caller: Caller


async def make_tenant(operator: Caller, name: str, *, cpu_milli: int = 1000, memory_mib: int = 4096) -> Tenant:
    """A tenant whose limits the scheduler knows, on the pool that this machine is in."""
    pool = (await operator.items("/v1/pools"))[0]["pool_id"]
    tenant = (await operator.patiently("POST", "/v1/tenants", {"name": name})).json()["tenant_id"]
    limits = {"cpu": {"guaranteed": cpu_milli}, "memory": {"guaranteed": memory_mib}, "devices": {}}
    body = {"name": name, "tenant_id": tenant, "pool_id": pool, "limits": limits}

    async def make_virtual_pool() -> dict[str, Any] | None:
        """Refused for a moment after the start, until quota has heard of the pool and of what it has."""
        made = await operator.patiently("POST", "/v1/virtual-pools", body)
        unheard = {"quota.pool.unknown", "quota.pool.oversubscribed"}
        assert made.status_code == 201 or made.json()["code"] in unheard, made.text
        answer: dict[str, Any] = made.json()
        return answer if made.status_code == 201 else None

    virtual_pool = (await eventually(make_virtual_pool))["virtual_pool_id"]
    key_body = {"name": name, "role": "member", "tenant_id": tenant}
    key = (await operator.patiently("POST", "/v1/api-keys", key_body)).json()["secret"]

    async def is_known() -> bool:
        return bool(await operator.items(f"/v1/usage?virtual_pool={virtual_pool}"))

    await eventually(is_known)
    return Tenant(tenant, virtual_pool, Caller(operator.http, key))


async def publish_prices(operator: Caller, *, minimum_seconds: int = 60) -> None:
    """Public prices high enough for a short job to cost something."""
    lines = [
        {"sku": "cpu/*/on_demand", "per_hour": "3600"},
        {"sku": "memory/*/on_demand", "per_hour": "7.7"},
        {"sku": "device/*/on_demand", "per_hour": "10000"},
    ]
    body = {"currency": "CNY", "minimum_seconds": minimum_seconds, "lines": lines}
    answer = await operator.patiently("POST", "/v1/price-books", body)
    assert answer.status_code == 201, answer.text


async def set_pool(operator: Caller, **changes: Any) -> None:
    """Changes settings of the pool that this machine is in, such as its lease."""
    pool = (await operator.items("/v1/pools"))[0]
    read = await operator("GET", f"/v1/pools/{pool['pool_id']}", expect=200)
    spec = {key: value for key, value in read.json().items() if key not in _POOL_VIEW_ONLY} | changes
    match = {"If-Match": read.headers["ETag"]}
    await operator("PUT", f"/v1/pools/{pool['pool_id']}", spec, headers=match, expect=200)


_POOL_VIEW_ONLY = {"pool_id", "shard", "created_at", "generation"}


def job_body(virtual_pool: str, name: str, command: Sequence[str], **more: Any) -> dict[str, Any]:
    """A job of one group; `cpu_milli`, `memory_mib`, `count`, `image`, `stop_grace_seconds` go into the group."""
    group = {
        "count": more.pop("count", 1),
        "resources": {"cpu_milli": more.pop("cpu_milli", 100), "memory_mib": more.pop("memory_mib", 64)},
        "run": {"command": list(command), "image": more.pop("image", None)},
        "stop_grace_seconds": more.pop("stop_grace_seconds", 2),
    }
    return {"name": name, "virtual_pool": virtual_pool, "groups": [group], **more}


async def submit(tenant: Tenant, history: History, body: dict[str, Any], *, seconds: float = 30.0) -> str:
    """Submits a job as a patient client does and records it."""
    entry = Submission(body["name"], time.monotonic())
    history.submissions.append(entry)
    answer = await tenant.caller.patiently("POST", "/v1/jobs", body, seconds=seconds)
    assert answer.status_code == 201, answer.text
    entry.acknowledged = str(answer.json()["job_id"])
    return entry.acknowledged


async def job_of(tenant: Tenant, job_id: str) -> dict[str, Any]:
    """A job with its tasks."""
    answer: dict[str, Any] = (await tenant.caller.patiently("GET", f"/v1/jobs/{job_id}")).json()
    return answer


async def wait_for_job(tenant: Tenant, job_id: str, *states: str, seconds: float = 30.0) -> dict[str, Any]:
    """Waits until a job is in one of the states; with none given, until it has ended."""
    wanted = states or ENDED
    last: dict[str, Any] = {}

    async def reached() -> dict[str, Any] | None:
        last.update(await job_of(tenant, job_id))
        return last if last["state"] in wanted else None

    try:
        return await eventually(reached, seconds)
    except AssertionError:
        explained = (await tenant.caller("GET", f"/v1/jobs/{job_id}/explain")).text
        raise AssertionError(f"job is {last.get('state')}, expected {wanted}: {last}\n{explained}") from None


async def read_log(tenant: Tenant, job_id: str) -> str:
    """The log of a job's first task once it has ended."""

    async def ended() -> dict[str, Any] | None:
        page: dict[str, Any] = (await tenant.caller.patiently("GET", f"/v1/jobs/{job_id}/logs")).json()
        return page if page["ended"] else None

    return str((await eventually(ended))["text"])
