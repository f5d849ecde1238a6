"""The part of the checker about events and audit: dense numbers, cursors at head, nothing parked, a whole chain."""

import hashlib
import json
from collections.abc import Collection
from typing import Any

import asyncpg

SCHEMAS = ("registry", "quota", "scheduler", "billing", "autoscaler")


async def list_consumers(connection: asyncpg.Connection) -> set[str]:
    """Every consumer that has a cursor, as `service.name`."""
    found = set()
    for schema in SCHEMAS:
        found |= {
            f"{schema}.{row['consumer']}" for row in await connection.fetch(f"SELECT consumer FROM {schema}.cursor")
        }
    return found


async def find_backlog(connection: asyncpg.Connection, ended: Collection[str] = frozenset()) -> list[str]:
    """What is still on its way: events without a number, consumers behind their publisher, audit rows not chained.

    `ended` are consumers, as `service.name`, that no process has any more.
    """
    waiting: list[str] = []
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        heads = {schema: await _head(connection, schema) for schema in SCHEMAS}
        for schema in SCHEMAS:
            for table in ("outbox", "audit"):
                unnumbered = await connection.fetchval(f"SELECT count(*) FROM {schema}.{table} WHERE seq IS NULL")
                waiting += [f"{schema}: {unnumbered} rows of {table} have no number"] if unnumbered else []
            rows = await connection.fetch(f"SELECT consumer, publisher, seq FROM {schema}.cursor")
            waiting += [
                f"{schema}.{row['consumer']} is at {row['seq']} of {heads[row['publisher']]} of {row['publisher']}"
                for row in rows
                if row["seq"] != heads[row["publisher"]] and f"{schema}.{row['consumer']}" not in ended
            ]
        unrated = await connection.fetchval("SELECT count(*) FROM billing.allocation_view WHERE unrated IS NOT NULL")
        waiting += [f"billing: {unrated} allocations are not rated"] if unrated else []
    return waiting


async def _head(connection: asyncpg.Connection, schema: str) -> int:
    return int(await connection.fetchval(f"SELECT last FROM {schema}.outbox_counter WHERE name = 'outbox'"))


async def check_delivery(connection: asyncpg.Connection, parked: frozenset[tuple[str, int]] = frozenset()) -> list[str]:
    """Findings of a quiet database; `parked` are the events, as (publisher, seq), that had to be parked."""
    findings: list[str] = []
    consumers, seen = 0, set[tuple[str, int]]()
    for schema in SCHEMAS:
        row = await connection.fetchrow(
            f"SELECT count(*) AS rows, coalesce(min(seq), 1) AS first, coalesce(max(seq), 0) AS last"
            f" FROM {schema}.outbox WHERE seq IS NOT NULL"
        )
        if (row["first"], row["last"]) != (1, row["rows"]):
            findings.append(f"{schema}: the outbox is not dense: {dict(row)}")
        findings += await _generation_order(connection, schema)
        letters = await connection.fetch(
            f"SELECT consumer, publisher, seq, error FROM {schema}.dead_letter WHERE replayed_at IS NULL"
        )
        found = {(letter["publisher"], letter["seq"]) for letter in letters}
        findings += [f"{schema}: parked {dict(one)}" for one in letters if (one["publisher"], one["seq"]) not in parked]
        seen |= found
        findings += await _audit_chain(connection, schema)
        consumers += await connection.fetchval(f"SELECT count(*) FROM {schema}.cursor")
    if consumers < len(SCHEMAS):
        findings.append(f"only {consumers} consumers have a cursor")
    findings += [f"{publisher}: event {seq} is broken and nobody parked it" for publisher, seq in parked - seen]
    return findings


async def _generation_order(connection: asyncpg.Connection, schema: str) -> list[str]:
    """An object's generation strictly rises with the sequence."""
    rows = await connection.fetch(
        "SELECT * FROM (SELECT seq, subject, type, generation,"
        " lag(generation) OVER (PARTITION BY subject ORDER BY seq) AS before"
        f" FROM {schema}.outbox WHERE seq IS NOT NULL) AS x WHERE generation <= before LIMIT 5"
    )
    return [f"{schema}: generation falls or stays: {dict(row)}" for row in rows]


async def _audit_chain(connection: asyncpg.Connection, schema: str) -> list[str]:
    previous, expected = b"", 1
    for row in await connection.fetch(f"SELECT * FROM {schema}.audit WHERE seq IS NOT NULL ORDER BY seq"):
        digest = hashlib.sha256(previous + _canonical(row).encode()).digest()
        if row["seq"] != expected or bytes(row["hash"]) != digest:
            return [f"{schema}: the audit chain breaks at {row['seq']}, expected row {expected}"]
        previous, expected = digest, expected + 1
    return []


def _canonical(row: asyncpg.Record) -> str:
    fields: dict[str, Any] = {
        name: row[name] for name in ("seq", "actor", "role", "action", "object", "before", "after", "request_id")
    }
    fields["at"] = row["at"].isoformat()
    fields["tenant_id"] = None if row["tenant_id"] is None else str(row["tenant_id"])
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
