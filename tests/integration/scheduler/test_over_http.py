"""The scheduler's routes as tenants, operators and agents use them, with registry and quota beside it."""

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.factories.registry import Agent, gpu, inventory
from tests.integration.databases import MigratedDatabase
from tests.integration.services import Caller, Services, run_services
from tests.waiting import eventually

pytestmark = pytest.mark.integration

FLAVOR = "nvidia-a100-sxm4-80gb"
SECRET = "s3cr3t-value-of-the-environment"


@dataclass(slots=True)
class Town:
    """Running services with one node, one tenant and its share."""

    services: Services
    operator: Caller
    member: Caller
    agent: Agent
    tenant_id: str
    virtual_pool_id: str
    pool_id: str
    clock_ms: int = 1_000_000
    sequence: int = 0

    def job(self, **changes: Any) -> dict[str, Any]:
        group = {
            "resources": {"cpu_milli": 1000, "memory_mib": 1024, "devices": changes.pop("devices", [])},
            "run": {"command": ["python", SECRET], "env": {"TOKEN": SECRET}},
        }
        return {"name": "train", "virtual_pool": self.virtual_pool_id, "groups": [group], **changes}

    async def submit(self, **changes: Any) -> dict[str, Any]:
        return dict((await self.member("POST", "/v1/jobs", self.job(**changes), expect=201)).json())

    async def poll(self, wait_seconds: float = 5, held: list[Any] | None = None, expect: int = 200) -> dict[str, Any]:
        self.clock_ms += 10
        body = {
            "boot_id": "boot-1",
            "sent_monotonic_ms": self.clock_ms,
            "held": [{"allocation_id": item["allocation_id"], "epoch": item["epoch"]} for item in held or []],
            "wait_seconds": wait_seconds,
        }
        return dict((await self.agent.send("POST", "/v1/work/poll", body, expect=expect)).json())

    async def report(self, task: dict[str, Any], *kinds: str, **changes: Any) -> dict[str, Any]:
        reports = []
        for kind in kinds:
            self.sequence += 1
            reports.append(
                {
                    "allocation_id": task["allocation_id"],
                    "epoch": task["epoch"],
                    "sequence": self.sequence,
                    "kind": kind,
                    "boot_id": "boot-1",
                    "at_monotonic_ms": self.clock_ms,
                    **changes,
                }
            )
        body = {"boot_id": "boot-1", "sent_monotonic_ms": self.clock_ms, "reports": reports}
        return dict((await self.agent.send("POST", "/v1/work/reports", body, expect=200)).json())

    async def get(self, path: str) -> Any:
        return (await self.member("GET", path, expect=200)).json()


@pytest.fixture
async def town(migrated: MigratedDatabase, tmp_path: Path) -> AsyncIterator[Town]:
    names = ("quota", "registry", "scheduler")  # quota first: the others follow its events from their start
    async with run_services(migrated, names, log_folder=tmp_path, verdict_seconds=0.1) as services:
        operator = services.as_key()
        agent = Agent(services.http)
        token = (await operator("POST", "/v1/join-tokens", {}, expect=201)).json()["token"]
        machine = inventory([gpu(0), gpu(1)])
        joined = await agent.join(token, machine)
        await agent.open_session()
        await agent.push(machine)
        await agent.ready()
        tenant = (await operator("POST", "/v1/tenants", {"name": "acme"}, expect=201)).json()
        key = {"name": "k", "role": "member", "tenant_id": tenant["tenant_id"]}
        secret = (await operator("POST", "/v1/api-keys", key, expect=201)).json()["secret"]
        share = await make_share(operator, tenant["tenant_id"], joined["pool_id"])
        made = Town(services, operator, services.as_key(secret), agent, tenant["tenant_id"], share, joined["pool_id"])
        await eventually(lambda: knows(made, share))
        yield made


