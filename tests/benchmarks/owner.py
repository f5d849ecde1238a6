"""A stack's database as its owner sees it, and waiting until nothing is on its way in it."""

import json

import asyncpg

from tests.system.checker_delivery import find_backlog
from tests.system.stack import Stack
from tests.waiting import eventually

QUIET_SECONDS = 60.0


async def connect_owner(stack: Stack) -> asyncpg.Connection:
    """A connection that reads JSON columns as objects."""
    connection = await asyncpg.connect(stack.owner_url)
    await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    return connection


async def wait_until_quiet(connection: asyncpg.Connection, seconds: float = QUIET_SECONDS) -> None:
    """Waits until every event and audit row is numbered and every consumer has applied what there is."""

    async def is_quiet() -> bool:
        return not await find_backlog(connection)

    await eventually(is_quiet, seconds)
