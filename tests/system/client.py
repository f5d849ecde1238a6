"""What a test says to a stack over HTTP, and the record of it that the checker holds against the database."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar
from uuid import uuid4

import httpx

from tests.waiting import eventually

T = TypeVar("T")
SUBMIT = "job.submit"
ENDED = ("succeeded", "failed", "cancelled")
_PAUSE_SECONDS = 0.1


class Outcome(StrEnum):
    """What a client knows of an operation of its own, as in a Jepsen history."""

    UNKNOWN = "unknown"
    """Invoked, and no answer that settles it: it may have happened, at most once."""
    OK = "ok"
    FAIL = "fail"
    """Refused: it did not happen."""


@dataclass(slots=True)
class Operation:
    """One operation of a client, asked for as often as it takes under one request id and idempotency key.

    Attributes:
        action: What the audit calls it, such as `job.submit`.
        name: The client's own name for what it makes or changes.
        invoked_at: On the monotonic clock, as `ended_at`.
        acknowledged: The id that the answer named.
        refusals: Answers of 500 and above that were not 503 with a Retry-After: those a client cannot act upon.
        at_least: How many audit rows an acknowledged one has left at least; 0 = it may have found nothing to change.
    """

    action: str
    name: str
    invoked_at: float
    outcome: Outcome = Outcome.UNKNOWN
    acknowledged: str | None = None
    ended_at: float | None = None
    attempts: int = 0
    refusals: list[str] = field(default_factory=list)
    at_least: int = 1
    request_id: str = field(default_factory=lambda: uuid4().hex)

    def settle(self, outcome: Outcome) -> None:
        """Notes how it ended."""
        self.outcome, self.ended_at = outcome, time.monotonic()


@dataclass(slots=True)
class History:
    """Every operation of a test that changes something, in the order in which they were invoked."""

    operations: list[Operation] = field(default_factory=list)

    def invoke(self, action: str, name: str, *, at_least: int = 1) -> Operation:
        """Records that an operation is asked for now."""
        operation = Operation(action, name, time.monotonic(), at_least=at_least)
        self.operations.append(operation)
        return operation

    @property
    def submissions(self) -> list[Operation]:
        """Every submit."""
        return [one for one in self.operations if one.action == SUBMIT]

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

    async def perform(
        self,
        operation: Operation,
        method: str,
        path: str,
        json: Any = None,
        *,
        if_match: str | None = None,
        is_keyed: bool = True,
        seconds: float = 30.0,
    ) -> httpx.Response | None:
        """Asks for an operation of the history until it is settled or time is up; the answer that settled it.

        Args:
            if_match: The tag of what is changed; such a request is sent once, since a repeat tells nothing.
            is_keyed: Whether a repeat of a POST is answered as the first one was.
        """
        headers = {"X-Request-Id": operation.request_id, "Idempotency-Key": operation.request_id}
        headers |= {"If-Match": if_match} if if_match is not None else {}
        may_have_happened, deadline = False, time.monotonic() + seconds
        while True:
            operation.attempts += 1
            answer = await self._try(method, path, json, headers)
            if isinstance(answer, httpx.Response) and not _passes(answer):
                if answer.is_success:
                    operation.settle(Outcome.OK)
                elif is_keyed or not may_have_happened:
                    operation.settle(Outcome.FAIL)
                return answer
            if isinstance(answer, httpx.Response) and answer.status_code >= 500 and not _is_away(answer):
                operation.refusals.append(f"{answer.status_code} {answer.text[:300]}")
            may_have_happened = may_have_happened or not isinstance(answer, httpx.Response) or answer.status_code >= 500
            if if_match is not None or time.monotonic() > deadline:
                return None
            await asyncio.sleep(_PAUSE_SECONDS)

    async def attempt(self, method: str, path: str) -> httpx.Response | None:
        """One request; None when it was not answered."""
        answer = await self._try(method, path, None, {})
        return answer if isinstance(answer, httpx.Response) else None

    async def _try(self, method: str, path: str, json: Any, headers: Mapping[str, str]) -> httpx.Response | Exception:
        try:
            return await self(method, path, json, headers=headers)
        except httpx.HTTPError as error:
            return error


def _passes(answer: httpx.Response) -> bool:
    """Whether the answer tells to try again."""
    return answer.status_code >= 500 or (answer.status_code in (409, 429) and "Retry-After" in answer.headers)


def _is_away(answer: httpx.Response) -> bool:
    """Whether the answer says that something is away and when to try again."""
    return answer.status_code == 503 and "Retry-After" in answer.headers


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


async def make_tenant(
    operator: Caller, name: str, *, cpu_milli: int = 1000, memory_mib: int = 4096, pool_id: str | None = None
) -> Tenant:
    """A tenant whose limits the scheduler knows, on a pool; by default on the one that this machine is in."""
    pool = pool_id or (await operator.items("/v1/pools"))[0]["pool_id"]
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
    entry = history.invoke(SUBMIT, body["name"])
    answer = await tenant.caller.perform(entry, "POST", "/v1/jobs", body, seconds=seconds)
    assert answer is not None, f"job {entry.name} was not answered in {entry.attempts} attempts"
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
