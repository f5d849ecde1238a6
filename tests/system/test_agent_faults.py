"""A real agent that is killed or stands still while real tasks run: the tasks go on, or end by the lease's fence."""

import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.checker import assert_sound
from tests.system.client import (
    History,
    job_body,
    job_of,
    make_tenant,
    open_caller,
    publish_prices,
    set_pool,
    submit,
    wait_for_job,
)
from tests.system.load import WITNESSED, Load, attempts_of
from tests.system.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.system


async def test_agent_when_killed_again_and_again_then_jobs_go_on_and_are_billed_without_a_gap(
    shared_compact: Stack,
) -> None:
    async with open_caller(shared_compact.url, shared_compact.operator_key) as operator:
        await publish_prices(operator, minimum_seconds=0)
        tenant = await make_tenant(operator, "adopted", cpu_milli=300)
        load = Load("adopted", shared_compact, tenant, random.Random(1), (8, 8), 3)
        for _ in range(3):
            await load.submit_one()
        await load.wait_until_running(3)
        for _ in range(3):
            old = shared_compact.signal("agent", signal.SIGKILL)
            await shared_compact.wait_until_back("agent", old)
        states = await load.wait_for_ends()
        assert set(states.values()) == {"succeeded"}
        load.assert_witnessed(states)
        for job_id in load.history.job_ids:
            assert await attempts_of(tenant, job_id) == 1
            charges = await operator.items(f"/v1/charges?tenant_id={tenant.tenant_id}&job_id={job_id}&limit=200")
            billed = [one["seconds"] for one in charges if (one["sku"], one["kind"]) == ("cpu/*/on_demand", "usage")]
            assert 8 <= sum(billed) <= 10
        await assert_sound(shared_compact, operator, load.history)


@pytest.fixture
def without_node() -> Iterator[Stack]:
    """A compact stack that no machine has joined."""
    stack = Stack.make(split=False)
    try:
        stack.start(join=False)
        yield stack
    finally:
        stack.close()


async def test_n8_agent_when_it_stands_still_beyond_its_lease_then_its_tasks_end_and_none_runs_twice(
    without_node: Stack,
) -> None:
    history = History()
    async with open_caller(without_node.url, without_node.operator_key) as operator:
        await set_pool(operator, unreachable_after_seconds=3, lease_seconds=6, stop_grace_seconds=1)
        # Before the agent joins: a lease that was granted is never shortened.
        token = await operator("POST", "/v1/join-tokens", {"max_uses": 1}, expect=201)
        agent = without_node.start_agent(token.json()["token"])
        tenant = await make_tenant(operator, "fenced", cpu_milli=300)

        def body(name: str, seconds: int, **more: Any) -> dict[str, Any]:
            command = ("/bin/sh", "-c", WITNESSED, str(without_node.witnesses), name, str(seconds))
            return job_body(tenant.virtual_pool, name, command, **more)

        retried = await submit(tenant, history, body("retried", 9, retry={"max": 2, "on": ["node_lost"]}))
        given_up = await submit(tenant, history, body("given-up", 9, retry={"max": 0}))

        async def both_run() -> bool:
            jobs = [await job_of(tenant, job_id) for job_id in (retried, given_up)]
            return all(job["tasks"][0]["state"] == "running" for job in jobs)

        await eventually(both_run)
        assert len(_running_tasks(without_node)) == 2
        os.kill(agent, signal.SIGSTOP)
        try:
            lost = await wait_for_job(tenant, given_up)
            assert (lost["state"], lost["reason"]) == ("failed", "node_lost")
            waiting = await job_of(tenant, retried)
            assert waiting["tasks"][0]["attempt"] == 2
            # The fence lies before the end of the lease: whatever runs there is gone before it could run again.
            assert _running_tasks(without_node) == []
        finally:
            os.kill(agent, signal.SIGCONT)
        done = await wait_for_job(tenant, retried, seconds=60)
        assert (done["state"], done["tasks"][0]["attempt"]) == ("succeeded", 2)
        Load("fenced", without_node, tenant, random.Random(0), (0, 0), 0, history).assert_witnessed(
            {"retried": "succeeded", "given-up": "failed"}
        )
        await assert_sound(without_node, operator, history)


def _running_tasks(stack: Stack) -> list[str]:
    """Command lines of tasks that leave witnesses and still run."""
    return [text for text in stack.left_over().values() if text.startswith("/bin/sh -c f=")]
