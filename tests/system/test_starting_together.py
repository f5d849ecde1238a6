"""Eight migrations and eight replicas started at once on one empty database: one migrates, all get ready."""

import asyncio
import os
import secrets
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from millpond.stack.ephemeral import EphemeralEngines
from millpond.stack.launch import launch
from millpond.stack.ports import HeldPorts
from millpond.stack.processes import python_command
from millpond_kernel.migrate import service_role
from tests.integration.databases import create, with_database

pytestmark = pytest.mark.system

SERVICES = ("registry", "quota", "scheduler", "billing", "autoscaler")
REPLICAS = 8


@pytest.fixture
def empty_database() -> Iterator[dict[str, str]]:
    """The environment of services on engines of their own, with a database in which nothing is yet."""
    with EphemeralEngines() as engines:
        name = f"mp_replicas_{uuid.uuid4().hex[:8]}"
        asyncio.run(create(engines.postgres_url, name))
        owner = with_database(engines.postgres_url, name)
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "MILLPOND_OWNER_DATABASE_URL": owner,
            "MILLPOND_REDIS_URL": engines.redis_url,
        }
        for service in SERVICES:
            role, password = service_role(service), secrets.token_hex(8)
            environment[f"MILLPOND_{service.upper()}_DATABASE_URL"] = with_database(owner, name, role, password)
        yield environment


def test_replicas_when_eight_and_eight_migrations_start_together_then_one_migrates_and_all_get_ready(
    empty_database: dict[str, str], tmp_path: Path
) -> None:
    held = HeldPorts()
    ports = {held.take(): SERVICES[number % len(SERVICES)] for number in range(REPLICAS)}
    environment = empty_database | {
        f"MILLPOND_{service.upper()}_URL": f"http://127.0.0.1:{port}" for port, service in ports.items()
    }
    began = time.monotonic()
    with held, ExitStack() as stack:

        def start(name: str, *argv: str) -> Path:
            log = tmp_path / f"{name}.log"
            process = launch(python_command(*argv), environment=environment, folder=tmp_path, log_file=log)
            stack.callback(process.wait, 30)
            stack.callback(process.send_signal, signal.SIGTERM)
            return log

        for port, service in ports.items():
            start(f"http-{port}", "millpond_kernel.serve", "http", "--services", service, "--port", str(port))
        migrations = [start(f"migrate-{number}", "millpond_kernel.migrate") for number in range(REPLICAS)]
        waiting = dict(ports)
        while waiting:
            assert time.monotonic() - began < 60, _logs(tmp_path)
            waiting = {port: service for port, service in waiting.items() if not _is_ready(port, service)}
            time.sleep(0.1)
        seconds = time.monotonic() - began
    told = sorted(log.read_text(encoding="utf-8").split(" to ")[0] for log in migrations)
    assert told.count("database migrated") == 1, told
    print(f"eight replicas ready after {seconds:.1f} s")


def _is_ready(port: int, service: str) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz/{service}", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def _logs(folder: Path) -> str:
    return "\n".join(
        f"-- {log.name}\n{log.read_text(encoding='utf-8')[-1500:]}" for log in sorted(folder.glob("*.log"))
    )
