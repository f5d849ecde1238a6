"""`millpond up --split`: the processes and their own roles, and each killed alone while the others answer."""

import asyncio
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.system.client import Caller, open_caller
from tests.system.stack import Stack

pytestmark = pytest.mark.system

# A route of each service that needs nothing but that service.
ROUTES = {
    "registry": "/v1/pools",
    "quota": "/v1/tenants",
    "scheduler": "/v1/usage",
    "billing": "/v1/price-books",
    "autoscaler": "/v1/scaling-policies",
}
PROCESSES = [f"{kind}-{service}" for service in ROUTES for kind in ("http", "worker")] + ["celery", "gateway"]


def test_split_stack_when_seen_by_ps_then_each_process_runs_alone(shared_split: Stack) -> None:
    pids = {name: str(shared_split.pid(name)) for name in (*PROCESSES, "postgres", "valkey", "agent")}
    assert len(set(pids.values())) == len(pids)
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "-p", ",".join(pids.values())], capture_output=True, text=True, check=True
    )
    shown = dict(line.split(maxsplit=1) for line in listed.stdout.splitlines())
    for name, pid in pids.items():
        assert _is_title_of(name, shown[pid]), f"{name}: {shown[pid]}"


def _is_title_of(name: str, title: str) -> bool:
    """Processes of ours are shown by name; others by their program."""
    return title == f"millpond: {name}" if name in PROCESSES else name in title


async def test_split_stack_when_seen_by_pg_stat_activity_then_each_service_has_its_own_role(
    shared_split: Stack,
) -> None:
    connection = await asyncpg.connect(shared_split.owner_url)
    try:
        rows = await connection.fetch(
            "SELECT usename, client_port FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND pid <> pg_backend_pid()"
        )
        roles = await connection.fetch("SELECT rolname, rolsuper, rolinherit FROM pg_roles WHERE rolcanlogin")
    finally:
        await connection.close()
    assert {row["usename"] for row in rows} == {f"millpond_{service}" for service in ROUTES}
    owners = _owners({row["client_port"] for row in rows}, urlsplit(shared_split.owner_url).port)
    by_role: dict[str, set[int]] = {}
    for row in rows:
        by_role.setdefault(row["usename"], set()).add(owners[row["client_port"]])
    names = {shared_split.pid(name): name for name in PROCESSES}
    for role, pids in by_role.items():
        service = role.removeprefix("millpond_")
        allowed = {f"http-{service}", f"worker-{service}"} | (
            {"celery"} if service in ("billing", "scheduler") else set()
        )
        assert {names[pid] for pid in pids} <= allowed, role
    for row in roles:
        if row["rolname"] != "millpond_owner":
            assert not row["rolsuper"]
            assert not row["rolinherit"]


def _owners(ports: set[int], server: int | None) -> dict[int, int]:
    """Local TCP port -> the process that holds the connection to the server's port."""
    inodes: dict[str, int] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        port, remote = (int(address.partition(":")[2], 16) for address in fields[1:3])
        # One local port may serve several connections, each to another server.
        if port in ports and remote == server:
            inodes[f"socket:[{fields[9]}]"] = port
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                for descriptor in (entry / "fd").iterdir():
                    port = inodes.get(str(descriptor.readlink()), 0)
                    if port:
                        found[port] = int(entry.name)
            except OSError:
                continue
    return found


@pytest.mark.parametrize("name", PROCESSES)
async def test_process_when_killed_alone_then_the_others_answer_and_it_comes_back(
    shared_split: Stack, name: str
) -> None:
    kind, _, service = name.partition("-")
    others = {other: path for other, path in ROUTES.items() if not (kind == "http" and other == service)}
    async with open_caller(shared_split.url, shared_split.operator_key) as operator:
        await _all_answer(operator, ROUTES, 15)  # also fills the key caches, as a stack in use has them
        old = shared_split.signal(name, signal.SIGKILL)
        began = time.monotonic()
        if name == "gateway":
            await shared_split.wait_until_back(name, old)
        back = asyncio.create_task(shared_split.wait_until_back(name, old))
        while not back.done():
            for path in others.values():
                answer = await operator("GET", path)
                assert answer.status_code == 200, f"{path} while {name} is away: {answer.status_code} {answer.text}"
        assert await back < 10
        await _all_answer(operator, ROUTES, 10 - (time.monotonic() - began))
        assert shared_split.pid(name) != old


async def _all_answer(operator: Caller, routes: dict[str, str], seconds: float) -> None:
    for path in routes.values():
        answer = await operator.patiently("GET", path, seconds=seconds)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
