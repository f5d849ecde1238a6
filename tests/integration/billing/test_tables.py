"""The tables that queries are written against are those that the migrations made."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from millpond_billing.store.tables import metadata
from tests.integration.databases import MigratedDatabase, with_database

pytestmark = pytest.mark.integration


def _differences(connection: Connection) -> list[object]:
    options = {
        "include_schemas": True,
        "include_name": lambda name, kind, parents: kind != "schema" or name == "billing",
        "compare_server_default": False,
    }
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


async def test_tables_when_compared_with_the_migrated_schema_then_equal(migrated: MigratedDatabase) -> None:
    url = with_database(migrated.owner_url, migrated.name).replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            assert await connection.run_sync(_differences) == []
    finally:
        await engine.dispose()
