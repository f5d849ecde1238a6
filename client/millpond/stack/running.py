"""Starting, keeping and stopping the Millpond stack of this machine: what `millpond up` does."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from millpond.stack.assembly import (
    PRELOADED,
    Assembly,
    agent_folders,
    agent_process,
    choose_service_user,
    stack_processes,
)
from millpond.stack.engines import Engine, read_tail
from millpond.stack.errors import StackError
from millpond.stack.keys import SERVICES, load_keys, operator_key_file, write_environment
from millpond.stack.launchers import ForkLauncher, ProgramLauncher
from millpond.stack.lock import StackLock
from millpond.stack.options import StackOptions
from millpond.stack.paths import StackPaths, locate_stack
from millpond.stack.ports import HeldPorts, is_free
from millpond.stack.postgres import PostgresEngine
from millpond.stack.supervisor import Supervisor
from millpond.stack.users import SystemUser, find_stack_user
from millpond.stack.valkey import ValkeyEngine

READY_TIMEOUT_SECONDS = 120.0
_NODE_TIMEOUT_SECONDS = 60.0
_HOPELESS_RESTARTS = 4


@dataclass(frozen=True, slots=True)
class RunningStack:
    """A stack whose processes are ready, as seen by what is run on top of it."""

    options: StackOptions
    paths: StackPaths
    operator_key: str
    operator_key_file: Path
    seconds_to_ready: float


OnReady = Callable[[RunningStack], Awaitable[None]]


async def run_stack(options: StackOptions, on_ready: OnReady, tell: Callable[[str], None]) -> None:
    """Runs the stack until it is told to stop.

    Args:
        options: What was chosen.
        on_ready: Awaited once everything, this machine's node included, is ready.
        tell: Gets a line for a person at each step.

    Raises:
        StackError: it cannot be started; nothing is left running.
    """
    began = time.monotonic()
    user = find_stack_user()
    paths = locate_stack(name=options.name, data_folder=options.data_folder, user=user)
    paths.prepare(user)
    with StackLock(paths.lock_file), HeldPorts() as ports:
        if not is_free(options.port):
            raise StackError(f"port {options.port} is in use; choose another with --port")
        assembly, engines = await asyncio.to_thread(_assemble, options, paths, ports, user, tell)
        supervisor = Supervisor(status_file=paths.status_file, fork=_forks(assembly))

        async def become_ready() -> None:
            if options.join_node:
                tell("joining this machine as a node")
                await _join_this_machine(assembly, supervisor)
            await on_ready(
                RunningStack(
                    options,
                    paths,
                    assembly.keys.operator_key,
                    operator_key_file(paths),
                    time.monotonic() - began,
                )
            )

        tell("starting the services")
        await supervisor.run(
            stack_processes(assembly, engines), on_ready=become_ready, ready_timeout_seconds=READY_TIMEOUT_SECONDS
        )


def _assemble(
    options: StackOptions, paths: StackPaths, ports: HeldPorts, user: SystemUser | None, tell: Callable[[str], None]
) -> tuple[Assembly, tuple[Engine, ...]]:
    service_user = choose_service_user(user)
    keys = load_keys(paths, service_user)
    engines: list[Engine] = []
    if options.database_url is None:
        engines.append(PostgresEngine(paths, ports.take(), user))
    if options.redis_url is None:
        engines.append(ValkeyEngine(paths, ports.take(), user))
    for engine in engines:
        tell(f"preparing {engine.name}")
        engine.prepare()
    urls = {engine.name: engine.url for engine in engines}
    assembly = Assembly(
        options=options,
        paths=paths,
        keys=keys,
        database_url=options.database_url or urls["postgres"],
        redis_url=options.redis_url or urls["valkey"],
        user=service_user,
        internal_ports=_choose_internal_ports(ports, options.split),
    )
    owner = {"MILLPOND_OWNER_DATABASE_URL": assembly.database_url}
    write_environment(paths, assembly.environment(*SERVICES) | owner)
    return assembly, tuple(engines)


def _choose_internal_ports(ports: HeldPorts, split: bool) -> dict[str, int]:
    """Service -> loopback port: one for all in a compact stack, one each in a split one."""
    if split:
        return {service: ports.take() for service in SERVICES}
    return dict.fromkeys(SERVICES, ports.take())


def _forks(assembly: Assembly) -> Callable[[ProgramLauncher], ForkLauncher]:
    def make(programs: ProgramLauncher) -> ForkLauncher:
        return ForkLauncher(
            programs,
            PRELOADED,
            environment=assembly.environment(),
            folder=assembly.paths.work,
            log_file=assembly.paths.logs / "forkserver.log",
        )

    return make


async def _join_this_machine(assembly: Assembly, supervisor: Supervisor) -> None:
    state, _ = agent_folders(assembly.paths, assembly.user)
    headers = {"Authorization": f"Bearer {assembly.keys.operator_key}"}
    async with httpx.AsyncClient(base_url=assembly.options.url, headers=headers, timeout=10) as client:
        token = None if (state / "node.json").exists() else await _make_join_token(client)
        supervisor.add([agent_process(assembly, token)])
        await _wait_for_node(client, assembly, supervisor)


async def _make_join_token(client: httpx.AsyncClient) -> str:
    deadline = time.monotonic() + _NODE_TIMEOUT_SECONDS
    while True:
        response = await client.post(
            "/v1/join-tokens",
            json={"expires_in_seconds": 3600, "max_uses": 1},
            headers={"Idempotency-Key": f"up-{time.time_ns()}"},
        )
        if response.status_code == 201:
            return str(response.json()["token"])
        if time.monotonic() > deadline:
            raise StackError(f"the registry gave no join token: {response.status_code} {response.text[:300]}")
        await asyncio.sleep(0.1)


async def _has_capacity(client: httpx.AsyncClient) -> bool:
    """Says whether a node takes work and its pool counts it, so that limits may be given on it at once."""
    nodes = await client.get("/v1/nodes")
    ready = [node for node in nodes.json()["items"] if node["schedulable"]] if nodes.status_code == 200 else []
    if not ready:
        return False
    figures = await client.get(f"/v1/pools/{ready[0]['pool_id']}/capacity")
    return figures.status_code == 200 and any(host["available"] > 0 for host in figures.json()["hosts"])


async def _wait_for_node(client: httpx.AsyncClient, assembly: Assembly, supervisor: Supervisor) -> None:
    log = assembly.paths.logs / "agent.log"
    deadline = time.monotonic() + _NODE_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if await _has_capacity(client):
            return
        agent = supervisor.status.find("agent")
        if agent is not None and agent.restarts >= _HOPELESS_RESTARTS:
            raise StackError(f"the node agent ends again and again. The end of {log}:\n{read_tail(log)}")
        await asyncio.sleep(0.1)
    raise StackError(
        f"this machine did not become ready as a node within {_NODE_TIMEOUT_SECONDS:.0f} s."
        f" The end of {log}:\n{read_tail(log)}"
    )
