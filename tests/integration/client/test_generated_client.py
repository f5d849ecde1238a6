"""A client that a generator from PyPI makes of openapi/portal.json works: a tenant's day with no line of ours."""

import asyncio
import importlib
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.architecture.tree import ROOT
from tests.integration.client.served import Served
from tests.waiting import eventually

pytestmark = pytest.mark.integration

PACKAGE = "millpond_portal"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The generated package, ready to be imported; the generator had nothing to warn of."""
    folder = tmp_path_factory.mktemp("generated")
    config = folder / "config.json"
    config.write_text(json.dumps({"package_name_override": PACKAGE, "post_hooks": []}), encoding="utf-8")
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none", "--fail-on-warning"]
    paths = ["--path", ROOT / "openapi" / "portal.json", "--output-path", folder / PACKAGE, "--config", config]
    ran = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    sys.path.insert(0, str(folder))
    return PACKAGE


def load(name: str) -> Any:
    """A module of the generated package."""
    return importlib.import_module(f"{PACKAGE}.{name}")


async def test_portal_client_when_generated_then_it_submits_finds_and_ends_a_job(
    served: Served, generated: str
) -> None:
    async with load("client").AuthenticatedClient(base_url=served.url, token=await served.make_tenant()) as client:
        await _day(client)


async def _day(client: Any) -> None:
    me = await load("api.keys.who_am_i").asyncio(client=client)
    assert (me.role.value, me.tenant_name) == ("tenant_admin", "acme")
    shares = await load("api.virtual_pools.list_virtual_pools").asyncio(client=client)
    spec = {
        "name": "from-the-portal",
        "virtual_pool": shares.items[0].virtual_pool_id,
        "labels": {"team": "web"},
        "groups": [{"resources": {"cpu_milli": 1000, "memory_mib": 512}, "run": {"command": ["true"]}}],
    }
    body = load("models").JobSpec.from_dict(spec)
    submit = load("api.jobs.submit_job").asyncio_detailed

    async def submitted() -> Any:
        answer = await submit(client=client, body=body, idempotency_key="portal-1")
        return answer.parsed if answer.status_code == 201 else None

    job = await eventually(submitted)
    assert (job.name, job.state.value, job.labels.to_dict()) == ("from-the-portal", "pending", {"team": "web"})
    again = await submit(client=client, body=body, idempotency_key="portal-1")
    assert again.parsed.job_id == job.job_id

    listed = await load("api.jobs.list_jobs").asyncio(client=client, label=["team=web"], since=job.created_at)
    assert [each.job_id for each in listed.items] == [job.job_id]
    detail = await load("api.jobs.get_job").asyncio(job.job_id, client=client)
    assert detail.spec.groups[0].run.command == ["true"]
    usage = await load("api.usage.list_usage").asyncio(client=client)
    assert {line.resource for line in usage.items} == {"cpu", "memory"}

    cancel = load("api.jobs.cancel_job").asyncio
    assert (await cancel(job.job_id, client=client)).state.value == "cancelled"
    refused = await cancel(job.job_id, client=client)
    assert (type(refused).__name__, refused.code) == ("Problem", "scheduler.job.ended")


def test_portal_document_when_read_then_it_holds_what_tenants_may_call_and_nothing_else(generated: str) -> None:
    document = json.loads((ROOT / "openapi" / "portal.json").read_text(encoding="utf-8"))
    assert {"/v1/jobs", "/v1/me", "/v1/tokens", "/v1/usage"} <= set(document["paths"])
    assert [path for path in document["paths"] if path.startswith(("/v1/nodes", "/v1/agent", "/v1/work"))] == []
    assert "post" not in document["paths"]["/v1/tenants"]
    assert asyncio.iscoroutinefunction(load("api.jobs.submit_job").asyncio)
