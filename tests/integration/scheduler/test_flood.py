"""Peers' case U1: hundreds of submits at once; and U5: a client that sends again because it has heard nothing."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.databases import MigratedDatabase
from tests.integration.services import Caller, Services, run_services
from tests.waiting import eventually

pytestmark = pytest.mark.integration

SUBMITS = 500


@dataclass(frozen=True, slots=True)
class Portal:
    """Services with few connections and a short queue of writes, and a tenant's member."""

    services: Services
    member: Caller
    virtual_pool_id: str

    def job(self, name: str) -> dict[str, Any]:
        group = {"resources": {"cpu_milli": 1000, "memory_mib": 512}, "run": {"command": ["true"]}}
        return {"name": name, "virtual_pool": self.virtual_pool_id, "groups": [group]}

    async def submit(self, name: str, key: str) -> httpx.Response:
        return await self.member("POST", "/v1/jobs", self.job(name), headers={"Idempotency-Key": key})


@pytest.fixture
async def portal(migrated: MigratedDatabase, tmp_path: Path) -> AsyncIterator[Portal]:
    names = ("quota", "registry", "scheduler")
    async with run_services(migrated, names, log_folder=tmp_path, database_pool_size=4, writes_waiting=100) as services:
        operator = services.as_key()
        pool = (await operator("POST", "/v1/pools", {"name": "empty"}, expect=201)).json()["pool_id"]
        tenant = (await operator("POST", "/v1/tenants", {"name": "acme"}, expect=201)).json()["tenant_id"]
        key = {"name": "portal", "role": "member", "tenant_id": tenant}
        secret = (await operator("POST", "/v1/api-keys", key, expect=201)).json()["secret"]
        member = services.as_key(secret)
        limits = {"cpu": {"borrow": 4000}, "memory": {"borrow": 8192}}
        spec = {"name": "share", "tenant_id": tenant, "pool_id": pool, "limits": limits}

        async def share() -> Any:
            answer = await operator("POST", "/v1/virtual-pools", spec)
            return answer.json() if answer.status_code == 201 else None

        made = Portal(services, member, (await eventually(share))["virtual_pool_id"])

        async def known() -> bool:
            return (await member("GET", f"/v1/queues/{made.virtual_pool_id}")).status_code == 200

        await eventually(known)
        yield made


async def test_u1_submits_when_500_come_at_once_then_reads_are_answered_and_no_job_is_lost(portal: Portal) -> None:
    first = (await portal.submit("first", "first")).json()["job_id"]
    flood = [asyncio.create_task(portal.submit(f"job-{n}", f"key-{n}")) for n in range(SUBMITS)]
    reads = Counter[int]()
    while not all(task.done() for task in flood):
        for path in (f"/v1/jobs/{first}", "/v1/jobs?limit=5", "/readyz/scheduler"):
            answer = await portal.member("GET", path)
            reads[answer.status_code] += 1
    answers = [task.result() for task in flood]
    statuses = Counter(answer.status_code for answer in answers)
    assert (set(reads), reads[200] >= 3) == ({200}, True)
    # The queue of writes is short here, so some are told to come again; nobody is told anything else.
    assert (set(statuses), statuses[429] > 0) == ({201, 429}, True), statuses
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {(each.json()["code"], each.headers["retry-after"]) for each in refused} == {("kernel.rate.limited", "1")}
    for number, answer in enumerate(answers):
        if answer.status_code == 429:
            await eventually(lambda number=number: _submitted(portal, number))  # type: ignore[misc]  # a default binds
    names = [job["name"] for job in await _all_jobs(portal)]
    assert sorted(names) == sorted(["first", *(f"job-{n}" for n in range(SUBMITS))])


async def _submitted(portal: Portal, number: int) -> bool:
    return (await portal.submit(f"job-{number}", f"key-{number}")).status_code == 201


async def _all_jobs(portal: Portal) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = (await portal.member("GET", f"/v1/jobs?limit=200{cursor}", expect=200)).json()
        jobs += page["items"]
        if page["next_cursor"] is None:
            return jobs
        cursor = f"&cursor={page['next_cursor']}"


async def test_u5_submit_when_sent_again_then_the_same_job_its_etag_and_one_event(portal: Portal) -> None:
    # Both are on their way at once, as when a client gave up waiting and sent it again.
    answers = await asyncio.gather(*(portal.submit("once", "the-same-key") for _ in range(5)))
    ids = {answer.json()["job_id"] for answer in answers}
    assert ({answer.status_code for answer in answers}, len(ids)) == ({201}, 1)
    (job,) = ids
    again = await portal.submit("once", "the-same-key")
    assert (again.json()["job_id"], again.headers["idempotency-replayed"]) == (job, "true")

    read = await portal.member("GET", f"/v1/jobs/{job}", expect=200)
    assert read.headers["etag"] == f'"{read.json()["generation"]}"'

    async def events(after: int) -> list[tuple[int, str]]:
        text = (await portal.member("GET", f"/v1/events/scheduler?after={after}&follow=false", expect=200)).text
        lines = [line for line in text.splitlines() if line.startswith(("id: ", "event: "))]
        pairs = zip(lines[::2], lines[1::2], strict=True)
        return [(int(number.removeprefix("id: ")), kind.removeprefix("event: ")) for number, kind in pairs]

    async def submitted() -> list[tuple[int, str]]:
        return [event for event in await events(0) if event[1] == "scheduler.job_submitted.v1"]

    ((seq, _),) = await eventually(submitted)
    # Whoever has seen the event resumes behind it.
    assert seq not in [number for number, _ in await events(seq)]
    resumed = await portal.services.http.get(
        "/v1/events/scheduler?follow=false",
        headers={"Authorization": f"Bearer {portal.member.credentials}", "Last-Event-ID": str(seq - 1)},
    )
    assert f"id: {seq}\n" in resumed.text
