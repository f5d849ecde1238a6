"""Machines for tests: inventories, devices, and an agent that speaks to the registry over HTTP with its own key."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from millpond_contracts.ids import AllocationId, JobId, TaskId, TenantId, VirtualPoolId
from millpond_contracts.resources import (
    Cpu,
    Device,
    DeviceHealth,
    DeviceMemory,
    NodeInventory,
    Topology,
)


def gpu(index: int = 0, *, identity: str | None = None, **fields: Any) -> Device:
    """An A100 80 GB as an agent reports it."""
    values: dict[str, Any] = {
        "identity": identity or f"nvidia/GPU-{index:04d}",
        "index": index,
        "vendor": "nvidia",
        "model": "NVIDIA A100-SXM4-80GB",
        "memory": DeviceMemory(usable_mib=81_920),
        "health": DeviceHealth.HEALTHY,
    }
    return Device(**{**values, **fields})


def inventory(devices: Sequence[Device] = (), **fields: Any) -> NodeInventory:
    """A machine with 8 cores and 16 GiB for jobs."""
    values: dict[str, Any] = {
        "boot_id": "boot-1",
        "hostname": "machine",
        "cpu": Cpu(arch="x86_64", logical=8),
        "memory_mib": 20_480,
        "allocatable_cpu_milli": 8_000,
        "allocatable_memory_mib": 16_384,
        "devices": tuple(devices),
        "topology": Topology(region="north", zone="north-a"),
    }
    return NodeInventory(**{**values, **fields})


def unpadded(raw: bytes) -> str:
    """Base64url without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@dataclass(slots=True)
class Agent:
    """One machine's side of the registry's protocol."""

    http: httpx.AsyncClient
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    node_id: str = ""
    token: str = ""
    sequence: int = 0

    @property
    def public_key(self) -> str:
        return unpadded(self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    async def send(self, method: str, path: str, body: Any, *, expect: int | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        response = await self.http.request(method, path, json=body, headers=headers)
        if expect is not None:
            assert response.status_code == expect, f"{method} {path}: {response.status_code} {response.text}"
        return response

    async def join(
        self, token: str, machine: NodeInventory, *, name: str = "machine", expect: int = 201, **fields: Any
    ) -> dict[str, Any]:
        body = {
            "token": token,
            "public_key": self.public_key,
            "name": name,
            "inventory": machine.model_dump(mode="json"),
            **fields,
        }
        answer = (await self.send("POST", "/v1/nodes/join", body, expect=expect)).json()
        self.node_id = answer.get("node_id", self.node_id)
        return dict(answer)

    async def open_session(self, *, boot_id: str = "boot-1", expect: int = 201) -> dict[str, Any]:
        self.token = ""
        challenge = await self.send("POST", "/v1/agent/challenges", {"node_id": self.node_id}, expect=201)
        nonce = challenge.json()["nonce"]
        answer = (await self.send("POST", "/v1/agent/sessions", self.signed(nonce, boot_id), expect=expect)).json()
        self.token = answer.get("token", "")
        self.sequence = 0
        return dict(answer)

    def signed(self, nonce: str, boot_id: str = "boot-1") -> dict[str, Any]:
        signature = self.key.sign(f"millpond-session:{self.node_id}:{nonce}".encode())
        return {
            "node_id": self.node_id,
            "nonce": nonce,
            "signature": unpadded(signature),
            "boot_id": boot_id,
            "agent_version": "1",
        }

    async def push(self, machine: NodeInventory, *, expect: int = 204) -> httpx.Response:
        self.sequence += 1
        body = {"sequence": self.sequence, "inventory": machine.model_dump(mode="json")}
        return await self.send("PUT", "/v1/agent/inventory", body, expect=expect)

    async def ready(self, *, expect: int = 204) -> httpx.Response:
        return await self.send("POST", "/v1/agent/ready", {"checks": {"cpu": "ok"}}, expect=expect)

    async def beat(self, *, expect: int = 200, **fields: Any) -> dict[str, Any]:
        body = {"boot_id": "boot-1", "monotonic_ms": 1000, "inventory_sequence": self.sequence, **fields}
        return dict((await self.send("POST", "/v1/agent/heartbeat", body, expect=expect)).json())

    async def become_ready(self, token: str, machine: NodeInventory, *, name: str = "machine") -> None:
        """The whole way from a bare machine to a node that takes work."""
        await self.join(token, machine, name=name)
        await self.open_session(boot_id=machine.boot_id)
        await self.push(machine)
        await self.ready()


def allocation(node: dict[str, Any], milli: Sequence[int] = (), **fields: Any) -> dict[str, Any]:
    """An allocation on a node as the scheduler tells it, with shares of the node's first devices."""
    shares = [
        {
            "device_id": device["device_id"],
            "identity": device["identity"],
            "vendor": device["vendor"],
            "index": device["index"],
            "flavor": device["flavor"],
            "milli": amount,
        }
        for device, amount in zip(node["devices"], milli, strict=False)
    ]
    return {
        "allocation_id": str(AllocationId.new()),
        "job_id": str(JobId.new()),
        "job_name": "job",
        "task_id": str(TaskId.new()),
        "group": "main",
        "index": 0,
        "attempt": 1,
        "tenant_id": str(TenantId.new()),
        "project_id": None,
        "virtual_pool_id": str(VirtualPoolId.new()),
        "pool_id": node["pool_id"],
        "node_id": node["node_id"],
        "cpu_milli": 1_000,
        "memory_mib": 1_024,
        "devices": shares,
        "price_version_id": None,
        "state": "bound",
        "epoch": 1,
        "bound_at": "2026-01-01T00:00:00Z",
        "generation": 1,
        **fields,
    }
