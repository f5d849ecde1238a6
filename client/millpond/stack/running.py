"""Starting, keeping and stopping the Millpond stack of this machine: what `millpond up` does."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from millpond.stack.assembly import (
    PRELOADED,
    Assembly,
    choose_service_user,
    stack_processes,
)
from millpond.stack.engines import Engine
from millpond.stack.errors import StackError
from millpond.stack.joining import join_this_machine, start_simulated_nodes
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
                await join_this_machine(assembly, supervisor)
            if options.simulate:
                tell("starting the simulated nodes")
                await start_simulated_nodes(assembly, supervisor)
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
