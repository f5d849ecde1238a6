"""A backup of a stack that runs, and the same stack from it in another folder."""

from typing import Any

import pytest

from tests.system.checker import assert_sound
from tests.system.client import (
    Caller,
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
from tests.waiting import eventually

pytestmark = pytest.mark.system


async def _bill(tenant: Tenant) -> Any:
    """The statement's total and every line that makes it."""
    statement = (await tenant.caller("GET", "/v1/statements/current", expect=200)).json()
    return statement["total"], await tenant.caller.items("/v1/charges")


async def test_stack_when_backed_up_while_it_runs_then_a_new_folder_continues_it(compact: Stack) -> None:
    history, file = History(), compact.base / "kept"
    async with open_caller(compact.url, compact.operator_key) as operator:
        (node,) = await operator.items("/v1/nodes")
        await publish_prices(operator)
        tenant = await make_tenant(operator, "acme")
        job_id = await submit(tenant, history, job_body(tenant.virtual_pool, "first", ("/bin/echo", "kept")))
        assert (await wait_for_job(tenant, job_id))["state"] == "succeeded"
        assert await read_log(tenant, job_id) == "kept\n"

        async def is_billed() -> bool:
            return bool((await _bill(tenant))[1])

        await eventually(is_billed)
        await assert_sound(compact, operator, history)
        bill = await _bill(tenant)

    _succeed(compact, "backup", str(file), "--data-dir", str(compact.paths.folder))
    assert file.stat().st_mode & 0o777 == 0o600
    assert compact.stop() == 0

    compact.folder_name = "restored"
    _succeed(compact, "restore", str(file), "--data-dir", str(compact.paths.folder))
    compact.start()
    async with open_caller(compact.url, compact.operator_key) as operator:
        (again,) = await operator.items("/v1/nodes")
        assert (again["node_id"], again["schedulable"]) == (node["node_id"], True)
        tenant = Tenant(tenant.tenant_id, tenant.virtual_pool, Caller(operator.http, tenant.caller.key))
        assert (await wait_for_job(tenant, job_id))["state"] == "succeeded"
        assert await read_log(tenant, job_id) == "kept\n"
        assert await _bill(tenant) == bill
        second = await submit(tenant, history, job_body(tenant.virtual_pool, "second", ("/bin/true",)))
        assert (await wait_for_job(tenant, second))["state"] == "succeeded"
        await assert_sound(compact, operator, history)


def _succeed(stack: Stack, *command: str) -> None:
    done = stack.command(*command)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
