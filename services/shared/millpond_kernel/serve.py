"""Runs services as processes: `python -m millpond_kernel.serve http|worker --services registry,quota …`.

One process may host several services: `http` joins their applications by path, `worker` runs their workers side by
side.
Services are loaded by name (`millpond_<service>.app:create_app`, `millpond_<service>.worker:create_worker`).
"""

import argparse
import asyncio
import gc
import importlib
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from prometheus_client import start_http_server
from starlette.types import ASGIApp, Receive, Scope, Send

from millpond_contracts.errors import ErrorCode
from millpond_contracts.routes import service_for_internal_path, service_for_path
from millpond_kernel.border import Border
from millpond_kernel.heads import BoundedHead
from millpond_kernel.observability import configure_logging, log
from millpond_kernel.problem import problem_response
from millpond_kernel.settings import ServiceSettings
from millpond_kernel.worker import ServiceWorker, run_worker


def _service_of(path: str) -> str | None:
    """The service of a public path, or of an internal one."""
    return service_for_internal_path(path) if path.startswith("/internal/") else service_for_path(path)


async def _answer_nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    response = problem_response(ErrorCode.ROUTE_NOT_FOUND, f"There is no route {scope['path'][:200]}.")
    await response(scope, receive, send)


_NOWHERE = Border(_answer_nowhere, "none", max_body_bytes=65_536)


class Joined:
    """Several applications as one, by the prefix table.

    With an internal port, `/internal/` is answered there alone; without one, what stands in front must not pass it on.
    """

    def __init__(self, apps: dict[str, FastAPI], internal_port: int | None = None) -> None:
        self._apps = apps
        self._internal_port = internal_port

    def add(self, apps: Mapping[str, FastAPI]) -> None:
        """Adds applications before they are started; for those that need this object to be made."""
        self._apps.update(apps)

    def _app_for(self, scope: Scope) -> ASGIApp | None:
        path: str = scope["path"]
        if path.startswith("/internal/") and self._internal_port not in (None, (scope.get("server") or ("", 0))[1]):
            return None
        return self._apps.get(_service_of(path) or "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        await (self._app_for(scope) or _NOWHERE)(scope, receive, send)

    def end_waits(self) -> None:
        """Ends what waits for events in the applications that run."""
        for app in self._apps.values():
            if hasattr(app.state, "kernel"):
                app.state.kernel.end_waits()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All applications started; stopped in reverse order at the end."""
        async with AsyncExitStack() as stack:
            for app in self._apps.values():
                await stack.enter_async_context(app.router.lifespan_context(app))
            yield

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        started = False
        try:
            async with self.running():
                started = True
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
        except Exception as error:
            log.error("start_failed" if not started else "stop_failed", exc_info=error)
            kind = "lifespan.shutdown.failed" if started else "lifespan.startup.failed"
            await send({"type": kind, "message": f"{type(error).__name__}: {error}"})


def load_apps(services: Sequence[str], internal_port: int | None = None) -> Joined:
    """The joined application of the named services, with settings from the environment."""
    apps = {name: importlib.import_module(f"millpond_{name}.app").create_app() for name in services}
    return Joined(apps, internal_port)


def load_worker(service: str) -> ServiceWorker:
    """The worker of a service, with settings from the environment."""
    worker: ServiceWorker = importlib.import_module(f"millpond_{service}.worker").create_worker()
    return worker


async def _run_workers(workers: Sequence[ServiceWorker]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    gc.collect()
    gc.freeze()
    results = await asyncio.gather(*(_guarded(worker, stop) for worker in workers), return_exceptions=True)
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors:
        raise errors[0]


async def _guarded(worker: ServiceWorker, stop: asyncio.Event) -> None:
    try:
        await run_worker(worker, stop)
    except Exception as error:
        log.error("worker_failed", service=worker.settings.service, exc_info=error)
        stop.set()
        raise


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="millpond_kernel.serve", description=__doc__)
    parser.add_argument("kind", choices=("http", "worker"))
    parser.add_argument("--services", required=True, help="comma-separated names")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7070)
    parser.add_argument("--internal-port", type=int, help="loopback port that alone answers /internal/")
    parser.add_argument("--metrics-port", type=int, help="port on which a worker answers Prometheus (its only answer)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs until SIGTERM or SIGINT."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    services = [name for name in arguments.services.split(",") if name]
    _raise_file_limit()
    level, log_format = _log_settings()
    configure_logging(level, log_format)
    if arguments.kind == "worker":
        if arguments.metrics_port is not None:
            start_http_server(arguments.metrics_port, arguments.host)
        workers = [load_worker(name) for name in services]
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run_workers(workers))
        return
    _serve_http(load_apps(services, arguments.internal_port), arguments)


class _Server(uvicorn.Server):
    """Ends watches and long polls first, so that a stop takes no longer than the requests that do something."""

    def __init__(self, config: uvicorn.Config, app: Joined) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.end_waits()
        await super().shutdown(sockets)


def _serve_http(app: Joined, arguments: argparse.Namespace) -> None:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        # Above the agents' heartbeat period, so that a beat does not open a connection each time.
        http=BoundedHead,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=10,
        server_header=False,
        lifespan="on",
        backlog=2048,
    )
    sockets = [_listen(arguments.host, arguments.port)]
    if arguments.internal_port is not None:
        sockets.append(_listen("127.0.0.1", arguments.internal_port))
    server = _Server(config, app)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(server.serve(sockets=sockets))
    if not server.started:
        sys.exit(3)


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.set_inheritable(True)
    return listener


def _log_settings() -> tuple[str, str]:
    class _Log(ServiceSettings):
        database_url: Any = None

    settings = _Log()
    return settings.log_level, settings.log_format


def _loop_factory() -> Any:
    return importlib.import_module("uvloop").new_event_loop


if __name__ == "__main__":
    main()
