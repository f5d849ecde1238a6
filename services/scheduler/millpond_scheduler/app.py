"""The scheduler's HTTP application."""

import httpx
from fastapi import FastAPI

from millpond_contracts.ids import NodeId
from millpond_kernel.app import Kernel, ServiceApp, build_app
from millpond_kernel.db import SYSTEM
from millpond_scheduler.providers.bells import NodeBell, Waiters
from millpond_scheduler.providers.log_folder import LogFolder
from millpond_scheduler.routes import allocations, jobs, logs, plans, queues, tasks, usage, work
from millpond_scheduler.settings import Settings
from millpond_scheduler.usecases.mirror import Mirror
from millpond_scheduler.usecases.snapshots import SNAPSHOTS
from millpond_scheduler.usecases.work import list_ordered_nodes


def create_app(settings: Settings | None = None, *, transport: httpx.AsyncBaseTransport | None = None) -> FastAPI:
    """The application, with settings from the environment unless given."""
    chosen = settings or Settings()

    async def start(app: FastAPI, kernel: Kernel) -> None:
        async def list_ordered() -> list[NodeId]:
            async with kernel.database.begin(SYSTEM) as unit:
                return await list_ordered_nodes(unit)

        app.state.bell = NodeBell(kernel.redis, chosen.redis_prefix)
        app.state.mirror = Mirror(policy=chosen.policy(), max_age_seconds=chosen.plan_seconds)
        app.state.quarantine = chosen.quarantine()
        app.state.logs = LogFolder(chosen.log_folder)
        app.state.waiters = Waiters(kernel.redis, chosen.redis_prefix, list_ordered)
        app.state.waiters.start()
        kernel.long_polls.append(app.state.waiters.end_waits)

    async def stop(app: FastAPI, kernel: Kernel) -> None:
        await app.state.waiters.stop()

    return build_app(
        ServiceApp(
            settings=chosen,
            routers=[module.router for module in (jobs, tasks, logs, plans, allocations, queues, usage, work)],
            standstill="nothing new is placed and nothing is stopped when due; tasks run on",
            snapshots=SNAPSHOTS,
            on_start=start,
            on_stop=stop,
            transport=transport,
        )
    )