async def make_share(operator: Caller, tenant: str, pool: str) -> str:
    """A virtual pool; quota must first have heard of the pool's capacity."""
    limits = {
        "cpu": {"guaranteed": 4000, "borrow": 4000},
        "memory": {"guaranteed": 8192, "borrow": 8192},
        "devices": {FLAVOR: {"guaranteed": 2000}},
    }
    spec = {"name": "share", "tenant_id": tenant, "pool_id": pool, "limits": limits}

    async def create() -> Any:
        response = await operator("POST", "/v1/virtual-pools", spec)
        return response.json() if response.status_code == 201 else None

    return str((await eventually(create))["virtual_pool_id"])


async def knows(town: Town, share: str) -> bool:
    """Whether the scheduler has heard of the share, and so may be asked of it."""
    queue = await town.member("GET", f"/v1/queues/{share}")
    return queue.status_code == 200


async def test_job_when_run_by_an_agent_over_http_then_every_answer_follows(town: Town) -> None:
    await town.poll(0)
    polling = asyncio.create_task(town.poll(20))
    job = await town.submit(devices=[{"count": 1}], labels={"team": "vision"})
    assert (job["state"], job["generation"]) == ("pending", 1)
    task = (await polling)["assignments"][0]  # the doorbell woke the waiting poll
    assert (task["job_id"], task["command"], task["env"]) == (job["job_id"], ["python", SECRET], {"TOKEN": SECRET})
    assert task["devices"][0]["identity"].startswith("nvidia/GPU-")
    await town.report(task, "starting", "active")
    usage = {line["resource"]: line["used"] for line in (await town.get("/v1/usage"))["items"]}
    assert usage == {"cpu": 1000, "memory": 1024, "device": 1000}
    log = {"allocation_id": task["allocation_id"], "epoch": task["epoch"], "offset": 0}
    text = base64.b64encode(b"step 1\n").decode()
    answer = await town.agent.send("POST", "/v1/work/logs", {**log, "data_base64": text, "ended": True}, expect=200)
    assert answer.json() == {"next_offset": 7}
    page = await town.get(f"/v1/jobs/{job['job_id']}/logs")
    assert (page["text"], page["ended"]) == ("step 1\n", True)
    followed = await town.member("GET", f"/v1/jobs/{job['job_id']}/logs?follow=true", expect=200)
    assert followed.text == "step 1\n"
    await town.report(task, "released", exit_code=0)
    detail = await town.get(f"/v1/jobs/{job['job_id']}")
    assert (detail["state"], detail["spec"]["groups"][0]["run"]["env"]) == ("succeeded", {"TOKEN": SECRET})
    assert detail["tasks"][0]["allocation"]["reason"] == "completed"
    assert (await town.get(f"/v1/tasks/{task['task_id']}"))["state"] == "succeeded"
    allocation = await town.get(f"/v1/allocations/{task['allocation_id']}")
    assert (allocation["state"], allocation["labels"]) == ("released", {"team": "vision"})
    found = await town.get(f"/v1/jobs?state=succeeded&label=team=vision&virtual_pool={town.virtual_pool_id}")
    assert [item["job_id"] for item in found["items"]] == [job["job_id"]]
    assert (await town.get("/v1/jobs?label=team=other"))["items"] == []
    as_operator = (await town.operator("GET", f"/v1/jobs/{job['job_id']}", expect=200)).text
    assert SECRET not in as_operator


