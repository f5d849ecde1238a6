"""The connection pool of one service and the one door to its schema.

A service logs in as a role without any table rights (NOINHERIT). Every transaction is opened by `Database.begin`, which
takes the tenant's or the system's role for that transaction alone; a statement outside the door has no rights.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg

from millpond_contracts.ids import TenantId
from millpond_kernel.observability import log
from millpond_kernel.uow import UnitOfWork, UnitOfWorkOpen, unit_of_work_open


class DatabaseAway(ConnectionError):
    """PostgreSQL cannot be reached, or the connection was lost; whether a running commit happened is unknown."""


# What a lost, restarting, full or unreachable PostgreSQL looks like to whoever uses the door. InterfaceError and
# InternalClientError stand for a lost connection as well as for a mistake in our code: the door tells them apart and
# raises DatabaseAway for the former.
AWAY_ERRORS: tuple[type[Exception], ...] = (
    ConnectionError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.InsufficientResourcesError,
)
# Away, or refusing: what a part that only retries has to catch.
DATABASE_ERRORS: tuple[type[Exception], ...] = (*AWAY_ERRORS, OSError, asyncpg.PostgresError)


ACQUIRE_SECONDS = 5.0
COMMAND_SECONDS = 30.0
FULL_SECONDS = 60.0
_LOST_OR_WRONG = (asyncpg.InterfaceError, asyncpg.InternalClientError)


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
    """The pool of one service. `on_commit` is called after each commit that wrote events.

    `away_since` = when it stopped answering; None = it answers.
    """

    def __init__(self, service: str, url: str, *, pool_size: int = 8) -> None:
        self.service = service
        self.on_commit: Callable[[], None] = lambda: None
        self.away_since: datetime | None = None
        self._full: tuple[datetime, float] | None = None
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
                    timeout=ACQUIRE_SECONDS,
                    command_timeout=COMMAND_SECONDS,
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
                async with asyncio.timeout(3):
                    await self._pool.close()
            except TimeoutError:
                self._pool.terminate()
            self._pool = None

    def _entry(self, scope: Scope, lock_timeout_seconds: int | None) -> str:
        role = f"millpond_{self.service}_{'tenant' if isinstance(scope, TenantScope) else 'system'}"
        # One text for one round trip. What is rendered are integers, so nothing a caller sends can reach it.
        entry = f"BEGIN; SET LOCAL ROLE {role}"
        if lock_timeout_seconds is not None:
            entry += f"; SET LOCAL lock_timeout = {lock_timeout_seconds * 1000:d}"
        if isinstance(scope, TenantScope):
            entry += f"; SELECT set_config('app.tenant_id', '{scope.tenant_id.int:032x}', true)"
        return entry

    @asynccontextmanager
    async def begin(self, scope: Scope, *, lock_timeout_seconds: int | None = None) -> AsyncIterator[UnitOfWork]:
        """A unit of work: one transaction in `scope`, committed with its events at the end, rolled back on an error.

        Args:
            scope: Which rows it sees and writes.
            lock_timeout_seconds: How long a statement may wait for a lock; None = as the server says.

        Raises:
            UnitOfWorkOpen: the task already holds a unit of work (a second connection could deadlock the pool).
        """
        if unit_of_work_open():
            raise UnitOfWorkOpen("a unit of work is open in this task; pass it down instead of opening another")
        async with self._connection() as connection:
            await connection.execute(self._entry(scope, lock_timeout_seconds))
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

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection of the pool; a lost one, or one to be asked again, shows as DatabaseAway."""
        if self._pool is None:
            raise DatabaseAway(f"{self.service}: the database is not open")
        try:
            connection = await self._pool.acquire(timeout=ACQUIRE_SECONDS)
        except (OSError, *_LOST_OR_WRONG) as error:
            self._note_away(error)
            raise DatabaseAway(f"{self.service}: no connection to the database ({type(error).__name__})") from error
        try:
            yield connection
        except AWAY_ERRORS as error:
            self._note_away(error)
            raise
        except asyncpg.InvalidCachedStatementError as error:
            # A migration changed a table under a statement that was prepared before. It is forgotten now.
            raise DatabaseAway(f"{self.service}: the schema changed meanwhile, nothing was done") from error
        except _LOST_OR_WRONG as error:
            if _is_lost(connection):
                self._note_away(error)
                raise DatabaseAway(f"{self.service}: the connection to the database was lost") from error
            raise
        else:
            self.away_since = None
        finally:
            await self._release(connection)

    @property
    def full_since(self) -> datetime | None:
        """Since when it refuses writes for want of space; None when it refused none within the last minute."""
        return None if self._full is None or time.monotonic() - self._full[1] > FULL_SECONDS else self._full[0]

    def _note_away(self, error: Exception) -> None:
        now = datetime.now(UTC)
        if isinstance(error, asyncpg.DiskFullError):
            self._full = (self.full_since or now, time.monotonic())
        else:
            self.away_since = self.away_since or now

    async def _release(self, connection: asyncpg.Connection) -> None:
        if self._pool is None:
            return
        try:
            await self._pool.release(connection)
        except (OSError, asyncpg.PostgresError, *_LOST_OR_WRONG) as error:
            # The pool has thrown the connection away; the result of the transaction is known without it.
            log.debug("connection_dropped", service=self.service, error=type(error).__name__)

    async def now(self) -> datetime:
        """The database's clock: the authority of every instant."""
        async with self._connection() as connection:
            value: datetime = await connection.fetchval("SELECT clock_timestamp()")
        return value

    async def schema_revision(self) -> str | None:
        """The revision that the migrations reached, or None before the first."""
        async with self._connection() as connection:
            if await connection.fetchval("SELECT to_regclass('public.alembic_version')") is None:
                return None
            revision: Any = await connection.fetchval("SELECT version_num FROM public.alembic_version")
        return None if revision is None else str(revision)


def _is_lost(connection: asyncpg.Connection) -> bool:
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        # The pool has taken a dead connection out of the caller's hands.
        return True


async def _roll_back(connection: asyncpg.Connection) -> None:
    if _is_lost(connection) or not connection.is_in_transaction():
        return
    try:
        await asyncio.shield(connection.execute("ROLLBACK"))
    except Exception:  # whatever hindered it: a connection that may still be in a transaction is not used again
        with contextlib.suppress(asyncpg.InterfaceError):
            connection.terminate()
