"""This machine as a node of its own stack: a join token, the agent, and the wait until its pool counts it."""

import asyncio
import time
from collections.abc import Mapping
from types import MappingProxyType

import httpx

from millpond.stack.assembly import Assembly, agent_folders, agent_process, fleet_process
from millpond.stack.engines import read_tail
from millpond.stack.errors import StackError
from millpond.stack.supervisor import Supervisor

_NODE_TIMEOUT_SECONDS = 60.0
_PAUSE_SECONDS = 0.1
_HOPELESS_RESTARTS = 4
# Nodes may be described as long as the stack runs; each start makes another token.
_FLEET_TOKEN_SECONDS = 31_536_000


async def join_this_machine(assembly: Assembly, supervisor: Supervisor) -> None:
    """Starts the agent under the supervisor; returns when this machine takes work.

    Raises:
        StackError: it did not in time; the message carries the end of the agent's log.
    """
    state, _ = agent_folders(assembly.paths, assembly.user)
    headers = {"Authorization": f"Bearer {assembly.keys.operator_key}"}
    async with httpx.AsyncClient(base_url=assembly.options.url, headers=headers, timeout=10) as client:
        token = None if (state / "node.json").exists() else await make_join_token(client)
        supervisor.add([agent_process(assembly, token)])
        await _wait_for_node(client, assembly, supervisor)


async def start_simulated_nodes(assembly: Assembly, supervisor: Supervisor) -> None:
    """Starts the process of the simulated nodes under the supervisor; they boot and join in their own time.

    Raises:
        StackError: the registry gave no join token in time.
    """
    headers = {"Authorization": f"Bearer {assembly.keys.operator_key}"}
    async with httpx.AsyncClient(base_url=assembly.options.url, headers=headers, timeout=10) as client:
        token = await make_join_token(client, {"expires_in_seconds": _FLEET_TOKEN_SECONDS})
    supervisor.add([fleet_process(assembly, token)])


async def make_join_token(
    client: httpx.AsyncClient,
    spec: Mapping[str, int] = MappingProxyType({"expires_in_seconds": 3600, "max_uses": 1}),
    timeout_seconds: float = _NODE_TIMEOUT_SECONDS,
) -> str:
    """A token, by default for one machine. A stack that has only just started may need several tries.

    Raises:
        StackError: the registry gave none in time.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            response = await client.post(
                "/v1/join-tokens",
                json=dict(spec),
                headers={"Idempotency-Key": f"up-{time.time_ns()}"},
            )
        except httpx.HTTPError as error:
            answer = f"{type(error).__name__} {error}"
        else:
            if response.status_code == 201:
                return str(response.json()["token"])
            answer = f"{response.status_code} {response.text[:300]}"
        if time.monotonic() > deadline:
            raise StackError(f"the registry gave no join token: {answer}")
        await asyncio.sleep(_PAUSE_SECONDS)


async def has_capacity(client: httpx.AsyncClient) -> bool:
    """Says whether a node takes work and its pool counts it, so that limits may be given on it at once."""
    try:
        nodes = await client.get("/v1/nodes")
        ready = [node for node in nodes.json()["items"] if node["schedulable"]] if nodes.status_code == 200 else []
        if not ready:
            return False
        figures = await client.get(f"/v1/pools/{ready[0]['pool_id']}/capacity")
    except httpx.HTTPError:
        return False  # a busy machine did not answer in time; it is asked again
    return figures.status_code == 200 and any(host["available"] > 0 for host in figures.json()["hosts"])


async def _wait_for_node(client: httpx.AsyncClient, assembly: Assembly, supervisor: Supervisor) -> None:
    log = assembly.paths.logs / "agent.log"
    deadline = time.monotonic() + _NODE_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if await has_capacity(client):
            return
        agent = supervisor.status.find("agent")
        if agent is not None and agent.restarts >= _HOPELESS_RESTARTS:
            raise StackError(f"the node agent ends again and again. The end of {log}:\n{read_tail(log)}")
        await asyncio.sleep(_PAUSE_SECONDS)
    raise StackError(
        f"this machine did not become ready as a node within {_NODE_TIMEOUT_SECONDS:.0f} s."
        f" The end of {log}:\n{read_tail(log)}"
    )
