"""The HTTP process of the registry."""

from collections.abc import Sequence

import httpx
from fastapi import FastAPI

from millpond_kernel.app import Kernel, ServiceApp, build_app
from millpond_kernel.db import SYSTEM
from millpond_kernel.gathering import Gatherer
from millpond_registry.clients.telemetry import TelemetryStream
from millpond_registry.routes import agent, devices, flavors, join_tokens, nodes, pools, snapshots
from millpond_registry.settings import Settings
from millpond_registry.store.heartbeats import SessionOf
from millpond_registry.usecases.beginnings import prepare
from millpond_registry.usecases.reports import Beat, note_heartbeats

# How long a heartbeat may wait for others, so that one transaction notes many.
GATHER_SECONDS = 0.05


async def _on_start(app: FastAPI, kernel: Kernel) -> None:
    settings = kernel.settings
    assert isinstance(settings, Settings)
    app.state.telemetry = TelemetryStream(kernel.redis, settings.redis_prefix, settings.telemetry_max_bytes)

    async def note(sessions: Sequence[SessionOf]) -> list[Beat | None]:
        async with kernel.database.begin(SYSTEM) as unit:
            return await note_heartbeats(unit, sessions)

    app.state.beats = Gatherer("heartbeats", note, GATHER_SECONDS)
    await prepare(kernel.database)


def create_app(settings: Settings | None = None, *, transport: httpx.AsyncBaseTransport | None = None) -> FastAPI:
    """The application; settings come from the environment unless given."""
    return build_app(
        ServiceApp(
            settings=settings or Settings(),
            routers=(
                agent.router,
                pools.router,
                nodes.router,
                devices.router,
                flavors.router,
                join_tokens.router,
            ),
            standstill="nodes that fall silent are not noticed, and capacity and pools stand still; tasks run on",
            snapshots={
                "nodes": snapshots.snapshot_nodes,
                "pools": snapshots.snapshot_pools,
                "flavors": snapshots.snapshot_flavors,
                "capacity": snapshots.snapshot_capacity,
            },
            issues=True,
            on_start=_on_start,
            transport=transport,
        )
    )
