"""The HTTP process of the autoscaler."""

import httpx
from fastapi import FastAPI

from millpond_autoscaler.routes import decisions, orders, policies, signals
from millpond_autoscaler.settings import Settings
from millpond_autoscaler.usecases.snapshots import list_policy_items
from millpond_kernel.app import ServiceApp, build_app


def create_app(settings: Settings | None = None, *, transport: httpx.AsyncBaseTransport | None = None) -> FastAPI:
    """The application; settings come from the environment unless given."""
    return build_app(
        ServiceApp(
            settings=settings or Settings(),
            routers=(policies.router, decisions.router, orders.router, signals.router),
            snapshots={"scaling-policies": list_policy_items},
            standstill="pools neither grow nor shrink; what runs is untouched",
            transport=transport,
        )
    )