async def test_submit_when_repeated_with_its_key_then_one_job(town: Town) -> None:
    headers = {"Idempotency-Key": "one"}
    answers = await asyncio.gather(*(town.member("POST", "/v1/jobs", town.job(), headers=headers) for _ in range(8)))
    statuses = {answer.status_code for answer in answers}
    assert statuses <= {201, 409}
    ids = {answer.json()["job_id"] for answer in answers if answer.status_code == 201}
    assert len(ids) == 1
    again = await town.member("POST", "/v1/jobs", town.job(), headers=headers, expect=201)
    assert (again.json()["job_id"], again.headers["idempotency-replayed"]) == (ids.pop(), "true")
    other = await town.member("POST", "/v1/jobs", town.job(priority=1), headers=headers)
    assert (other.status_code, other.json()["code"]) == (422, "kernel.idempotency_key.reused")
    assert len((await town.get("/v1/jobs"))["items"]) == 1


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"surprise": 1}, 422, "kernel.body.invalid"),
        ({"priority": -1}, 422, "kernel.body.invalid"),
        ({"priority": 2**62}, 422, "kernel.body.invalid"),
        ({"groups": []}, 422, "kernel.body.invalid"),
        ({"virtual_pool": "vpool_01m8mrpz00000000000000000z"}, 404, "scheduler.virtual_pool.unknown"),
        ({"virtual_pool": "nonsense"}, 422, "kernel.body.invalid"),
        ({"project_id": "proj_01m8mrpz00000000000000000z"}, 404, "quota.project.not_found"),
        ({"devices": [{"milli": 0}]}, 422, "kernel.body.invalid"),
        ({"devices": [{"milli": 500, "count": 2}]}, 422, "kernel.body.invalid"),
    ],
)
async def test_submit_when_the_body_is_bad_then_a_clear_problem_and_no_job(
    town: Town, change: dict[str, Any], status: int, code: str
) -> None:
    response = await town.member("POST", "/v1/jobs", town.job(**change))
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert (await town.get("/v1/jobs"))["items"] == []


@pytest.mark.parametrize(
    ("resources", "pointer"),
    [
        ({"devices": [{"count": -1}]}, "/groups/0/resources/devices/0/count"),
        ({"devices": [{"count": 2**62}]}, "/groups/0/resources/devices/0/count"),
        ({"devices": [{"milli": -1000}]}, "/groups/0/resources/devices/0/milli"),
        ({"devices": [{"memory_mib": 2**63}]}, "/groups/0/resources/devices/0/memory_mib"),
        ({"memory_mib": 9e30}, "/groups/0/resources/memory_mib"),
        ({"memory_mib": 1024.5}, "/groups/0/resources/memory_mib"),
        ({"cpu_milli": 2**62}, "/groups/0/resources/cpu_milli"),
        ({"cpu_milli": -1}, "/groups/0/resources/cpu_milli"),
    ],
)
async def test_submit_when_an_amount_is_negative_or_huge_then_422_names_the_field_q4(
    town: Town, resources: dict[str, Any], pointer: str
) -> None:
    body = town.job()
    body["groups"] = [{**body["groups"][0], "resources": {"cpu_milli": 1000, "memory_mib": 1024, **resources}}] * 2
    body["groups"] = [{**group, "name": f"g{place}"} for place, group in enumerate(body["groups"])]
    for path, sent, inside in (("/v1/jobs", body, ""), ("/v1/jobs/batch", {"jobs": [town.job(), body]}, "/jobs/1")):
        response = await town.member("POST", path, sent)
        assert (response.status_code, response.json()["code"]) == (422, "kernel.body.invalid")
        assert f"{inside}{pointer}" in {error["pointer"] for error in response.json()["errors"]}
    assert (await town.get("/v1/jobs"))["items"] == []
    assert all(line["used"] == 0 for line in (await town.get("/v1/usage"))["items"])


async def test_submit_when_the_counts_of_groups_are_huge_together_then_422_q4(town: Town) -> None:
    group = town.job()["groups"][0]
    groups = [{**group, "name": f"g{place}", "count": count} for place, count in enumerate((2**62, 2**62))]
    response = await town.member("POST", "/v1/jobs", {**town.job(), "groups": groups})
    assert {"/groups/0/count", "/groups/1/count"} <= {error["pointer"] for error in response.json()["errors"]}
    many = [{**town.job(), "groups": [{**group, "count": 6000}]} for _ in range(2)]
    response = await town.member("POST", "/v1/jobs/batch", {"jobs": many})
    assert (response.status_code, "at most 10000 tasks" in response.text) == (422, True)
    assert (await town.get("/v1/jobs"))["items"] == []


