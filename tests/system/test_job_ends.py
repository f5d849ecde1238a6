"""How jobs end on a real machine: out of memory, over their time, cancelled, never placed; each with a reason."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import asyncpg
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

# Ends by itself at 512 MiB, so that it harms no machine whose limits do not hold.
EATER = "x = bytearray()\nwhile len(x) < 512 << 20: x += bytes(4 << 20)"


@dataclass(frozen=True, slots=True)
class World:
    """A stack with one tenant, and what was submitted in this test."""

    stack: Stack
    operator: Caller
    tenant: Tenant
    history: History = field(default_factory=History)

    async def submit(self, name: str, *command: str, **more: Any) -> str:
        return await submit(self.tenant, self.history, job_body(self.tenant.virtual_pool, name, command, **more))

    async def explain(self, job_id: str) -> Any:
        return (await self.tenant.caller("GET", f"/v1/jobs/{job_id}/explain", expect=200)).json()


@pytest.fixture
async def world(shared_compact: Stack, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with open_caller(shared_compact.url, shared_compact.operator_key) as operator:
        name = request.node.name.removeprefix("test_")[:40].strip("_").replace("_", "-")
        yield World(shared_compact, operator, await make_tenant(operator, name, cpu_milli=200, memory_mib=512))


async def test_job_when_out_of_memory_then_fails_with_that_reason(world: World) -> None:
    if "limits none" in (world.stack.paths.logs / "agent.log").read_text(encoding="utf-8"):
        pytest.skip("no cgroup may be written here, so memory limits are not enforced")
    job_id = await world.submit("eater", "/usr/bin/env", "python3", "-c", EATER, memory_mib=64)
    job = await wait_for_job(world.tenant, job_id)
    assert (job["state"], job["reason"]) == ("failed", "out_of_memory")
    await assert_sound(world.stack, world.operator, world.history)


async def test_job_when_over_its_time_then_is_stopped(world: World) -> None:
    job_id = await world.submit("slow", "/bin/sleep", "60", time_limit_seconds=2)
    job = await wait_for_job(world.tenant, job_id)
    assert (job["state"], job["reason"]) == ("failed", "time_limit")
    allocation = job["tasks"][0]["allocation"]
    assert allocation["released_at"] is not None
    await assert_sound(world.stack, world.operator, world.history)


async def test_running_job_when_cancelled_then_stops_and_is_billed_until_then(world: World) -> None:
    job_id = await world.submit("endless", "/bin/sh", "-c", "trap 'echo bye; exit 0' TERM; echo hi; sleep 60 & wait")
    await wait_for_job(world.tenant, job_id, "running")

    async def is_active() -> bool:
        found = await wait_for_job(world.tenant, job_id, "running")
        return str(found["tasks"][0]["state"]) == "running"

    await eventually(is_active)
    await world.tenant.caller("POST", f"/v1/jobs/{job_id}/cancel", expect=200)
    job = await wait_for_job(world.tenant, job_id)
    assert (job["state"], job["reason"]) == ("cancelled", "cancelled")
    assert await read_log(world.tenant, job_id) == "hi\nbye\n"
    await assert_sound(world.stack, world.operator, world.history)


async def test_job_when_it_needs_an_image_and_no_runtime_has_it_then_waits_and_says_so(world: World) -> None:
    job_id = await world.submit("contained", "true", image="docker.io/library/debian:12")
    explanation = await _explained(world, job_id)
    assert "container" in explanation["message"] or "image" in explanation["message"], explanation
    assert sum(explanation["counts"].values()) == explanation["nodes"] == 1
    await _cancel_pending(world, job_id)


async def test_job_when_it_can_never_fit_then_says_what_is_missing(world: World) -> None:
    job_id = await world.submit("huge", "true", cpu_milli=900_000, memory_mib=1 << 20)
    explanation = await _explained(world, job_id)
    assert explanation["dominant"]
    assert explanation["message"]
    assert explanation["would_unblock"], explanation
    await _cancel_pending(world, job_id)


async def test_job_when_over_the_limit_then_waits_for_the_limit_and_starts_when_there_is_room(world: World) -> None:
    first = await world.submit("first", "/bin/sleep", "3", cpu_milli=150)
    await wait_for_job(world.tenant, first, "running")
    second = await world.submit("second", "/bin/true", cpu_milli=150)
    explanation = await _explained(world, second)
    assert any(line["missing"] > 0 for line in explanation["admission"]), explanation
    assert (await wait_for_job(world.tenant, second))["state"] == "succeeded"
    assert (await wait_for_job(world.tenant, first))["state"] == "succeeded"
    await assert_sound(world.stack, world.operator, world.history)


async def test_command_when_it_does_not_exist_then_the_start_fails_and_costs_nothing(world: World) -> None:
    await publish_prices(world.operator)
    job_id = await world.submit("missing", "/no/such/program")
    job = await wait_for_job(world.tenant, job_id)
    assert job["state"] == "failed"
    assert job["reason"] in ("start_failed", "exit_code")
    await assert_sound(world.stack, world.operator, world.history)


async def _explained(world: World, job_id: str) -> Any:
    async def looked_at() -> Any:
        found = await world.explain(job_id)
        return found if found["dominant"] not in ("", "undecided") else None

    return await eventually(looked_at)


async def _cancel_pending(world: World, job_id: str) -> None:
    await world.tenant.caller("POST", f"/v1/jobs/{job_id}/cancel", expect=200)
    assert (await wait_for_job(world.tenant, job_id))["state"] == "cancelled"
    await assert_sound(world.stack, world.operator, world.history)


# Each is made, must be found, and is taken back: (falsify, restore, what the checker says of it).
FALSIFICATIONS = (
    (
        "UPDATE billing.segment SET end_at = end_at - interval '1 ms' WHERE id = (SELECT max(id::text)::uuid"
        " FROM billing.segment WHERE kind = 'active')",
        "UPDATE billing.segment SET end_at = end_at + interval '1 ms' WHERE id = (SELECT max(id::text)::uuid"
        " FROM billing.segment WHERE kind = 'active')",
        "expected",
    ),
    (
        "UPDATE scheduler.allocation SET released_at = released_at + interval '1 h' WHERE released_at IS NOT NULL",
        "UPDATE scheduler.allocation SET released_at = released_at - interval '1 h' WHERE released_at IS NOT NULL",
        "events and allocations differ",
    ),
    (
        "UPDATE quota.audit SET action = 'forged.' || action WHERE seq = 2",
        "UPDATE quota.audit SET action = substr(action, 8) WHERE seq = 2",
        "the audit chain breaks at 2",
    ),
    (
        "UPDATE quota.outbox SET seq = -1 WHERE seq = 1",
        "UPDATE quota.outbox SET seq = 1 WHERE seq = -1",
        "the outbox is not dense",
    ),
    (
        "UPDATE scheduler.job SET state = 'succeeded' WHERE name = 'sound'; UPDATE scheduler.task SET state = 'lost'"
        " WHERE job_id IN (SELECT id FROM scheduler.job WHERE name = 'sound')",
        "UPDATE scheduler.task SET state = 'succeeded'"
        " WHERE job_id IN (SELECT id FROM scheduler.job WHERE name = 'sound')",
        "job sound is succeeded, 0 of 1 succeeded",
    ),
)


async def test_checker_when_the_books_are_falsified_then_finds_it(world: World) -> None:
    job_id = await world.submit("sound", "/bin/sleep", "1")
    assert (await wait_for_job(world.tenant, job_id))["state"] == "succeeded"
    await assert_sound(world.stack, world.operator, world.history)
    connection = await asyncpg.connect(world.stack.owner_url)
    try:
        # Only whoever may switch triggers off can change these rows at all.
        await connection.execute("SET session_replication_role = replica")
        for falsify, restore, finding in FALSIFICATIONS:
            await connection.execute(falsify)
            try:
                with pytest.raises(AssertionError, match=finding):
                    await assert_sound(world.stack, world.operator, world.history, quiet_seconds=5)
            finally:
                await connection.execute(restore)
    finally:
        await connection.close()
    await assert_sound(world.stack, world.operator, world.history)
