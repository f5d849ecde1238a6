"""The connection pool of one service and the one door to its schema.

A service logs in as a role without any table rights (NOINHERIT). Every transaction is opened by `Database.begin`, which
takes the tenant's or the system's role for that transaction alone; a statement outside the door has no rights.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from millpond_contracts.ids import TenantId
from millpond_kernel.uow import UnitOfWork, UnitOfWorkOpen, unit_of_work_open

# What a lost, restarting or unreachable PostgreSQL looks like from asyncpg. InternalClientError is neither a
# PostgresError nor an InterfaceError; it is raised when the backend dies in the middle of a transaction.
AWAY_ERRORS: tuple[type[Exception], ...] = (
    ConnectionError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.InsufficientResourcesError,
)
# Away, or refusing: what a part that only retries has to catch.
DATABASE_ERRORS: tuple[type[Exception], ...] = (*AWAY_ERRORS, OSError, asyncpg.PostgresError)


@dataclass(frozen=True, slots=True)
class TenantScope:
    """Sees and writes rows of one tenant only."""

    tenant_id: TenantId


@dataclass(frozen=True, slots=True)
class SystemScope:
    """Sees all rows of the service: relay, consumers, loops, operator routes."""


SYSTEM = SystemScope()
Scope = TenantScope | SystemScope


async def _prepare_connection(connection: asyncpg.Connection) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


async def _reset_connection(connection: asyncpg.Connection) -> None:
    # Everything the door sets is local to its transaction, so there is nothing to reset but an open transaction.
    if connection.is_in_transaction():
        await connection.execute("ROLLBACK")


class UnsafeRole(RuntimeError):
    """The service's login role could bypass row-level security; the service refuses to start."""


class Database:
    """The pool of one service. `on_commit` is called after each commit that wrote events."""

    def __init__(self, service: str, url: str, *, pool_size: int = 8) -> None:
        self.service = service
        self.on_commit: Callable[[], None] = lambda: None
        self._url = url
        self._pool_size = pool_size
        self._pool: asyncpg.Pool | None = None

    async def open(self, wait_seconds: float = 0.0) -> None:
        """Connects, retrying for `wait_seconds`, and refuses a role that row-level security does not bind.

        Raises:
            UnsafeRole: the login role is a superuser or may bypass row-level security.
        """
        deadline = time.monotonic() + wait_seconds
        while True:
            try:
                self._pool = await asyncpg.create_pool(
                    self._url,
                    min_size=1,
                    max_size=self._pool_size,
                    init=_prepare_connection,
                    reset=_reset_connection,
                    timeout=5,
                    command_timeout=30,
                    server_settings={"application_name": f"millpond-{self.service}", "search_path": self.service},
                )
                break
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(0.2)
        async with self._pool.acquire() as connection:
            row = await connection.fetchrow(
                "SELECT rolsuper OR rolbypassrls AS unsafe FROM pg_roles WHERE rolname = current_user"
            )
        if row is None or row["unsafe"]:
            raise UnsafeRole(f"{self.service}: the database role must be neither superuser nor BYPASSRLS")

    async def close(self) -> None:
        """Closes every connection, waiting shortly for those in use."""
        if self._pool is not None:
            try:
                await asyncio.wait_for(self._pool.close(), 3)
            except TimeoutError:
                self._pool.terminate()
            self._pool = None

    def _entry(self, scope: Scope) -> str:
        role = f"millpond_{self.service}_{'tenant' if isinstance(scope, TenantScope) else 'system'}"
        if isinstance(scope, SystemScope):
            return f"BEGIN; SET LOCAL ROLE {role}"
        # The id is rendered from an integer, so nothing a caller sends can reach this text.
        tenant = f"{scope.tenant_id.int:032x}"
        return f"BEGIN; SET LOCAL ROLE {role}; SELECT set_config('app.tenant_id', '{tenant}', true)"

    @asynccontextmanager
    async def begin(self, scope: Scope) -> AsyncIterator[UnitOfWork]:
        """A unit of work: one transaction in `scope`, committed with its events at the end, rolled back on an error.

        Raises:
            UnitOfWorkOpen: the task already holds a unit of work (a second connection could deadlock the pool).
        """
        if self._pool is None:
            raise ConnectionError(f"{self.service}: the database is not open")
        if unit_of_work_open():
            raise UnitOfWorkOpen("a unit of work is open in this task; pass it down instead of opening another")
        async with self._pool.acquire(timeout=5) as connection:
            await connection.execute(self._entry(scope))
            unit = UnitOfWork(connection)
            with unit.entered():
                try:
                    yield unit
                    await unit.commit()
                except BaseException:
                    await _roll_back(connection)
                    raise
        if unit.wrote_events:
            self.on_commit()

    async def now(self) -> datetime:
        """The database's clock: the authority of every instant."""
        if self._pool is None:
            raise ConnectionError(f"{self.service}: the database is not open")
        async with self._pool.acquire(timeout=5) as connection:
            value: datetime = await connection.fetchval("SELECT clock_timestamp()")
        return value

    async def schema_revision(self) -> str | None:
        """The revision that the migrations reached, or None before the first."""
        if self._pool is None:
            raise ConnectionError(f"{self.service}: the database is not open")
        async with self._pool.acquire(timeout=5) as connection:
            if await connection.fetchval("SELECT to_regclass('public.alembic_version')") is None:
                return None
            revision: Any = await connection.fetchval("SELECT version_num FROM public.alembic_version")
        return None if revision is None else str(revision)


async def _roll_back(connection: asyncpg.Connection) -> None:
    try:
        if not connection.is_closed() and connection.is_in_transaction():
            await asyncio.shield(connection.execute("ROLLBACK"))
    except AWAY_ERRORS:
        connection.terminate()
