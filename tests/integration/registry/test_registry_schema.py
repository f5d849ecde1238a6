"""The tables of the code are those that the migrations made."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from millpond_registry.store.tables import metadata
from tests.integration.databases import MigratedDatabase

pytestmark = pytest.mark.integration


async def test_tables_when_compared_with_the_database_then_equal(migrated: MigratedDatabase) -> None:
    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "include_name": lambda name, kind, _: name == "registry" if kind == "schema" else True,
            },
        )
        return list(compare_metadata(context, metadata))

    engine = create_async_engine(migrated.owner_url.replace("postgresql://", "postgresql+asyncpg://", 1))
    async with engine.connect() as connection:
        found = await connection.run_sync(differences)
    await engine.dispose()
    assert found == []
