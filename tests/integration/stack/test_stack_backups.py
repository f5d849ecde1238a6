"""Backups of a stack that is stopped: what is in them, what comes back, and what is refused."""

import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from millpond.stack import backups
from millpond.stack.backups import make_backup, restore_backup
from millpond.stack.engines import RunningEngine
from millpond.stack.errors import StackAlreadyRunning, StackError
from millpond.stack.keys import load_keys
from millpond.stack.launch import run_to_end
from millpond.stack.lock import StackLock
from millpond.stack.paths import StackPaths, locate_stack
from millpond.stack.ports import HeldPorts
from millpond.stack.postgres import PostgresEngine
from millpond.stack.users import find_stack_user

pytestmark = pytest.mark.integration

USER = find_stack_user()


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that the stack's user can enter, which pytest's own is not."""
    folder = Path(tempfile.mkdtemp(prefix="millpond-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def stopped_stack(folder: Path) -> StackPaths:
    """What `millpond up` makes before anything runs."""
    paths = locate_stack(data_folder=folder, user=USER)
    paths.prepare(USER)
    load_keys(paths, USER)
    return paths


async def execute(paths: StackPaths, statement: str) -> list[asyncpg.Record]:
    """Runs SQL in the stack's own database, started for it."""
    with HeldPorts() as ports:
        running = RunningEngine(PostgresEngine(paths, ports.take(), USER), paths.logs / "postgres.log")
        running.start()
        try:
            connection = await asyncpg.connect(running.engine.url)
            try:
                found: list[asyncpg.Record] = await connection.fetch(statement)
            finally:
                await connection.close()
        finally:
            running.stop()
    return found


async def test_backup_when_restored_then_database_keys_and_identity_are_the_same_and_nothing_passing(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []

    def watch(argv: tuple[str, ...], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(" ".join(argv))
        return run_to_end(argv, **options)

    monkeypatch.setattr(backups, "run_to_end", watch)
    old = stopped_stack(base / "old")
    await execute(old, "select 1 as one into kept")
    for name, text in {"agent/key": "k", "agent/runtime/runs/a/run.json": "r", "work/task-logs/t": "hello"}.items():
        (old.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (old.folder / name).write_text(text)
    file = base / "backup"

    made = make_backup(old, file)
    new = locate_stack(data_folder=base / "new", user=USER)
    restored = restore_backup(new, file, lambda _: None)

    assert restored == made
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in base.iterdir() if path.name.startswith(".")] == []
    assert [row["one"] for row in await execute(new, "select one from kept")] == [1]
    assert load_keys(new, USER) == load_keys(old, USER)
    assert (new.folder / "agent/key").read_text() == "k"
    assert (new.folder / "work/task-logs/t").read_text() == "hello"
    assert not (new.folder / "agent/runtime").exists()
    password = (old.secrets / "postgres-owner").read_text()
    assert [line for line in commands if "pg_dump" in line]
    assert not [line for line in commands if password in line], "a password in arguments, which everybody can read"


async def test_backup_when_the_database_is_not_the_stacks_own_then_it_is_refused(base: Path) -> None:
    paths = stopped_stack(base / "stack")
    with pytest.raises(StackError, match="database of your own"):
        make_backup(paths, base / "backup")
    assert not (base / "backup").exists()


async def test_backup_when_it_cannot_be_written_then_nothing_of_it_is_left(base: Path) -> None:
    paths = stopped_stack(base / "stack")
    await execute(paths, "select 1")
    (base / "backup").mkdir()
    with pytest.raises(OSError, match="directory"):
        make_backup(paths, base / "backup")
    assert not (base / ".backup.part").exists()


async def test_backup_when_it_runs_then_the_stack_cannot_be_started_on_the_same_data(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = stopped_stack(base / "stack")
    await execute(paths, "select 1")

    def start_meanwhile(argv: tuple[str, ...], **options: Any) -> subprocess.CompletedProcess[str]:
        with pytest.raises(StackAlreadyRunning):
            StackLock(paths.lock_file).__enter__()
        return run_to_end(argv, **options)

    monkeypatch.setattr(backups, "run_to_end", start_meanwhile)
    make_backup(paths, base / "backup")
    with StackLock(paths.lock_file):
        pass


async def test_restore_when_the_file_is_damaged_or_the_folder_in_use_then_it_is_refused(base: Path) -> None:
    paths = stopped_stack(base / "stack")
    await execute(paths, "select 1")
    make_backup(paths, base / "backup")
    with pytest.raises(StackError, match="holds a stack"):
        restore_backup(paths, base / "backup", lambda _: None)

    (base / "other").write_bytes(b"something else")
    with tarfile.open(base / "backup") as whole, tarfile.open(base / "damaged", "w:gz") as damaged:
        manifest = whole.getmember("manifest.json")
        damaged.addfile(manifest, whole.extractfile(manifest))
        damaged.add(base / "other", "database.dump")
    (base / "none").write_text("no archive")
    new = locate_stack(data_folder=base / "new", user=USER)
    for file, reason in (("damaged", "is damaged"), ("none", "is no backup")):
        with pytest.raises(StackError, match=reason):
            restore_backup(new, base / file, lambda _: None)
    assert not new.folder.exists()


@pytest.mark.parametrize("name", ["../planted", "secrets/../../planted", "/tmp/planted", "manifest.json"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE])
def test_restore_when_the_file_holds_what_no_backup_holds_then_nothing_is_written(
    base: Path, name: str, kind: bytes
) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    with tarfile.open(base / "backup", "w:gz") as archive:
        archive.addfile(member)
    new = locate_stack(data_folder=base / "new", user=USER)
    with pytest.raises(StackError, match="is no backup"):
        restore_backup(new, base / "backup", lambda _: None)
    assert not new.folder.exists()
