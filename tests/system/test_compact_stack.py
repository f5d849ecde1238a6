"""`millpond up` in its compact form: from nothing to a bill, down without a trace, and up again without a loss."""

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from millpond.stack.ephemeral import EphemeralEngines
from tests.integration.databases import create, with_database
from tests.system.checker import assert_sound
from tests.system.client import (
    History,
    Tenant,
    job_body,
    make_tenant,
    open_caller,
    publish_prices,
    read_log,
    submit,
    wait_for_job,
)
from tests.system.stack import Stack

pytestmark = pytest.mark.system


@pytest.fixture
def on_given_engines() -> Iterator[Stack]:
    """A compact stack on a PostgreSQL and a Redis that run already."""
    with EphemeralEngines() as engines:
        name = f"mp_given_{uuid.uuid4().hex[:8]}"
        asyncio.run(create(engines.postgres_url, name))
        stack = Stack.make(split=False)
        url = with_database(engines.postgres_url, name)
        stack.more_arguments = ("--database-url", url, "--redis-url", engines.redis_url)
        try:
            stack.start()
            yield stack
        finally:
            stack.close()


async def test_stack_when_given_its_engines_then_starts_none_and_works_on_them(on_given_engines: Stack) -> None:
    history = History()
    assert not {"postgres", "valkey"} & on_given_engines.processes().keys()
    async with open_caller(on_given_engines.url, on_given_engines.operator_key) as operator:
        tenant = await make_tenant(operator, "guest")
        job_id = await submit(tenant, history, job_body(tenant.virtual_pool, "visit", ("/bin/true",)))
        assert (await wait_for_job(tenant, job_id))["state"] == "succeeded"
        await assert_sound(on_given_engines, operator, history)


async def _statement(tenant: Tenant) -> Any:
    return (await tenant.caller("GET", "/v1/statements/current", expect=200)).json()


async def test_stack_when_started_stopped_and_started_again_then_nothing_is_lost_or_left(compact: Stack) -> None:
    history = History()
    async with open_caller(compact.url, compact.operator_key) as operator:
        (node,) = await operator.items("/v1/nodes")
        assert node["schedulable"]
        await publish_prices(operator)
        tenant = await make_tenant(operator, "acme")
        command = ("/bin/sh", "-c", "echo the answer is 42; sleep 2")
        job_id = await submit(tenant, history, job_body(tenant.virtual_pool, "first", command))
        job = await wait_for_job(tenant, job_id)
        assert (job["state"], job["reason"]) == ("succeeded", "completed")
        assert await read_log(tenant, job_id) == "the answer is 42\n"

        await assert_sound(compact, operator, history)
        statement = await _statement(tenant)
        assert float(statement["total"]["amount"]) > 0

    second = compact.command(*compact.up_arguments())
    assert second.returncode == 1
    assert f"pid {compact.pid('http')}" in second.stderr
    assert str(compact.paths.secrets / "operator.key") in second.stderr

    stopped = compact.command("down", "--data-dir", str(compact.paths.folder))
    assert stopped.returncode == 0, stopped.stderr
    assert compact.wait_for_end() == 0
    assert compact.left_over() == {}

    compact.start()
    async with open_caller(compact.url, compact.operator_key) as operator:
        (again,) = await operator.items("/v1/nodes")
        assert again["node_id"] == node["node_id"]
        tenant = Tenant(tenant.tenant_id, tenant.virtual_pool, type(tenant.caller)(operator.http, tenant.caller.key))
        kept = await wait_for_job(tenant, job_id)
        assert kept["state"] == "succeeded"
        assert await read_log(tenant, job_id) == "the answer is 42\n"
        assert (await _statement(tenant))["total"] == statement["total"]
        job_id = await submit(tenant, history, job_body(tenant.virtual_pool, "second", ("/bin/true",)))
        assert (await wait_for_job(tenant, job_id))["state"] == "succeeded"
        await assert_sound(compact, operator, history)
