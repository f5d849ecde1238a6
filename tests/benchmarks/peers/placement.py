"""OpenStack Placement: candidates for one instance and the claim of one of them, over HTTP, on a PostgreSQL of its own.

Needs `openstack-placement psycopg2-binary gunicorn "setuptools<81"` in an environment of its own, whose folder
MILLPOND_BENCH_PLACEMENT names: its dependencies are older than ours.
"""

import asyncio
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import httpx

from millpond.stack.ephemeral import EphemeralEngines
from millpond.stack.ports import find_free_port
from tests.benchmarks.peers.measured import Rate, Run, cpu_of, list_children

CLAIMS = 60
CLIENTS = 4
# A busy machine must not end a run: what was slow is what is measured.
_ANSWER_SECONDS = 600
_ENVIRONMENT = "MILLPOND_BENCH_PLACEMENT"
_HEADERS = {"x-auth-token": "admin", "OpenStack-API-Version": "placement 1.39"}
_INVENTORIES = {"VCPU": {"total": 128}, "MEMORY_MB": {"total": 1_048_576}, "CUSTOM_GPU": {"total": 8}}
_WANTED = "/allocation_candidates?resources=VCPU:8,MEMORY_MB:32768,CUSTOM_GPU:1&limit=10"
_APPLICATION = "from placement.wsgi import init_application\napplication = init_application()\n"


def list_missing() -> list[str]:
    """What has to be installed first."""
    folder = os.environ.get(_ENVIRONMENT)
    if folder is None:
        return [f"{_ENVIRONMENT}=FOLDER of an environment with openstack-placement"]
    return [name for name in ("placement-manage", "gunicorn") if not (Path(folder) / "bin" / name).exists()]


@contextmanager
def running(providers: int) -> Iterator[Run]:
    """So many providers; a run claims one device, eight cores and 32 GiB again and again, by four clients."""
    former = list_children()
    with (
        EphemeralEngines(durable=True) as engines,
        tempfile.TemporaryDirectory(prefix="millpond-bench-placement-") as name,
        _placement(Path(name), engines.postgres_url) as url,
    ):
        asyncio.run(_register(url, providers))
        roots = list_children() - former
        yield lambda: asyncio.run(_claim(url, roots))


def _connect(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers=_HEADERS, timeout=_ANSWER_SECONDS)


async def _register(url: str, providers: int) -> None:
    numbers = iter(range(providers))
    async with _connect(url) as client:
        (await client.put("/resource_classes/CUSTOM_GPU")).raise_for_status()
        await asyncio.gather(*(_register_some(client, numbers) for _ in range(CLIENTS)))


async def _register_some(client: httpx.AsyncClient, numbers: Iterator[int]) -> None:
    for number in numbers:
        identity = str(uuid4())
        body = {"name": f"node-{number:05d}", "uuid": identity}
        (await client.post("/resource_providers", json=body)).raise_for_status()
        inventory = {"resource_provider_generation": 0, "inventories": _INVENTORIES}
        path = f"/resource_providers/{identity}/inventories"
        (await client.put(path, json=inventory)).raise_for_status()


async def _claim(url: str, roots: set[int]) -> Rate:
    async with _connect(url) as client:
        cpu, began = cpu_of(roots), time.monotonic()
        await asyncio.gather(*(_claim_some(client, random.Random(uuid4().int)) for _ in range(CLIENTS)))
        seconds = time.monotonic() - began
        return Rate(CLAIMS / seconds, (cpu_of(roots) - cpu) * 1000 / CLAIMS)


async def _claim_some(client: httpx.AsyncClient, chance: random.Random) -> None:
    left = CLAIMS // CLIENTS
    while left:
        candidates = (await client.get(_WANTED)).raise_for_status().json()["allocation_requests"]
        chosen = chance.choice(candidates)
        body = {
            "allocations": chosen["allocations"],
            "mappings": chosen["mappings"],
            "project_id": str(uuid4()),
            "user_id": str(uuid4()),
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
        }
        answer = await client.put(f"/allocations/{uuid4()}", json=body)
        if answer.status_code == httpx.codes.CONFLICT:
            continue  # another client took it: asked again, as its users do
        answer.raise_for_status()
        left -= 1


@contextmanager
def _placement(folder: Path, database: str) -> Iterator[str]:
    programs = Path(os.environ[_ENVIRONMENT]) / "bin"
    connection = database.replace("postgresql://", "postgresql+psycopg2://", 1)
    configuration = f"[api]\nauth_strategy = noauth2\n[placement_database]\nconnection = {connection}\n"
    (folder / "placement.conf").write_text(configuration)
    (folder / "application.py").write_text(_APPLICATION)
    environment = {**os.environ, "OS_PLACEMENT_CONFIG_DIR": str(folder)}
    manage = [str(programs / "placement-manage"), "--config-file", str(folder / "placement.conf"), "db", "sync"]
    subprocess.run(manage, env=environment, check=True, capture_output=True)
    port = find_free_port()
    serve = [
        str(programs / "gunicorn"),
        "-w",
        "2",
        "--timeout",
        str(_ANSWER_SECONDS),
        "-b",
        f"127.0.0.1:{port}",
        "application:application",
    ]
    with (folder / "gunicorn.log").open("wb") as log:
        server = subprocess.Popen(serve, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        _wait_until_answered(f"http://127.0.0.1:{port}", folder / "gunicorn.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def _wait_until_answered(url: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            httpx.get(url).raise_for_status()
            return
        except httpx.HTTPError as error:
            if time.monotonic() > deadline:
                raise AssertionError(log.read_text(errors="replace")[-2000:]) from error
            time.sleep(0.2)
