"""A migration while the version before it serves holds nobody up, and a database that is ahead stops no process."""

import asyncio

import asyncpg
import pytest
from alembic import command
from alembic.config import Config

from millpond_contracts.events import PUBLISHERS
from millpond_kernel.app import wait_for_head
from millpond_kernel.migrate import migrate
from millpond_kernel.revisions import code_head, migrations_folder
from tests.earlier import REVISION
from tests.integration.databases import PASSWORD, MigratedDatabase
from tests.integration.kernel.stage import Stage, run_as_owner
from tests.waiting import eventually

pytestmark = pytest.mark.integration

_PASSWORDS = dict.fromkeys(PUBLISHERS, PASSWORD)
_REVISION = "SELECT version_num FROM public.alembic_version"
_WAITING = (
    "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def _take_back(owner_url: str, revision: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    config.attributes["owner_url"] = owner_url
    command.downgrade(config, revision)


async def test_migrate_when_a_service_writes_for_long_then_it_gives_way_and_tries_again(
    migrated: MigratedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond_kernel.migrate._PAUSE_SECONDS", 0.2)
    await asyncio.to_thread(_take_back, migrated.owner_url, REVISION)
    writing, looking = [await asyncio.wait_for(asyncpg.connect(migrated.owner_url), 10) for _ in range(2)]
    try:
        transaction = writing.transaction()
        await transaction.start()
        await writing.execute("LOCK TABLE scheduler.task IN ROW EXCLUSIVE MODE")
        migrating = asyncio.create_task(migrate(migrated.owner_url, _PASSWORDS))

        async def is_waiting() -> bool:
            assert not migrating.done(), migrating.result()
            return bool(await looking.fetchval(_WAITING))

        async def has_given_way() -> bool:
            return not await is_waiting()

        for _ in range(2):
            await eventually(is_waiting)
            await eventually(has_given_way)
            assert await looking.fetchval("SELECT count(*) FROM scheduler.task") == 0
        # The revisions before the one that has to wait are done, each by itself.
        assert await looking.fetchval(_REVISION) == "0020_scheduler_freezes"
        await transaction.commit()
        assert await migrating
        assert await looking.fetchval(_REVISION) == code_head()
    finally:
        await writing.close()
        await looking.close()


async def test_service_when_a_later_version_has_migrated_then_it_serves_and_starts_and_migrates_nothing(
    stage: Stage,
) -> None:
    await run_as_owner(stage.migrated, "UPDATE public.alembic_version SET version_num = '9999_later'")
    assert not await migrate(stage.migrated.owner_url, _PASSWORDS)
    await wait_for_head(stage.publisher, 0.0)
    assert (await stage.services.http.get("/readyz/quota")).status_code == 200


async def test_service_when_the_database_is_behind_then_it_is_not_ready_and_does_not_start(stage: Stage) -> None:
    await run_as_owner(stage.migrated, f"UPDATE public.alembic_version SET version_num = '{REVISION}'")
    with pytest.raises(RuntimeError, match="run `millpond migrate`"):
        await wait_for_head(stage.publisher, 0.0)
    answer = await stage.services.http.get("/readyz/quota")
    assert answer.status_code == 503
    assert "run `millpond migrate`" in answer.text
