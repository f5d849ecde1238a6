"""Which processes make a Millpond stack, in what environment, and what needs what.

Compact: one HTTP process for all services, one worker process for registry, quota, billing and autoscaler, the
scheduler's worker, Celery, the agent. Split: every service's HTTP and worker process on its own behind a gateway, as in
containers.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from millpond.stack.engines import Engine
from millpond.stack.keys import SERVICES, StackKeys
from millpond.stack.options import StackOptions
from millpond.stack.paths import StackPaths
from millpond.stack.ports import LOOPBACK
from millpond.stack.processes import ProcessSpec, ReadyProbe, RestartPolicy, engine_process, http_ready, python_command
from millpond.stack.users import SystemUser, find_closed_python_folder, make_open_folder, make_private_folder

# Imported once by the fork server and shared by every process that is forked from it.
PRELOADED = (
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
    "asyncpg",
    "redis.asyncio",
    "pydantic_settings",
    "httpx",
    "joserfc.jwt",
    "prometheus_client",
    "structlog",
    "millpond_contracts.events",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
    "celery.bin.celery",
    "celery.concurrency.solo",
    "celery.events.state",
    "kombu.transport.redis",
    "millpond_kernel.app",
    "millpond_kernel.worker",
    *(f"millpond_{service}.{part}" for service in SERVICES for part in ("app", "worker")),
)
# Workers that share one process in a compact stack; the scheduler's stands alone, since it plans.
_SHARED_WORKERS = ("registry", "quota", "billing", "autoscaler")
# Those with background work, by name: one process does it for all.
_CELERY_SERVICES = ("billing", "scheduler")


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything the specifications are made from.

    Attributes:
        database_url: The owner's URL.
        redis_url: The URL of Redis.
        user: As whom the services run; None = as this process.
        internal_ports: Service -> loopback port where other services reach it.
    """

    options: StackOptions
    paths: StackPaths
    keys: StackKeys
    database_url: str
    redis_url: str
    user: SystemUser | None
    internal_ports: Mapping[str, int]

    def environment(self, *services: str) -> dict[str, str]:
        """The environment of a process that hosts these services: their own secrets and nobody else's."""
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.paths.work),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "PYTHONUNBUFFERED": "1",
            # NumPy is used for integers; the threads that it would start at import could not be forked.
            "OPENBLAS_NUM_THREADS": "1",
            "MILLPOND_REDIS_URL": self.redis_url,
            "MILLPOND_SCHEDULER_LOG_FOLDER": str(self.paths.work / "task-logs"),
            "MILLPOND_BILLING_EXPORT_FOLDER": str(self.paths.work / "exports"),
            "MILLPOND_AUTOSCALER_SIMULATED_FOLDER": str(self.paths.fleet / "orders"),
        }
        environment |= {
            f"MILLPOND_{name.upper()}_URL": f"http://{LOOPBACK}:{port}" for name, port in self.internal_ports.items()
        }
        for service in services:
            environment[f"MILLPOND_{service.upper()}_DATABASE_URL"] = self.service_database_url(service)
            environment[f"MILLPOND_{service.upper()}_SERVICE_KEY"] = self.keys.service_keys[service]
        return environment | self.options.settings

    def service_database_url(self, service: str) -> str:
        """The database URL of a service's own login role."""
        parts = urlsplit(self.database_url)
        host = parts.netloc.rpartition("@")[2]
        credentials = f"millpond_{service}:{quote(self.keys.passwords[service])}"
        return urlunsplit(parts._replace(netloc=f"{credentials}@{host}"))

    def service(
        self,
        name: str,
        *argv: str,
        services: tuple[str, ...],
        needs: tuple[str, ...] = ("bootstrap",),
        ready: ReadyProbe | None = None,
    ) -> ProcessSpec:
        """The specification of a process that hosts services."""
        return ProcessSpec(
            name=name,
            argv=argv,
            environment=self.environment(*services),
            folder=self.paths.work,
            log_file=self.paths.logs / f"{name}.log",
            user=self.user,
            needs=needs,
            ready=ready,
            preloaded=True,
            stop_timeout_seconds=15.0,
        )

    def step(self, name: str, module: str, needs: tuple[str, ...], secrets: Mapping[str, str]) -> ProcessSpec:
        """The specification of a step that runs once, with all services' secrets and some of its own."""
        spec = self.service(name, *python_command(module), services=SERVICES, needs=needs)
        return replace(spec, restart=RestartPolicy.ONCE, environment={**spec.environment, **secrets})


def choose_service_user(user: SystemUser | None) -> SystemUser | None:
    """As whom Python processes run: like the engines, unless Python itself lies where that user may not go."""
    return None if find_closed_python_folder(user) is not None else user


def stack_processes(assembly: Assembly, engines: tuple[Engine, ...]) -> list[ProcessSpec]:
    """All processes but the node agent, which needs a running registry to join."""
    paths = assembly.paths
    names = tuple(engine.name for engine in engines)
    services = _split(assembly) if assembly.options.split else _compact(assembly)
    services.append(
        assembly.service(
            "celery",
            *python_command("celery", "-A", "millpond_kernel.celery_app", "worker"),
            *("--queues", "celery,scheduler"),
            *("--pool", "solo", "--loglevel", "warning", "--without-gossip", "--without-mingle", "--without-heartbeat"),
            services=_CELERY_SERVICES,
        )
    )
    services[-1] = replace(
        services[-1],
        environment={**services[-1].environment, "MILLPOND_CELERY_SERVICES": ",".join(_CELERY_SERVICES)},
    )
    return [
        *(engine_process(engine, paths.logs / f"{engine.name}.log") for engine in engines),
        *_first_steps(assembly, names),
        # What a process needs also stops after it: the engines outlive all that writes to them.
        *(replace(spec, needs=(*names, *spec.needs)) for spec in services),
    ]


