"""The engines: real PostgreSQL and Valkey from the wheels, started, killed and started again."""

import os
import shutil
import signal
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
import redis.asyncio

from millpond.stack.engines import is_running
from millpond.stack.ephemeral import EphemeralEngines
from millpond.stack.errors import FolderUnreachable
from millpond.stack.users import find_stack_user
from tests.integration.stack.programs import start_python

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def engines() -> Iterator[EphemeralEngines]:
    with EphemeralEngines() as engines:
        yield engines


@pytest.fixture
def reachable_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="millpond-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


async def test_postgres_when_started_then_owner_connects_and_a_wrong_password_does_not(
    engines: EphemeralEngines,
) -> None:
    connection = await asyncpg.connect(engines.postgres_url)
    try:
        assert await connection.fetchval("select current_database()") == "millpond"
        assert await connection.fetchval("show password_encryption") == "scram-sha-256"
        await connection.execute("create extension if not exists btree_gist")
    finally:
        await connection.close()
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(engines.postgres_url, password="wrong")


async def test_valkey_when_started_then_only_the_password_lets_in(engines: EphemeralEngines) -> None:
    async with redis.asyncio.from_url(engines.redis_url) as client:
        assert await client.set("key", "value")
        assert (await client.config_get("maxmemory-policy"))["maxmemory-policy"] == "noeviction"
    async with redis.asyncio.from_url(engines.redis_url.replace("redis://:", "redis://:wrong")) as stranger:
        with pytest.raises(redis.exceptions.AuthenticationError):
            await stranger.get("key")


def test_engines_when_started_by_root_then_run_as_an_unprivileged_user(engines: EphemeralEngines) -> None:
    user = find_stack_user()
    expected = user.uid if user is not None else os.geteuid()
    assert expected != 0
    for running in (engines.postgres, engines.valkey):
        assert Path(f"/proc/{running.pid}").stat().st_uid == expected


def test_passwords_when_engines_run_then_stand_in_no_command_line(engines: EphemeralEngines) -> None:
    for running, url in ((engines.postgres, engines.postgres_url), (engines.valkey, engines.redis_url)):
        password = url.split(":")[2].split("@")[0]
        assert len(password) >= 32
        assert password.encode() not in Path(f"/proc/{running.pid}/cmdline").read_bytes()


async def test_durable_engines_when_killed_and_started_again_then_keep_what_was_acknowledged(
    reachable_folder: Path,
) -> None:
    with EphemeralEngines(reachable_folder / "stack", durable=True) as engines:
        connection = await asyncpg.connect(engines.postgres_url)
        await connection.execute("create table kept (number int)")
        await connection.execute("insert into kept values (7)")
        async with redis.asyncio.from_url(engines.redis_url) as client:
            await client.xadd("stream", {"number": "7"}, id="1-0")
        engines.postgres.kill()
        engines.valkey.kill()
        connection.terminate()
        engines.postgres.start()
        engines.valkey.start()
        connection = await asyncpg.connect(engines.postgres_url)
        assert await connection.fetchval("select number from kept") == 7
        await connection.close()

    with EphemeralEngines(reachable_folder / "stack", durable=True) as engines:
        connection = await asyncpg.connect(engines.postgres_url)
        assert await connection.fetchval("select number from kept") == 7
        assert await connection.fetchval("show fsync") == "on"
        await connection.close()
        async with redis.asyncio.from_url(engines.redis_url) as client:
            assert await client.xlen("stream") == 1


def test_postgres_when_a_stale_lock_names_a_foreign_process_then_starts(engines: EphemeralEngines) -> None:
    engines.postgres.kill()
    lock = engines.postgres.engine.folder / "data" / "postmaster.pid"
    lines = lock.read_text().splitlines()
    lock.write_text("\n".join([str(os.getpid()), *lines[1:]]))
    engines.postgres.start()
    assert is_running(engines.postgres.pid)


async def test_engines_when_their_starter_is_killed_then_are_gone_and_a_successor_starts_at_once(
    reachable_folder: Path,
) -> None:
    program = textwrap.dedent(f"""
        import asyncio, time
        from pathlib import Path
        import asyncpg
        from millpond.stack.ephemeral import EphemeralEngines
        engines = EphemeralEngines(Path({str(reachable_folder / "stack")!r}))
        engines.start()
        async def write():
            connection = await asyncpg.connect(engines.postgres_url)
            await connection.execute("create table kept as select 7 as number")
        asyncio.run(write())
        print(engines.postgres.pid, engines.valkey.pid, flush=True)
        time.sleep(60)
    """)
    starter = start_python(program)
    assert starter.stdout is not None
    with starter, starter.stdout:
        pids = [int(word) for word in starter.stdout.readline().split()]
        assert len(pids) == 2
        assert all(is_running(pid) for pid in pids)
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    with EphemeralEngines(reachable_folder / "stack") as successor:
        assert not any(is_running(pid) for pid in pids)
        connection = await asyncpg.connect(successor.postgres_url)
        assert await connection.fetchval("select number from kept") == 7
        await connection.close()
        async with redis.asyncio.from_url(successor.redis_url) as client:
            assert await client.ping()


def test_engines_when_the_folder_cannot_be_entered_then_refuse_and_change_no_permission(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o700 if os.geteuid() == 0 else 0o000)
    before = closed.stat().st_mode
    engines = EphemeralEngines(closed / "stack")
    with pytest.raises(FolderUnreachable, match="--data-dir"):
        engines.start()
    assert closed.stat().st_mode == before
