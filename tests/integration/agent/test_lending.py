"""Pools lend one another nodes, with the real services and a simulated fleet: nothing that runs is lost on the way."""

from typing import Any

import pytest

from tests.integration.agent.waters import CPU, Member, Waters
from tests.waiting import eventually

pytestmark = pytest.mark.integration


async def _pool(waters: Waters, name: str, nodes: int, **more: Any) -> str:
    """A pool with so many simulated nodes of 32 cores each."""
    pool = (await waters.operator("POST", "/v1/pools", {"name": name, **more}, expect=201)).json()["pool_id"]
    token = (await waters.operator("POST", "/v1/join-tokens", {"pool_id": pool}, expect=201)).json()["token"]
    waters.describe(name, {**CPU, "name": name, "count": nodes}, join_token=token)
    return str(pool)


async def _loans(waters: Waters, pool: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (await waters.operator("GET", f"/v1/pools/{pool}/loans", expect=200)).json()["items"]
    return items


async def _available(waters: Waters, pool: str) -> int:
    figures = (await waters.operator("GET", f"/v1/pools/{pool}/capacity", expect=200)).json()
    return next((int(host["available"]) for host in figures["hosts"] if host["resource"] == "cpu"), 0)


async def _fill(waters: Waters, member: Member, seconds: float, cores: int) -> str:
    """A job of one-core tasks that runs for so long."""
    job_id = await member.submit({"simulate": {"seconds": seconds}}, count=cores)

    async def all_run() -> bool:
        return {task["state"] for task in (await member.job(job_id))["tasks"]} <= {"running", "succeeded"}

    await eventually(all_run, 30)
    return job_id


async def test_pool_when_short_then_borrows_idle_nodes_and_gives_them_back_and_no_work_is_lost(
    waters: Waters,
) -> None:
    donor = await _pool(waters, "donor", 3)
    rule = {
        "resource": "cpu",
        "low": 16_000,
        "enough": 24_000,
        "donors": [donor],
        "max_nodes": 2,
        "donor_keeps": 32_000,
    }
    spec = {"name": "main", "thresholds": [rule]}
    await waters.operator("PUT", f"/v1/pools/{waters.pool_id}", spec, expect=200, headers={"If-Match": "*"})
    waters.describe("own", {**CPU, "count": 1})
    async with waters.fleet():
        await waters.wait_for_nodes(4)
        assert await eventually(lambda: _is(waters, waters.pool_id, 32_000), 20)
        assert await _loans(waters, waters.pool_id) == []
        member = await waters.tenant(devices=0, cpu=32_000)
        own = await _fill(waters, member, 8, 20)

        async def lent() -> list[dict[str, Any]] | None:
            found = await _loans(waters, waters.pool_id)
            return found if [loan["state"] for loan in found] == ["lent"] else None

        (loan,) = await eventually(lent, 30)
        assert (loan["from_pool_id"], loan["threshold"], loan["amount"]) == (donor, "cpu", 32_000)
        assert "below 16 cores" in loan["reason"]
        assert loan["due_at"] > loan["arrived_at"]
        assert (await waters.operator("DELETE", f"/v1/pools/{donor}", headers={"If-Match": "*"})).status_code == 409

        job = await member.wait_for(own, "succeeded", "failed")
        assert {task["state"] for task in job["tasks"]} == {"succeeded"}

        async def returned() -> list[dict[str, Any]] | None:
            found = await _loans(waters, donor)
            return found if [loan["state"] for loan in found] == ["returned"] else None

        (loan,) = await eventually(returned, 30)
        assert "available without it" in loan["reason"]
        nodes = (await waters.operator("GET", f"/v1/nodes?pool_id={donor}", expect=200)).json()["items"]
        assert len(nodes) == 3
        assert all(node["schedulable"] for node in nodes)
    events = (await waters.operator("GET", "/v1/audit/registry?limit=200", expect=200)).json()["items"]
    assert "loan.return" not in {event["action"] for event in events}


async def _is(waters: Waters, pool: str, available: int) -> bool:
    return await _available(waters, pool) == available


async def test_pool_when_short_without_donors_then_it_says_so_until_it_is_not(waters: Waters) -> None:
    spec = {"name": "main", "thresholds": [{"resource": "cpu", "low": 40_000}]}
    await waters.operator("PUT", f"/v1/pools/{waters.pool_id}", spec, expect=200, headers={"If-Match": "*"})
    waters.describe("own", {**CPU, "count": 1})

    async def short() -> list[dict[str, Any]]:
        page = (await waters.operator("GET", f"/v1/pools/{waters.pool_id}/shortages", expect=200)).json()
        items: list[dict[str, Any]] = page["items"]
        return items

    async with waters.fleet():
        await waters.wait_for_nodes(1)
        (shortage,) = await eventually(short)
        assert (shortage["threshold"], shortage["low"]) == ("cpu", 40_000)
        waters.describe("own", {**CPU, "count": 2})

        async def restored() -> bool:
            return await short() == []

        assert await eventually(restored, 30)


async def test_node_when_asked_home_by_an_operator_then_it_goes_busy_or_not(waters: Waters) -> None:
    donor = await _pool(waters, "donor", 1)
    rule = {"resource": "cpu", "low": 48_000, "donors": [donor]}
    spec = {"name": "main", "thresholds": [rule]}
    await waters.operator("PUT", f"/v1/pools/{waters.pool_id}", spec, expect=200, headers={"If-Match": "*"})
    waters.describe("own", {**CPU, "count": 1})
    async with waters.fleet():
        await waters.wait_for_nodes(2)

        async def in_state(state: str) -> dict[str, Any] | None:
            return next((loan for loan in await _loans(waters, waters.pool_id) if loan["state"] == state), None)

        loan = await eventually(lambda: in_state("lent"), 30)
        member = await waters.tenant(devices=0, cpu=64_000)
        await _fill(waters, member, 600, 40)
        path = f"/v1/pools/{donor}/loans/{loan['loan_id']}/return"
        returning = (await waters.operator("POST", path, {"deadline_seconds": 1}, expect=202)).json()
        assert (returning["state"], returning["reason"]) == ("returning", "an operator asked for it")
        await eventually(lambda: in_state("returned"), 30)
        again = await waters.operator("POST", path, {})
        assert (again.status_code, again.json()["code"]) == (409, "registry.loan.state")
