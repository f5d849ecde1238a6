"""A task that tries to reach what is not its own: the stack's data, keys and sockets, and another tenant's task."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.system.client import (
    History,
    Tenant,
    job_body,
    make_tenant,
    open_caller,
    read_log,
    submit,
    wait_for_job,
)
from tests.system.stack import Stack
from tests.waiting import eventually

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root gives each task a user; else `isolation: none` is told"),
]

PROGRAM = (Path(__file__).parent / "hostile_job.py").read_text("utf-8")
ARGUMENT_CANARY = "canary-in-an-argument"
NEIGHBOUR = "echo secret > mine; pwd; sleep 120"


async def _work_folder(tenant: Tenant, job_id: str) -> Path:
    """Where the neighbour works, as it says itself."""

    async def printed() -> str:
        return str((await tenant.caller("GET", f"/v1/jobs/{job_id}/logs", expect=200)).json()["text"]).strip()

    return Path(await eventually(printed))


def _targets(stack: Stack, neighbour: Path) -> dict[str, Any]:
    """What a hostile task would like to have; all of it exists."""
    private = [stack.paths.secrets, stack.agent_folder, stack.paths.logs, stack.paths.valkey]
    found = [path for folder in private for path in folder.rglob("*")] + [stack.paths.postgres / "PG_VERSION"]
    files = [*(path for path in found if path.is_file()), stack.paths.status_file, neighbour / "mine"]
    folders = [stack.paths.folder, stack.paths.postgres, stack.paths.runtime, neighbour, neighbour.parent, *private]
    ports = {"postgres": urlsplit(stack.owner_url).port, "valkey": urlsplit(stack.redis_url).port}
    return {
        "files": [str(path) for path in files][:200],
        "folders": [str(folder) for folder in folders],
        "sockets": [str(path) for path in stack.paths.runtime.iterdir() if path.is_socket()],
        "ports": ports,
        "marks": [ARGUMENT_CANARY],
        "pids": [os.getpid(), stack.pid("agent"), stack.pid("http"), stack.pid("postgres")],
    }


def _try_as_root(targets: str) -> dict[str, Any]:
    tried = subprocess.run([sys.executable, "-c", PROGRAM, targets], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(tried.stdout)
    return found


async def test_task_when_hostile_then_it_reaches_no_data_no_key_no_socket_and_no_other_tenants_task(
    compact: Stack,
) -> None:
    history = History()
    async with open_caller(compact.url, compact.operator_key) as operator:
        victim = await make_tenant(operator, "victim", cpu_milli=200, memory_mib=128)
        attacker = await make_tenant(operator, "attacker", cpu_milli=200, memory_mib=128)
        command = ("/bin/sh", "-c", NEIGHBOUR, ARGUMENT_CANARY)
        neighbour = await submit(victim, history, job_body(victim.virtual_pool, "neighbour", command))
        targets = json.dumps(_targets(compact, await _work_folder(victim, neighbour)))

        # As root, the same attempts succeed, so that their failing says something.
        reached = await asyncio.to_thread(_try_as_root, targets)
        kinds = ("files", "folders", "sockets", "processes", "signals")
        assert {kind for kind in kinds if reached[kind]} == set(kinds)
        assert f"mark {ARGUMENT_CANARY}" in reached["processes"]

        body = job_body(attacker.virtual_pool, "hostile", ("python3", "-c", PROGRAM, targets))
        hostile = await submit(attacker, history, body)
        job = await wait_for_job(attacker, hostile)
        log = await read_log(attacker, hostile)
        assert (job["state"], job["reason"]) == ("succeeded", "completed"), log
        reached = json.loads(log)
        assert {kind: found for kind, found in reached.items() if found} == {}
        assert {*kinds, "engines", "environment"} == set(reached)
        await victim.caller("POST", f"/v1/jobs/{neighbour}/cancel")
