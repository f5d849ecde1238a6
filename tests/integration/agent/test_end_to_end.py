"""The chain with the real services: a machine joins, a job is placed on it, runs as a process, and its end is known."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import structlog

from millpond_node_agent.agent import Agent
from millpond_node_agent.observability import configure_logging
from millpond_node_agent.settings import AgentSettings
from tests.fakes.control_plane import serving
from tests.integration.databases import MigratedDatabase
from tests.integration.searching import SECRETS, redis_texts, tables_holding
from tests.integration.services import Caller, Services, run_services
from tests.waiting import eventually

pytestmark = pytest.mark.integration

_POOL_WITHOUT_USERS = {"allow_shared_users": True}


@dataclass(frozen=True, slots=True)
class Chain:
    """Running services, this machine as their node, and a tenant who may use it."""

    operator: Caller
    tenant: Caller
    virtual_pool: str
    agent: "asyncio.Task[Any]"
    url: str

    async def submit(self, script: str, **changes: Any) -> str:
        """A job of one task that runs a shell script; returns its id."""
        run = {"command": ["/bin/sh", "-c", script], **changes.pop("run", {})}
        group = {"name": "main", "resources": {"cpu_milli": 200, "memory_mib": 64}, "run": run, "stop_grace_seconds": 1}
        job = {"name": "job", "virtual_pool": self.virtual_pool, "groups": [group], **changes}
        return str((await self.tenant("POST", "/v1/jobs", job, expect=201)).json()["job_id"])

    async def wait_for(self, job_id: str, *states: str) -> dict[str, Any]:
        """The job once it is in one of the states."""

        async def reached() -> dict[str, Any] | None:
            job: dict[str, Any] = (await self.tenant("GET", f"/v1/jobs/{job_id}", expect=200)).json()
            return job if job["state"] in states else None

        return await eventually(reached, 20)

    async def log_of(self, job_id: str) -> str:
        """The whole log, once it has ended."""

        async def ended() -> str | None:
            page = (await self.tenant("GET", f"/v1/jobs/{job_id}/logs", expect=200)).json()
            return str(page["text"]) if page["ended"] else None

        return await eventually(ended)


@pytest.fixture
async def chain(migrated: MigratedDatabase, place: Path) -> AsyncIterator[Chain]:
    overrides: dict[str, Any] = {"log_folder": place / "logs", "heartbeat_seconds": 1}
    # Quota first: the others ask it for tokens as soon as they start.
    async with run_services(migrated, ("quota", "registry", "scheduler", "billing"), **overrides) as services:
        assert isinstance(services.transport, httpx.ASGITransport)
        async with serving(services.transport.app) as url:
            operator = services.as_key()
            pool = (await operator("POST", "/v1/pools", {"name": "main", **_POOL_WITHOUT_USERS}, expect=201)).json()
            spec = {"pool_id": pool["pool_id"]}
            token = (await operator("POST", "/v1/join-tokens", spec, expect=201)).json()["token"]
            settings = AgentSettings(place / "state", place / "tasks", url, token, stop_tasks=True)
            agent, stop = Agent(settings), asyncio.Event()
            running = asyncio.create_task(agent.run(stop))
            try:
                await eventually(lambda: _is_ready(operator), 20)
                yield await _tenant_chain(services, operator, pool["pool_id"], running, url)
            finally:
                stop.set()
                await asyncio.wait([running])
                await agent.close()


async def _is_ready(operator: Caller) -> bool:
    nodes = (await operator("GET", "/v1/nodes", expect=200)).json()["items"]
    return bool(nodes) and nodes[0]["schedulable"]


async def _tenant_chain(
    services: Services, operator: Caller, pool_id: str, agent: "asyncio.Task[Any]", url: str
) -> Chain:
    tenant = (await operator("POST", "/v1/tenants", {"name": "acme"}, expect=201)).json()["tenant_id"]
    key_spec = {"name": "member", "role": "member", "tenant_id": tenant}
    key = (await operator("POST", "/v1/api-keys", key_spec, expect=201)).json()["secret"]
    share = {"name": "share", "tenant_id": tenant, "pool_id": pool_id}
    limits = {"cpu": {"guaranteed": 1000}, "memory": {"guaranteed": 512}}

    async def shared() -> str | None:
        # The registry's capacity reaches quota as an event.
        answer = await operator("POST", "/v1/virtual-pools", {**share, "limits": limits})
        return str(answer.json()["virtual_pool_id"]) if answer.status_code == 201 else None

    virtual_pool = await eventually(shared, 20)
    member = services.as_key(key)

    async def known() -> bool:
        return (await member("GET", f"/v1/queues/{virtual_pool}")).status_code == 200

    await eventually(known)
    return Chain(operator, member, virtual_pool, agent, url)


async def test_job_when_submitted_then_it_runs_here_and_succeeds_with_its_log(chain: Chain) -> None:
    job_id = await chain.submit("echo hello; sleep 1; echo $MILLPOND_JOB_ID")
    job = await chain.wait_for(job_id, "succeeded", "failed")

    assert job["state"] == "succeeded"
    assert await chain.log_of(job_id) == f"hello\n{job_id}\n"
    allocation = job["tasks"][0]["allocation"]
    assert (allocation["state"], allocation["reason"], allocation["exit_code"]) == ("released", "completed", 0)
    assert allocation["bound_at"] < allocation["active_at"] < allocation["released_at"]


async def test_job_when_it_fails_or_is_cancelled_then_that_is_its_end(chain: Chain) -> None:
    fails = await chain.submit("exit 3")
    stays = await chain.submit("sleep 60")
    failed = await chain.wait_for(fails, "failed")
    await chain.wait_for(stays, "running")
    await chain.tenant("POST", f"/v1/jobs/{stays}/cancel")
    cancelled = await chain.wait_for(stays, "cancelled")

    assert (failed["tasks"][0]["reason"], failed["tasks"][0]["exit_code"]) == ("exit_code", 3)
    assert cancelled["tasks"][0]["allocation"]["reason"] == "cancelled"
    assert not chain.agent.done()


ARGUMENT_CANARY, VALUE_CANARY = "canary-in-an-argument", "canary-in-a-variable"


async def _watch(url: str, caller: Caller, service: str, heard: list[str]) -> None:
    """Keeps what an open watch sends."""
    headers = {"Authorization": f"Bearer {caller.credentials}"}
    async with (
        httpx.AsyncClient(base_url=url, timeout=None) as http,
        http.stream("GET", f"/v1/events/{service}?after=0", headers=headers) as answer,
    ):
        async for line in answer.aiter_lines():
            heard.append(line)


async def _stranger(chain: Chain) -> Caller:
    """The administrator of a tenant that has nothing."""
    tenant = (await chain.operator("POST", "/v1/tenants", {"name": "stranger"}, expect=201)).json()["tenant_id"]
    spec = {"name": "admin", "role": "tenant_admin", "tenant_id": tenant}
    key = (await chain.operator("POST", "/v1/api-keys", spec, expect=201)).json()["secret"]
    return Caller(chain.operator.http, key)


async def _fail_in_every_way(chain: Chain) -> list[str]:
    """Jobs whose program is missing, that fail, run too long, or can never start; and some that are refused."""
    run = {"env": {"TOKEN": VALUE_CANARY}}
    missing = await chain.submit("", run={**run, "command": [f"/{ARGUMENT_CANARY}", ARGUMENT_CANARY]})
    failing = await chain.submit("", run={**run, "command": ["/bin/sh", "-c", "exit 3", ARGUMENT_CANARY]})
    long = {"run": {**run, "command": ["/bin/sh", "-c", "sleep 60", ARGUMENT_CANARY]}, "time_limit_seconds": 1}
    too_long = await chain.submit("", **long)
    for bad in ({"env": {"MILLPOND_X": VALUE_CANARY}}, {"env": VALUE_CANARY}, {"command": ARGUMENT_CANARY}):
        group = {"resources": {"cpu_milli": 200, "memory_mib": 64}, "run": {"command": [ARGUMENT_CANARY], **bad}}
        job = {"name": "job", "virtual_pool": chain.virtual_pool, "groups": [group]}
        refused = await chain.tenant("POST", "/v1/jobs", job, expect=422)
        assert ARGUMENT_CANARY not in refused.text
        assert VALUE_CANARY not in refused.text
    ended = [await chain.wait_for(job_id, "failed") for job_id in (missing, failing, too_long)]
    assert [job["tasks"][0]["reason"] for job in ended] == ["start_failed", "exit_code", "time_limit"]
    return [missing, failing, too_long]


@pytest.fixture
def logging_given_back() -> Iterator[None]:
    """Ends first, so that nothing logs into what was captured for a test that is over."""
    yield
    structlog.reset_defaults()


async def test_secrets_when_jobs_fail_in_every_way_then_only_their_tenant_reads_them(
    chain: Chain, migrated: MigratedDatabase, capfd: pytest.CaptureFixture[str], logging_given_back: None
) -> None:
    configure_logging("debug")
    stranger, told = await _stranger(chain), {"tenant": list[str](), "stranger": list[str](), "operator": list[str]()}
    callers = {"tenant": chain.tenant, "stranger": stranger, "operator": chain.operator}
    watches = [asyncio.create_task(_watch(chain.url, callers[who], "scheduler", told[who])) for who in callers]
    try:
        jobs = await _fail_in_every_way(chain)
        # Every end has been sent to the tenant; what a stranger's watch would send was sent by then.
        await eventually(lambda: all(sum(job in line for line in told["tenant"]) >= 4 for job in jobs))
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.wait(watches)
    assert [line for line in told["stranger"] if line and not line.startswith(": ")] == []
    owner = await asyncpg.connect(migrated.owner_url)
    try:
        canaries = f"{ARGUMENT_CANARY}|{VALUE_CANARY}"
        assert await tables_holding(owner, canaries) == {"scheduler.job"}
        assert await tables_holding(owner, SECRETS.pattern) == set()
    finally:
        await owner.close()
    texts = [text async for _, text in redis_texts(migrated.redis_url, migrated.redis_prefix)]
    logs = capfd.readouterr().err
    assert "task_ended" in logs
    hidden = re.compile(f"{canaries}|{SECRETS.pattern}", re.ASCII)
    for where, found in {
        "logs": logs.splitlines(),
        "redis": texts,
        "watches": [*told["tenant"], *told["stranger"], *told["operator"]],
    }.items():
        assert [line for line in found if hidden.search(line)] == [], where
