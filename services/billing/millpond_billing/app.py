"""The HTTP process of billing."""

import httpx
from fastapi import FastAPI

from millpond_billing.routes import charges, exports, prices, reconciliations, reports, statements
from millpond_billing.settings import Settings
from millpond_billing.usecases.prices import list_price_items
from millpond_kernel.app import Kernel, ServiceApp, build_app
from millpond_kernel.background import make_enqueue


def create_app(settings: Settings | None = None, *, transport: httpx.AsyncBaseTransport | None = None) -> FastAPI:
    """The application; settings come from the environment unless given."""
    chosen = settings or Settings()

    async def on_start(app: FastAPI, kernel: Kernel) -> None:
        app.state.enqueue = make_enqueue("billing", chosen.redis_url.get_secret_value(), chosen.redis_prefix)
        app.state.export_folder = chosen.export_folder

    return build_app(
        ServiceApp(
            settings=chosen,
            routers=(
                prices.router,
                statements.router,
                charges.router,
                exports.router,
                reports.router,
                reconciliations.router,
            ),
            standstill="charges, statements and exports come later; nothing that was held is lost",
            snapshots={"prices": list_price_items},
            on_start=on_start,
            transport=transport,
        )
    )
