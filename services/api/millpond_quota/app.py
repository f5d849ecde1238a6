"""The HTTP process of quota."""

from functools import partial

import httpx
from fastapi import FastAPI

from millpond_kernel.app import ServiceApp, build_app
from millpond_quota.routes import api_keys, reservations, tenants, virtual_pools
from millpond_quota.settings import Settings
from millpond_quota.store.snapshots import (
    snapshot_projects,
    snapshot_reservations,
    snapshot_tenants,
    snapshot_virtual_pools,
)


def create_app(settings: Settings | None = None, *, transport: httpx.AsyncBaseTransport | None = None) -> FastAPI:
    """The application; settings come from the environment unless given."""
    settings = settings or Settings()
    return build_app(
        ServiceApp(
            settings=settings,
            routers=(tenants.router, api_keys.router, api_keys.internal, virtual_pools.router, reservations.router),
            standstill="the other services learn of changed tenants, keys and limits later",
            snapshots={
                "tenants": snapshot_tenants,
                "projects": snapshot_projects,
                "virtual-pools": snapshot_virtual_pools,
                "reservations": snapshot_reservations,
            },
            issues=True,
            exchange=partial(api_keys.exchange, settings.token_seconds),
            transport=transport,
        )
    )
