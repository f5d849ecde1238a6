"""A pool without a machine that grows under queued work and shrinks again, on a real stack with simulated nodes.

The autoscaler's worker is killed while nodes boot: its orders were durable before anybody was asked, so the next one
goes on with them and buys nothing twice.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.client import open_caller
from tests.system.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.system

FLAVOR = "nvidia-a100-sxm4-80gb"
DEVICES = 8
TASKS = 20
# Loaded over 60 % and under 95 % by the tasks, so that what waits alone decides how many are bought.
RULES = {
    "max_nodes": 8,
    "max_step_nodes": 8,
    "emergency_ratio": 0.95,
    "cool_down_seconds": 1,
    "safety_window_seconds": 3,
    "min_node_life_seconds": 1,
    "registration_seconds": 120,
    "drain_seconds": 30,
}


@pytest.fixture
def simulating() -> Iterator[Stack]:
    """A split stack with a process for simulated nodes, of which there are none."""
    stack = Stack.make(split=True)
    nodes = stack.base / "nodes.json"
    nodes.write_text(json.dumps({"nodes": []}))
    stack.more_arguments = ("--simulate", str(nodes))
    try:
        stack.start(join=False)
        yield stack
    finally:
        stack.close()


@pytest.mark.timeout(300)
async def test_a8_pool_when_work_waits_and_ends_then_it_grows_and_shrinks_though_the_worker_is_killed(
    simulating: Stack,
) -> None:
    async with open_caller(simulating.url, simulating.operator_key) as operator:
        pool = (await operator("GET", "/v1/pools", expect=200)).json()["items"][0]["pool_id"]
        template = {"model": "A100 SXM4 80GB", "devices": DEVICES, "cpu_milli": 64_000, "memory_mib": 262_144}
        policy = {"name": "growing", "pool_id": pool, "flavor": FLAVOR, "rules": RULES}
        spec = {**policy, "template": {**template, "simulated": {"boot_seconds": 6}}}

        async def is_in_force() -> bool:
            # The autoscaler has to hear of the pool first.
            return (await operator.patiently("POST", "/v1/scaling-policies", spec)).status_code == 201

        await eventually(is_in_force)
        member, share = await _make_share(operator, pool)
        group = {
            "count": TASKS,
            "resources": {"cpu_milli": 100, "memory_mib": 64, "devices": [{"count": 1}]},
            "run": {"simulate": {"seconds": 25}},
        }
        job = {"name": "wave", "virtual_pool": share, "groups": [group]}
        async with open_caller(simulating.url, member) as tenant:
            submitted = (await tenant("POST", "/v1/jobs", job, expect=201)).json()
            await eventually(lambda: _orders(operator, 3, "provisioning"), 60)
            old = simulating.signal("worker-autoscaler")
            await simulating.wait_until_back("worker-autoscaler", old, 30)

            joined = await eventually(lambda: _orders(operator, 3, "joined"), 90)
            assert len({order["node_id"] for order in joined}) == 3

            async def succeeded() -> bool:
                found = (await tenant("GET", f"/v1/jobs/{submitted['job_id']}", expect=200)).json()
                assert found["state"] in ("pending", "running", "succeeded"), found
                return bool(found["state"] == "succeeded")

            await eventually(succeeded, 90)
        await eventually(lambda: _orders(operator, 3, "released"), 120)
        assert len(await operator.items("/v1/node-orders")) == 3
        assert await operator.items("/v1/nodes") == []
        decisions = await operator.items("/v1/scaling-decisions")
        assert sum(one["nodes"] for one in decisions if one["action"] == "order_nodes") == 3
        assert sum(one["nodes"] for one in decisions if one["action"] == "release_nodes") == 3
        assert all(one["reason"] and one["inputs"] for one in decisions)
    told = simulating.command("scaling", "decisions")
    assert (told.returncode, "wait for capacity alone" in told.stdout) == (0, True), told.stderr


async def _orders(operator: Any, count: int, state: str) -> list[dict[str, Any]] | None:
    found = await operator.items(f"/v1/node-orders?state={state}")
    return list(found) if len(found) == count else None


async def _make_share(operator: Any, pool: str) -> tuple[str, str]:
    """(the key of a member, its virtual pool): it may use a hundred devices, and is sure of none."""
    tenant = (await operator("POST", "/v1/tenants", {"name": "acme"}, expect=201)).json()["tenant_id"]
    key = {"name": "k", "role": "member", "tenant_id": tenant}
    secret = (await operator("POST", "/v1/api-keys", key, expect=201)).json()["secret"]
    limits = {"cpu": {"borrow": 100_000}, "memory": {"borrow": 100_000}, "devices": {FLAVOR: {"borrow": 100_000}}}
    spec = {"name": "share", "tenant_id": tenant, "pool_id": pool, "limits": limits}

    async def made() -> Any:
        answer = await operator("POST", "/v1/virtual-pools", spec)
        return answer.json() if answer.status_code == 201 else None

    share = (await eventually(made))["virtual_pool_id"]

    async def known() -> bool:
        return bool((await operator("GET", f"/v1/queues/{share}")).status_code == 200)

    await eventually(known)
    return str(secret), str(share)
