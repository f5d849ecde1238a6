"""The world of the scheduler's tests, on a migrated database of its own."""

from collections.abc import AsyncIterator

import pytest

from millpond_kernel.doorbell import connect_redis
from tests.integration.databases import MigratedDatabase
from tests.integration.scheduler.world import World


@pytest.fixture
async def world(migrated: MigratedDatabase) -> AsyncIterator[World]:
    database = migrated.database("scheduler", 8)
    await database.open()
    redis = connect_redis(migrated.redis_url)
    made = World(database, redis, migrated.redis_prefix)
    await made.open()
    yield made
    await redis.aclose()
    await made.database.close()
