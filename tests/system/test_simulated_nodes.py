"""`millpond up --simulate`: nodes of a file and of orders, jobs for them, and a process that may be killed."""

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.client import Caller, History, make_tenant, open_caller, submit, wait_for_job
from tests.system.stack import Stack
from tests.waiting import eventually

pytestmark = pytest.mark.system

NODES = """
nodes:
  - {name: gpu, count: 2, model: A100 SXM4 80GB, devices: 4, cpu_milli: 64000, memory_mib: 262144}
  - {name: cpu, count: 6, cpu_milli: 32000, memory_mib: 65536}
"""


@pytest.fixture
def simulated() -> Iterator[Stack]:
    """A compact stack whose only nodes are simulated."""
    stack = Stack.make(split=False)
    file = stack.base / "nodes.yaml"
    file.write_text(NODES)
    stack.more_arguments = ("--simulate", str(file))
    try:
        stack.start(join=False)
        yield stack
    finally:
        stack.close()


async def _ready(operator: Caller, count: int) -> dict[str, Any]:
    """The nodes by name once so many take work."""

    async def found() -> dict[str, Any] | None:
        nodes = {node["name"]: node for node in await operator.items("/v1/nodes")}
        return nodes if sum(node["schedulable"] for node in nodes.values()) == count else None

    return await eventually(found, 60)


async def test_stack_when_it_simulates_then_nodes_come_act_jobs_out_and_outlive_their_process(
    simulated: Stack,
) -> None:
    async with open_caller(simulated.url, simulated.operator_key) as operator:
        before = await _ready(operator, 8)
        tenant = await make_tenant(operator, "acme")
        history = History()
        group = {
            "count": 8,
            "resources": {"cpu_milli": 100, "memory_mib": 64},
            "run": {"simulate": {"seconds": 6}},
        }
        body = {"name": "acted", "virtual_pool": tenant.virtual_pool, "groups": [group]}
        job_id = await submit(tenant, history, body)

        async def runs() -> bool:
            return bool((await tenant.caller("GET", f"/v1/jobs/{job_id}")).json()["state"] == "running")

        await eventually(runs, 30)
        old = simulated.signal("fleet", signal.SIGKILL)
        await simulated.wait_until_back("fleet", old)
        job = await wait_for_job(tenant, job_id)
        assert job["state"] == "succeeded"
        assert {task["attempt"] for task in job["tasks"]} == {1}

        orders = simulated.paths.folder / "fleet" / "orders"
        order = {"nodes": [{"name": "ordered", "cpu_milli": 8000, "memory_mib": 8192, "boot_seconds": 1}]}
        (orders / ".order.tmp").write_text(json.dumps(order))
        (orders / ".order.tmp").replace(orders / "order.json")
        after = await _ready(operator, 9)
        assert {name: node["node_id"] for name, node in after.items() if name != "ordered"} == {
            name: node["node_id"] for name, node in before.items()
        }
    shown = simulated.command("submit", "--tenant", "acme", "--simulate", "1s", "--wait")
    assert shown.returncode == 0, shown.stdout + shown.stderr
