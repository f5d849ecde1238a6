"""Billing over HTTP: prices, statements, charges, exports, as an operator and as a tenant see them."""

import pytest

from tests.integration.databases import MigratedDatabase
from tests.integration.services import eventually, run_services

pytestmark = pytest.mark.integration


async def test_service_when_started_then_ready_with_example_prices(migrated: MigratedDatabase) -> None:
    async with run_services(migrated, ["quota", "billing"]) as services:
        operator = services.as_key()

        async def listed() -> bool:
            items = (await operator("GET", "/v1/price-books", expect=200)).json()["items"]
            return [item["example"] for item in items] == [True]

        await eventually(listed)
        health = (await operator("GET", "/healthz/billing")).json()
        assert health["ready"]
