"""A real PostgreSQL and a real Valkey for every integration test, and a migrated database of its own for each.

Given `MILLPOND_TEST_POSTGRES_URL` (a role that may create roles and databases) and `MILLPOND_TEST_REDIS_URL` those are
used; else, with `MILLPOND_TEST_CONTAINERS=1`, testcontainers; else the embedded engines.
"""

import asyncio
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.integration.databases import Engines, MigratedDatabase, clone, drop, given_engines, make_template


@pytest.fixture(scope="session")
def engines() -> Iterator[Engines]:
    with ExitStack() as stack:
        yield given_engines(os.environ, stack)


@pytest.fixture(scope="session")
def template(engines: Engines) -> Iterator[str]:
    name = f"mp_template_{uuid.uuid4().hex[:8]}"
    asyncio.run(make_template(engines.postgres_url, name))
    yield name
    asyncio.run(drop(engines.postgres_url, name))


@pytest.fixture
def migrated(engines: Engines, template: str) -> Iterator[MigratedDatabase]:
    """A database at head, empty, with a Redis prefix of its own."""
    database = asyncio.run(clone(engines, template))
    yield database
    asyncio.run(drop(engines.postgres_url, database.name))
