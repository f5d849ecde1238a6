"""Any number of migrations may start together: one of them works, all of them succeed."""

import asyncio
import os
import sys
import uuid

import pytest

from millpond_kernel.migrate import service_role
from millpond_kernel.revisions import code_head
from tests.integration.databases import PASSWORD, Engines, create, drop, with_database

pytestmark = pytest.mark.integration


async def test_rhesis_2545_migrate_when_eight_start_together_then_one_migrates_and_all_succeed(
    engines: Engines,
) -> None:
    name = f"mp_together_{uuid.uuid4().hex[:8]}"
    await create(engines.postgres_url, name)
    owner = with_database(engines.postgres_url, name)
    environment = {
        **os.environ,
        "MILLPOND_OWNER_DATABASE_URL": owner,
        "MILLPOND_QUOTA_DATABASE_URL": with_database(owner, name, service_role("quota"), PASSWORD),
    }

    async def migrate() -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "millpond_kernel.migrate", env=environment, stdout=-1, stderr=-1
        )
        out, errors = await process.communicate()
        return process.returncode, (out + errors).decode()

    try:
        results = await asyncio.gather(*(migrate() for _ in range(8)))
    finally:
        await drop(engines.postgres_url, name)
    texts = sorted(text for _, text in results)
    assert [code for code, _ in results] == [0] * 8, texts
    assert texts == [f"database already at {code_head()} or later\n"] * 7 + [f"database migrated to {code_head()}\n"]


async def test_migrate_when_the_database_does_not_answer_then_one_line_says_so() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "millpond_kernel.migrate",
        env={**os.environ, "MILLPOND_OWNER_DATABASE_URL": "postgresql://nobody:secret@127.0.0.1:9/none"},
        stderr=-1,
    )
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert errors.decode().startswith("millpond migrate: 127.0.0.1:9 does not answer or refuses")
    assert "secret" not in errors.decode()
    assert errors.count(b"\n") == 1
