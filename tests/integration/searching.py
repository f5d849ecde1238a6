"""Looks for words in everything that is kept: all tables of all services, and all that Redis holds."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
from redis.asyncio import Redis

# API keys, join tokens, signed tokens and private keys, as they are written.
SECRETS = re.compile(r"mp_[0-9a-z]{26}_[0-9a-f]{64}|mpj_[\w-]{43}|eyJ[\w-]+\.eyJ[\w-]+\.[\w-]+|PRIVATE KEY", re.ASCII)
_TABLES = """
SELECT format('%I.%I', n.nspname, c.relname) AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND n.nspname IN ('quota', 'registry', 'scheduler', 'billing', 'autoscaler')
"""
_READS: dict[str, Callable[[Redis, str], Awaitable[object]]] = {
    "string": lambda redis, key: redis.get(key),
    "hash": lambda redis, key: redis.hgetall(key),
    "list": lambda redis, key: redis.lrange(key, 0, -1),
    "set": lambda redis, key: redis.smembers(key),
    "zset": lambda redis, key: redis.zrange(key, 0, -1, withscores=True),
}


async def tables_holding(owner: asyncpg.Connection, pattern: str) -> set[str]:
    """The tables with a row in which the pattern is found.

    Args:
        owner: a connection that sees every row.
        pattern: a regular expression that PostgreSQL and Python read alike.
    """
    found = set()
    for row in await owner.fetch(_TABLES):
        if await owner.fetchval(f"SELECT count(*) FROM {row['name']} t WHERE to_jsonb(t)::text ~ $1", pattern):
            found.add(row["name"])
    return found


async def redis_texts(url: str, prefix: str) -> AsyncIterator[tuple[str, str]]:
    """Every key below the prefix with all that it holds, as text; a stream gives a text for each entry."""
    redis = Redis.from_url(url, decode_responses=True, encoding_errors="replace")
    try:
        async for key in redis.scan_iter(match=f"{prefix}*"):
            name, kind = str(key), str(await redis.type(key))
            if kind == "stream":
                for _, fields in await redis.xrange(name) or ():
                    yield name, repr(fields)
            else:
                yield name, repr(await _READS[kind](redis, name))
    finally:
        await redis.aclose()
