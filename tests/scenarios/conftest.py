"""One running set of services for all scenarios; each makes tenants and pools of its own, named after its file."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.integration.conftest import engines, template
from tests.integration.databases import Engines, clone, drop
from tests.integration.services import Services, run_services

__all__ = ["engines", "services", "template"]


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def services(
    engines: Engines,
    template: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Services]:
    """All services with their workers over one database."""
    folder = tmp_path_factory.mktemp("scenarios")
    migrated = await clone(engines, template)
    try:
        async with run_services(
            migrated,
            log_folder=folder / "logs",
            export_folder=folder / "exports",
            verdict_seconds=0.1,
            node_token_seconds=3600,
            capacity_interval_seconds=0.2,
            simulated_folder=folder / "orders",
            decide_seconds=0.5,
            signals_seconds=0.5,
            stock_out_seconds=600.0,
        ) as running:
            yield running
    finally:
        await drop(engines.postgres_url, migrated.name)
