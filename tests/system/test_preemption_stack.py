"""The chain with preemption and gangs, on real processes: work gives way to a gang, though the leader is killed then.

The gang starts whole, who gave way runs again afterwards, and each is billed for what it held, the stop included.
"""

import signal
from typing import Any

import pytest

from tests.system.checker import assert_sound
from tests.system.client import (
    History,
    Tenant,
    job_body,
    make_tenant,
    open_caller,
    publish_prices,
    submit,
    wait_for_job,
)
from tests.system.load import WITNESSED
from tests.system.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.system

TASKS = 3
# Long enough for the others to come, short enough to run again. It needs a second to stop.
PATIENT = f'trap "sleep 1; exit 143" TERM; ({WITNESSED}) & wait'


@pytest.mark.timeout(240)
async def test_gang_when_lower_priorities_hold_its_room_then_it_starts_whole_and_they_run_again(
    shared_compact: Stack,
) -> None:
    history = History()
    async with open_caller(shared_compact.url, shared_compact.operator_key) as operator:
        await publish_prices(operator, minimum_seconds=0)
        tenant = await make_tenant(operator, "preempting", cpu_milli=100 * TASKS)
        path = f"/v1/virtual-pools/{tenant.virtual_pool}"
        await operator("PATCH", path, {"preemption": "lower_priority"}, headers={"If-Match": "*"}, expect=200)
        await eventually(lambda: _is_followed(tenant))

        def body(name: str, seconds: int, text: str, **more: Any) -> dict[str, Any]:
            command = ("/bin/sh", "-c", text, str(shared_compact.witnesses), name, str(seconds))
            return job_body(tenant.virtual_pool, name, command, **more)

        retry = {"max": 3, "on": ["preempted", "node_lost"]}
        patient = [
            await submit(tenant, history, body(f"patient-{index}", 8, PATIENT, priority=10, retry=retry))
            for index in range(TASKS)
        ]
        for job_id in patient:
            await wait_for_job(tenant, job_id, "running")
        urgent = body("urgent", 3, WITNESSED, priority=900, count=TASKS)
        urgent["groups"][0]["gang"] = True
        gang = await submit(tenant, history, urgent)

        async def is_made_room() -> bool:
            told = (await tenant.caller("GET", f"/v1/jobs/{gang}/explain", expect=200)).json()
            return bool(told["dominant"] == "preempting")

        await eventually(is_made_room)
        old = shared_compact.signal("worker-scheduler", signal.SIGKILL)
        await shared_compact.wait_until_back("worker-scheduler", old)

        assert (await wait_for_job(tenant, gang, seconds=60))["state"] == "succeeded"
        starts, ends = _runs(shared_compact, "urgent")
        assert len(starts) == len(ends) == TASKS
        assert max(starts) < min(ends), "the tasks of a gang run together"
        for job_id in patient:
            done = await wait_for_job(tenant, job_id, seconds=60)
            assert (done["state"], done["tasks"][0]["attempt"]) == ("succeeded", 2)
            held = await tenant.caller.items(f"/v1/allocations?job_id={job_id}")
            assert sorted(one["reason"] for one in held) == ["completed", "preempted"]
        await assert_sound(shared_compact, operator, history)


async def _is_followed(tenant: Tenant) -> bool:
    """Whether the scheduler has heard of the last change of the virtual pool."""
    items = await tenant.caller.items(f"/v1/usage?virtual_pool={tenant.virtual_pool}")
    return bool(items) and all(item["limit_generation"] >= 2 for item in items)


def _runs(stack: Stack, name: str) -> tuple[list[int], list[int]]:
    """When each run of a job began and came to its end, in nanoseconds."""
    lines = [
        line.split()
        for file in stack.witnesses.iterdir()
        if file.name.startswith(f"{name}.")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    return [int(at) for kind, at in lines if kind == "start"], [int(at) for kind, at in lines if kind == "end"]
