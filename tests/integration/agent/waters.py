"""Running services with an empty pool for simulated nodes, a folder that describes them, and tenants who use them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millpond_node_agent.settings import AgentSettings, ExitCode
from millpond_node_agent.simulation.fleet import Fleet
from tests.integration.services import Caller, Services
from tests.waiting import eventually

GPU = {"name": "gpu", "count": 4, "model": "A100 SXM4 80GB", "devices": 8, "cpu_milli": 96_000, "memory_mib": 786_432}
CPU = {"name": "cpu", "count": 20, "cpu_milli": 32_000, "memory_mib": 65_536, "zone": "z1", "labels": {"use": "any"}}
FLAVOR = "nvidia-a100-sxm4-80gb"


@dataclass(frozen=True, slots=True)
class Waters:
    """Running services with an empty pool, a folder that describes nodes, and where the fleet keeps its own."""

    services: Services
    operator: Caller
    url: str
    token: str
    pool_id: str
    place: Path

    @property
    def orders(self) -> Path:
        return self.place / "orders"

    def describe(self, name: str, *nodes: dict[str, Any], **more: Any) -> None:
        """Put a file there whole, as every writer does."""
        scratch = self.orders / f".{name}.tmp"
        scratch.write_text(json.dumps({"nodes": nodes, **more}))
        scratch.replace(self.orders / f"{name}.json")

    def forget(self, name: str) -> None:
        (self.orders / f"{name}.json").unlink()

    @asynccontextmanager
    async def fleet(self) -> AsyncIterator["asyncio.Task[ExitCode]"]:
        """The process of the simulated nodes, here as a task; at the end it pauses."""
        settings = AgentSettings(self.place / "state", self.place / "state", token=self.token)
        fleet, stop = Fleet(settings, [str(self.orders)], self.url), asyncio.Event()
        running = asyncio.create_task(fleet.run(stop))
        try:
            yield running
        finally:
            stop.set()
            await asyncio.wait([running])
            await fleet.close()

    async def nodes(self) -> dict[str, dict[str, Any]]:
        """Nodes by name."""
        answer = await self.operator("GET", "/v1/nodes?limit=200")
        # Everything shares two cores here: a database that did not answer at once is asked again.
        items = answer.json()["items"] if answer.status_code == 200 else []
        return {node["name"]: node for node in items}

    async def wait_for_nodes(self, count: int) -> dict[str, dict[str, Any]]:
        """The nodes by name once so many of them take work."""

        async def ready() -> dict[str, dict[str, Any]] | None:
            nodes = await self.nodes()
            return nodes if sum(node["schedulable"] for node in nodes.values()) == count else None

        return await eventually(ready, 60)

    async def tenant(self, *, devices: int = 32_000, cpu: int = 32_000) -> "Member":
        """A tenant with a share of the pool, which must have so much."""
        spec = {"name": "acme"}
        tenant = (await self.operator("POST", "/v1/tenants", spec, expect=201)).json()["tenant_id"]
        key_spec = {"name": "member", "role": "member", "tenant_id": tenant}
        key = (await self.operator("POST", "/v1/api-keys", key_spec, expect=201)).json()["secret"]
        limits: dict[str, Any] = {"cpu": {"guaranteed": cpu}, "memory": {"guaranteed": 16_384}}
        if devices:
            limits["devices"] = {FLAVOR: {"guaranteed": devices}}
        share = {"name": "share", "tenant_id": tenant, "pool_id": self.pool_id, "limits": limits}

        async def shared() -> str | None:
            # The registry's capacity reaches quota as an event.
            answer = await self.operator("POST", "/v1/virtual-pools", share)
            return str(answer.json()["virtual_pool_id"]) if answer.status_code == 201 else None

        member = Member(self.services.as_key(key), await eventually(shared, 30))

        async def known() -> bool:
            return (await member.call("GET", f"/v1/queues/{member.virtual_pool}")).status_code == 200

        await eventually(known)
        return member


@dataclass(frozen=True, slots=True)
class Member:
    """A tenant's member who submits jobs."""

    call: Caller
    virtual_pool: str

    async def submit(self, run: dict[str, Any], *, gpus: int = 0, count: int = 1, profile: str | None = None) -> str:
        resources: dict[str, Any] = {"cpu_milli": 1000, "memory_mib": 256}
        if gpus:
            resources["devices"] = [{"count": gpus}]
        if profile is not None:
            resources["devices"] = [{"profile": profile}]
        group = {"name": "main", "count": count, "resources": resources, "run": run, "stop_grace_seconds": 1}
        body = {"name": "job", "virtual_pool": self.virtual_pool, "groups": [group]}
        return str((await self.call("POST", "/v1/jobs", body, expect=201)).json()["job_id"])

    async def job(self, job_id: str) -> dict[str, Any]:
        answer: dict[str, Any] = (await self.call("GET", f"/v1/jobs/{job_id}", expect=200)).json()
        return answer

    async def wait_for(self, job_id: str, *states: str) -> dict[str, Any]:
        async def reached() -> dict[str, Any] | None:
            job = await self.job(job_id)
            return job if job["state"] in states else None

        return await eventually(reached, 30)