def _first_steps(assembly: Assembly, engines: tuple[str, ...]) -> list[ProcessSpec]:
    owner = {"MILLPOND_OWNER_DATABASE_URL": assembly.database_url}
    operator = {"MILLPOND_OPERATOR_KEY": assembly.keys.operator_key}
    return [
        assembly.step("migrate", "millpond_kernel.migrate", engines, owner),
        assembly.step("bootstrap", "millpond_quota.bootstrap", ("migrate",), operator),
    ]


def _compact(assembly: Assembly) -> list[ProcessSpec]:
    options, internal = assembly.options, next(iter(assembly.internal_ports.values()))
    where = ("--host", options.listen, "--port", str(options.port), "--internal-port", str(internal))
    http = python_command("millpond_kernel.serve", "http", "--services", ",".join(SERVICES), *where)
    shared = python_command("millpond_kernel.serve", "worker", "--services", ",".join(_SHARED_WORKERS))
    scheduler = python_command("millpond_kernel.serve", "worker", "--services", "scheduler")
    ready = http_ready(f"{options.url}/readyz/quota")
    return [
        assembly.service("http", *http, services=SERVICES, ready=ready),
        assembly.service("worker", *shared, services=_SHARED_WORKERS),
        assembly.service("worker-scheduler", *scheduler, services=("scheduler",)),
    ]


def _split(assembly: Assembly) -> list[ProcessSpec]:
    options, specs = assembly.options, []
    for service, port in assembly.internal_ports.items():
        http = python_command("millpond_kernel.serve", "http", "--services", service, "--port", str(port))
        worker = python_command("millpond_kernel.serve", "worker", "--services", service)
        ready = http_ready(f"http://{LOOPBACK}:{port}/readyz/{service}")
        specs.append(assembly.service(f"http-{service}", *http, services=(service,), ready=ready))
        specs.append(assembly.service(f"worker-{service}", *worker, services=(service,)))
    upstreams = [f"{service}=http://{LOOPBACK}:{port}" for service, port in assembly.internal_ports.items()]
    gateway = python_command(
        "millpond_kernel.gateway", "--host", options.listen, "--port", str(options.port), *upstreams
    )
    ready = http_ready(f"{options.url}/readyz/quota")
    behind = tuple(f"http-{service}" for service in assembly.internal_ports)
    specs.append(assembly.service("gateway", *gateway, services=(), ready=ready, needs=behind))
    return specs


def agent_process(assembly: Assembly, join_token: str | None) -> ProcessSpec:
    """The node agent of this machine. As root it stays root, to give each task a user of its own."""
    state, work = agent_folders(assembly.paths, assembly.user)
    return _agent(assembly, "agent", state, join_token, ("--work-dir", str(work)))


def fleet_process(assembly: Assembly, join_token: str) -> ProcessSpec:
    """The simulated nodes. It stays this user's, who named the descriptions and may read them."""
    state, orders = fleet_folders(assembly.paths, assembly.user)
    paths = [word for path in (*assembly.options.simulate, str(orders)) for word in ("--simulate", path)]
    return _agent(assembly, "fleet", state, join_token, paths)


def _agent(assembly: Assembly, name: str, state: Path, join_token: str | None, arguments: Sequence[str]) -> ProcessSpec:
    environment = {
        key: value
        for key, value in assembly.environment().items()
        if not key.endswith(("_URL", "_FOLDER"))  # an agent knows the base URL and its own folders only
    }
    if join_token is not None:
        environment["MILLPOND_JOIN_TOKEN"] = join_token
    return ProcessSpec(
        name=name,
        argv=python_command(
            "millpond_node_agent.main",
            *("run", "--url", assembly.options.url, "--state-dir", str(state), *arguments),
            *(("--stop-tasks",) if assembly.options.stop_tasks else ()),
        ),
        environment=environment,
        folder=state,
        log_file=assembly.paths.logs / f"{name}.log",
        # It stops first, so that it can still tell how its tasks ended.
        needs=("gateway" if assembly.options.split else "http",),
        stop_timeout_seconds=40.0,
    )


def agent_folders(paths: StackPaths, user: SystemUser | None) -> tuple[Path, Path]:
    """Where this machine's agent keeps its state (0700) and where tasks have their work folders.

    Tasks run as users of their own, so the work folders of a root stack lie beside its private folder, not inside it.
    """
    state = paths.folder / "agent"
    state.mkdir(mode=0o700, exist_ok=True)
    work = tasks_folder(paths)
    if os.geteuid() == 0:
        make_open_folder(work)
        work.chmod(0o711)
    else:
        work.mkdir(mode=0o700, exist_ok=True)
    return state, work


def fleet_folders(paths: StackPaths, user: SystemUser | None) -> tuple[Path, Path]:
    """Where simulated nodes keep who they are, and where the services may order more of them."""
    make_private_folder(paths.fleet, user)
    state = paths.fleet / "state"
    state.mkdir(mode=0o700, exist_ok=True)
    return state, make_private_folder(paths.fleet / "orders", user)


def tasks_folder(paths: StackPaths) -> Path:
    """The folder in which tasks have their work folders; makes nothing."""
    return paths.folder.with_name(f"{paths.folder.name}-tasks") if os.geteuid() == 0 else paths.work / "tasks"