async def test_objects_when_read_by_another_tenant_then_404(town: Town) -> None:
    job = await town.submit()
    await town.poll(0)
    task = (await town.poll(10))["assignments"][0]
    tenant = (await town.operator("POST", "/v1/tenants", {"name": "other"}, expect=201)).json()
    key = {"name": "k", "role": "member", "tenant_id": tenant["tenant_id"]}
    secret = (await town.operator("POST", "/v1/api-keys", key, expect=201)).json()["secret"]
    other = town.services.as_key(secret)
    paths = [
        ("GET", f"/v1/jobs/{job['job_id']}"),
        ("GET", f"/v1/jobs/{job['job_id']}/explain"),
        ("GET", f"/v1/jobs/{job['job_id']}/tasks"),
        ("GET", f"/v1/jobs/{job['job_id']}/logs"),
        ("POST", f"/v1/jobs/{job['job_id']}/cancel"),
        ("GET", f"/v1/tasks/{task['task_id']}"),
        ("GET", f"/v1/allocations/{task['allocation_id']}"),
        ("GET", f"/v1/queues/{town.virtual_pool_id}"),
    ]
    for method, path in paths:
        assert (await other(method, path)).status_code == 404, path
    for path in ("/v1/jobs", "/v1/allocations", "/v1/usage"):
        assert (await other("GET", path, expect=200)).json()["items"] == []
    response = await other("POST", "/v1/jobs", town.job())
    assert response.json()["code"] == "scheduler.virtual_pool.unknown"


async def test_routes_when_called_with_the_wrong_kind_of_key_then_refused(town: Town) -> None:
    refused = await town.member("POST", "/v1/work/poll", {"boot_id": "b", "sent_monotonic_ms": 1})
    assert refused.status_code == 403
    response = await town.agent.send("GET", "/v1/jobs", None)
    assert response.status_code == 403
    snapshot = await town.member("GET", "/internal/v1/snapshot/scheduler/jobs")
    assert snapshot.status_code in (403, 404)


async def test_cancel_when_the_task_runs_then_the_waiting_poll_brings_the_stop(town: Town) -> None:
    job = await town.submit()
    await town.poll(0)
    task = (await town.poll(10))["assignments"][0]
    await town.report(task, "starting", "active")
    polling = asyncio.create_task(town.poll(20, [task]))
    await asyncio.sleep(0.2)
    assert not polling.done()
    await town.member("POST", f"/v1/jobs/{job['job_id']}/cancel", expect=200)
    stops = (await polling)["stops"]
    assert [(stop["allocation_id"], stop["reason"]) for stop in stops] == [(task["allocation_id"], "cancelled")]
    await town.report(task, "released", exit_code=-15, reason="cancelled")
    assert (await town.get(f"/v1/jobs/{job['job_id']}"))["state"] == "cancelled"
    again = await town.member("POST", f"/v1/jobs/{job['job_id']}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "scheduler.job.ended")


async def test_explain_when_the_limit_blocks_then_the_tenant_reads_why_and_its_place(town: Town) -> None:
    await town.poll(0)
    for _ in range(2):
        await town.submit(devices=[{"count": 1}])
    blocked = await town.submit(devices=[{"count": 1}])

    async def told() -> Any:
        answer = await town.get(f"/v1/jobs/{blocked['job_id']}/explain")
        return answer if answer["dominant"] == "limit_reached" else None

    answer = await eventually(told)
    assert (answer["position"], answer["nodes"]) == (1, 1)
    queue = (await town.get(f"/v1/queues/{town.virtual_pool_id}"))["items"]
    assert [(entry["job_id"], entry["dominant"]) for entry in queue] == [(blocked["job_id"], "limit_reached")]


async def test_drain_when_the_node_is_empty_then_the_registry_hears_of_it(town: Town) -> None:
    await town.poll(0)
    path = f"/v1/nodes/{town.agent.node_id}"
    await town.operator("POST", f"{path}/drain", {"deadline_seconds": 60})

    async def emptied() -> Any:
        return (await town.operator("GET", path, expect=200)).json()["drain"]["emptied_at"]

    assert await eventually(emptied, 15)
