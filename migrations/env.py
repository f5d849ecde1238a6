"""Alembic environment: one history for all schemas, run online through asyncpg as the owner of the tables."""

import asyncio
import importlib

from alembic import context
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from millpond_contracts.events import PUBLISHERS
from millpond_kernel.migrate import OWNER

target_metadata = [importlib.import_module(f"millpond_{name}.store.tables").metadata for name in PUBLISHERS]


def _include_name(name: str | None, kind: str, parents: object) -> bool:
    return name in PUBLISHERS if kind == "schema" else True


def _run(connection: Connection) -> None:
    connection.execute(text(f"SET ROLE {OWNER}"))
    # Whoever comes after a migration that waits for a lock waits too: so it waits briefly and is tried again. Less than
    # PostgreSQL's deadlock_timeout of a second, so that it is the migration that gives way and never a service.
    connection.execute(text("SET lock_timeout = '500ms'"))
    connection.commit()
    context.configure(
        connection=connection,
        target_metadata=target_metadata,
        include_schemas=True,
        include_name=_include_name,
        version_table_schema="public",
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


async def _run_online() -> None:
    url = str(context.config.attributes["owner_url"]).replace("postgresql://", "postgresql+asyncpg://", 1)
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(_run)
        await connection.commit()
    await engine.dispose()


asyncio.run(_run_online())
