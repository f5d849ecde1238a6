"""Databases for tests: engines found or started, one migrated template, a clone per test."""

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from millpond.stack.ephemeral import EphemeralEngines
from millpond_contracts.events import PUBLISHERS
from millpond_kernel.db import Database
from millpond_kernel.migrate import migrate, service_role

PASSWORD = "test-password"


@dataclass(frozen=True, slots=True)
class Engines:
    """URLs of the engines: PostgreSQL as an owner that may create roles and databases, and Redis."""

    postgres_url: str
    redis_url: str


def given_engines(environment: Mapping[str, str], stack: ExitStack) -> Engines:
    """The engines that the environment names, else containers when asked for, else the embedded ones."""
    postgres, redis = environment.get("MILLPOND_TEST_POSTGRES_URL"), environment.get("MILLPOND_TEST_REDIS_URL")
    if postgres and redis:
        return Engines(postgres, redis)
    if environment.get("MILLPOND_TEST_CONTAINERS"):
        from testcontainers.postgres import PostgresContainer
        from testcontainers.redis import RedisContainer

        server = stack.enter_context(PostgresContainer("postgres:18", driver=None))
        cache = stack.enter_context(RedisContainer("valkey/valkey:9"))
        address = f"{cache.get_container_host_ip()}:{cache.get_exposed_port(6379)}"
        return Engines(server.get_connection_url(), f"redis://{address}/0")
    engines = stack.enter_context(EphemeralEngines())
    return Engines(engines.postgres_url, engines.redis_url)


def with_database(url: str, name: str, user: str | None = None, password: str | None = None) -> str:
    """The URL with another database, and another user when given."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    netloc = f"{user}:{password}@{host}" if user else parts.netloc
    return urlunsplit(parts._replace(netloc=netloc, path=f"/{name}"))


@dataclass(frozen=True, slots=True)
class MigratedDatabase:
    """One test's database and Redis prefix."""

    name: str
    owner_url: str
    redis_url: str
    redis_prefix: str

    def url(self, service: str) -> str:
        """The URL of a service's login role."""
        return with_database(self.owner_url, self.name, service_role(service), PASSWORD)

    def database(self, service: str, pool_size: int = 4) -> Database:
        """The door of a service, not yet open."""
        return Database(service, self.url(service), pool_size=pool_size)

    @asynccontextmanager
    async def opened(self, service: str, pool_size: int = 4) -> AsyncIterator[Database]:
        """The open door of a service. It is closed however the block ends: a leak would fail another test."""
        database = self.database(service, pool_size)
        try:
            await database.open()
            yield database
        finally:
            await database.close()


async def make_template(owner_url: str, name: str) -> None:
    """Creates and migrates the template database."""
    await create(owner_url, name)
    await migrate(with_database(owner_url, name), dict.fromkeys(PUBLISHERS, PASSWORD))


async def clone(engines: Engines, template: str) -> MigratedDatabase:
    """A new database from the template."""
    name = f"mp_test_{uuid.uuid4().hex[:12]}"
    await _admin(engines.postgres_url, f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    return MigratedDatabase(name, with_database(engines.postgres_url, name), engines.redis_url, name)


async def create(owner_url: str, name: str) -> None:
    """Creates an empty database."""
    await _admin(owner_url, f'CREATE DATABASE "{name}"')


async def drop(owner_url: str, name: str) -> None:
    """Drops a database, ending what is still connected to it."""
    await _admin(owner_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


async def _admin(owner_url: str, statement: str) -> None:
    connection = await asyncpg.connect(owner_url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
