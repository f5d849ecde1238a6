"""What a person runs by hand: parked events shown and replayed, views rebuilt, the audit trail verified."""

import asyncio
import json
import os
import sys

import pytest

from millpond_contracts.events.registry import CapacityDriftFound
from millpond_contracts.ids import EventId, PoolId
from millpond_kernel.db import SYSTEM
from tests.integration.databases import MigratedDatabase
from tests.integration.kernel.stage import run_as_owner

pytestmark = pytest.mark.integration


async def run(migrated: MigratedDatabase, module: str, *arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"millpond_kernel.{module}",
        *arguments,
        env={
            **os.environ,
            "MILLPOND_QUOTA_DATABASE_URL": migrated.url("quota"),
            "MILLPOND_REDIS_URL": migrated.redis_url,
            "MILLPOND_REGISTRY_URL": "http://127.0.0.1:9",
        },
        stdout=-1,
        stderr=-1,
    )
    out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode()


async def park(migrated: MigratedDatabase) -> int:
    """Parks an event that quota's consumer does not handle in this version."""
    pool = str(PoolId.new())
    envelope = {
        "seq": 7,
        "id": str(EventId.new().hex),
        "type": CapacityDriftFound.type,
        "source": "registry",
        "subject": pool,
        "tenant_id": None,
        "generation": 1,
        "happened_at": "2026-01-01T00:00:00Z",
        "body": {"pool_id": pool, "detail": "x", "generation": 1},
    }
    async with migrated.opened("quota") as database, database.begin(SYSTEM) as unit:
        letter = await unit.fetchval(
            "INSERT INTO dead_letter (consumer, publisher, seq, envelope, error)"
            " VALUES ('pools', 'registry', 7, $1, 'ValueError: no') RETURNING id",
            envelope,
        )
    return int(letter)


async def test_dead_letters_when_shown_and_replayed_then_as_they_are(migrated: MigratedDatabase) -> None:
    assert await run(migrated, "dead_letters", "quota") == (0, "", "no event is parked in quota\n")
    letter = await park(migrated)
    code, out, errors = await run(migrated, "dead_letters", "quota")
    assert code == 0, errors
    shown = json.loads(out)
    assert (shown["id"], shown["seq"], shown["error"]) == (letter, 7, "ValueError: no")
    code, _, errors = await run(migrated, "dead_letters", "quota", "--replay", str(letter))
    assert (code, errors) == (1, f"not replayed: pools of this version does not handle {CapacityDriftFound.type}\n")


async def test_rebuild_when_it_cannot_be_done_then_one_line_says_why(migrated: MigratedDatabase) -> None:
    code, _, errors = await run(migrated, "rebuild", "quota", "nothing")
    assert (code, errors) == (1, "not rebuilt: quota has no consumer 'nothing'; it has alerts, pools\n")
    code, _, errors = await run(migrated, "rebuild", "quota", "pools")
    assert (code, errors) == (1, "not rebuilt: registry does not answer: ConnectError\n")


async def test_verify_when_the_trail_holds_or_not_then_one_line_says_so(migrated: MigratedDatabase) -> None:
    assert await run(migrated, "verify_audit", "quota") == (0, "quota: the audit trail holds\n", "")
    await run_as_owner(migrated, "UPDATE quota.outbox_counter SET last = 1 WHERE name = 'audit'")
    code, _, errors = await run(migrated, "verify_audit", "quota")
    assert (code, errors) == (1, "quota: audit row 1 was changed or is missing\n")
