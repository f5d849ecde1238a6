"""Backups of a stack: one 0600 file with the database, its keys, logs, exports and this machine's node identity.

PostgreSQL is the record; what Redis holds are copies and is left out. The dump is one consistent snapshot, taken while
the stack runs or while it is stopped. A restore goes into an empty folder and starts with an empty Redis, which the
relays refill.
"""

import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit, urlunsplit

from millpond.stack.binaries import find_postgres_binaries
from millpond.stack.engines import start_engine
from millpond.stack.errors import StackError
from millpond.stack.keys import SERVICES, load_keys, read_environment, restore_key_files
from millpond.stack.launch import run_to_end
from millpond.stack.lock import StackLock, find_supervisor
from millpond.stack.paths import StackPaths
from millpond.stack.ports import HeldPorts
from millpond.stack.postgres import PostgresEngine
from millpond.stack.users import SystemUser, find_stack_user

FORMAT = "millpond.backup/v1"
_DUMP, _MANIFEST = "database.dump", "manifest.json"
_FOLDERS = ("secrets", "agent", "fleet", "work/task-logs", "work/exports")
# Of this run of the machine only, or made anew at every start.
_LEFT_OUT = (
    "secrets/postgres-owner",
    "secrets/valkey",
    "secrets/environment.json",
    "agent/runtime",
    "agent/agent.lock",
    "fleet/state/agent.lock",
)
_DUMP_TIMEOUT_SECONDS = 3600.0


def make_backup(paths: StackPaths, target: Path) -> dict[str, object]:
    """Writes the backup of a stack that runs or is stopped, and returns its manifest.

    Raises:
        StackError: no stack in this folder, it uses a database of its own, or the dump failed.
    """
    if not (paths.secrets / "stack.json").exists():
        raise StackError(
            f"there is no stack in {paths.folder}; name its folder with --data-dir or its name with --name"
        )
    if not (paths.postgres / "data").exists():
        raise StackError(f"the stack in {paths.folder} uses a database of your own; back that up with its own tools")
    with _database(paths, find_stack_user()) as url, tempfile.TemporaryDirectory() as scratch:
        dump = Path(scratch) / _DUMP
        _run_postgres(paths, url, "pg_dump", "--format=custom", f"--file={dump}")
        manifest: dict[str, object] = {
            "format": FORMAT,
            "made_at": datetime.now(UTC).isoformat(),
            "database_sha256": _digest(dump),
            "database_bytes": dump.stat().st_size,
        }
        draft = target.with_name(f".{target.name}.part")
        try:
            _write_archive(draft, paths, dump, manifest)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    return manifest


def restore_backup(paths: StackPaths, source: Path, tell: Callable[[str], None]) -> dict[str, object]:
    """Makes a stack in an empty folder from a backup, and returns the backup's manifest.

    Raises:
        StackError: the folder is in use, or the file is no backup or damaged; a folder that was begun is named.
    """
    if find_supervisor(paths.lock_file) is not None or (paths.secrets / "stack.json").exists():
        raise StackError(f"{paths.folder} holds a stack; restore into a new folder (--data-dir) or name (--name)")
    user = find_stack_user()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        manifest = _unpack(source, folder)
        paths.prepare(user)
        with StackLock(paths.lock_file):
            tell("restoring keys, logs and the node's identity")
            _put_back(folder, paths, user)
            tell("restoring the database")
            with _started_database(paths, user) as url:
                _create_roles(paths, user, url)
                _run_postgres(paths, url, "pg_restore", "--exit-on-error", "--no-owner", str(folder / _DUMP))
    return manifest


@contextmanager
def _database(paths: StackPaths, user: SystemUser | None) -> Iterator[str]:
    """The owner's URL of the stack's PostgreSQL, which is started for the time being when the stack is stopped."""
    if find_supervisor(paths.lock_file) is not None:
        yield read_environment(paths)["MILLPOND_OWNER_DATABASE_URL"]
        return
    # The stack is not started meanwhile: two servers must not meet on one data folder.
    with StackLock(paths.lock_file), _started_database(paths, user) as url:
        yield url


@contextmanager
def _started_database(paths: StackPaths, user: SystemUser | None) -> Iterator[str]:
    with HeldPorts() as ports:
        engine = PostgresEngine(paths, ports.take(), user)
        running = start_engine(engine, paths.logs / "postgres.log")
        try:
            yield engine.url
        finally:
            running.stop()


def _run_postgres(paths: StackPaths, url: str, program: str, *arguments: str) -> None:
    binaries, parts = find_postgres_binaries(), urlsplit(url)
    # The password goes through the environment: every user of the machine can read arguments.
    where = urlunsplit(parts._replace(netloc=f"{parts.username}@{parts.hostname}:{parts.port}"))
    done = run_to_end(
        (str(binaries.source / binaries.programs / program), f"--dbname={where}", *arguments),
        environment={"PATH": os.defpath, "LC_ALL": "C", "PGPASSWORD": parts.password or ""},
        folder=paths.work,
        timeout_seconds=_DUMP_TIMEOUT_SECONDS,
    )
    if done.returncode != 0:
        raise StackError(f"{program} ended with {done.returncode}: {done.stdout.strip()[-1500:]}")


def _create_roles(paths: StackPaths, user: SystemUser | None, url: str) -> None:
    """The dump names roles that a fresh server does not have."""
    keys = load_keys(paths, user)
    environment: Mapping[str, str] = {
        "PATH": os.defpath,
        "MILLPOND_OWNER_DATABASE_URL": url,
        **{
            f"MILLPOND_{service.upper()}_DATABASE_URL": f"postgresql://millpond_{service}:{keys.passwords[service]}@unused/x"
            for service in SERVICES
        },
    }
    argv = (sys.executable, "-P", "-m", "millpond_kernel.migrate", "--roles-only")
    done = run_to_end(argv, environment=environment, folder=paths.work)
    if done.returncode != 0:
        raise StackError(f"the database's roles could not be made: {done.stdout.strip()[-1500:]}")


def _unpack(source: Path, folder: Path) -> dict[str, object]:
    try:
        with tarfile.open(source, "r:gz") as archive:
            for member in archive:
                _unpack_file(archive, member, folder)
        manifest: dict[str, object] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, tarfile.TarError, ValueError) as error:
        raise StackError(f"{source} is no backup of a stack: {error}") from error
    if manifest.get("format") != FORMAT:
        raise StackError(f"{source} has the format {manifest.get('format')!r}; this version reads {FORMAT!r}")
    if _digest(folder / _DUMP) != manifest.get("database_sha256"):
        raise StackError(f"{source} is damaged: the database in it is not the one that was written")
    return manifest


def _unpack_file(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    # By hand: `extractall(filter=...)` is not in every Python 3.11, and a backup holds plain files alone.
    place = PurePosixPath(member.name)
    content = archive.extractfile(member) if member.isreg() else None
    if content is None or place.is_absolute() or ".." in place.parts:
        raise tarfile.TarError(f"{member.name!r} is no plain file below its folder")
    target = folder / place
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with content, target.open("xb") as out:
        shutil.copyfileobj(content, out)


def _put_back(folder: Path, paths: StackPaths, user: SystemUser | None) -> None:
    for name in _FOLDERS:
        for path in sorted((folder / name).rglob("*")):
            target = paths.folder / name / path.relative_to(folder / name)
            if path.is_dir():
                target.mkdir(mode=0o700, parents=True, exist_ok=True)
            else:
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
                target.chmod(0o600)
    restore_key_files(paths, user)
    if user is not None:
        for path in [paths.work, *paths.work.rglob("*")]:
            os.chown(path, user.uid, user.gid)


def _write_archive(draft: Path, paths: StackPaths, dump: Path, manifest: Mapping[str, object]) -> None:
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
        _add_text(archive, _MANIFEST, json.dumps(manifest, indent=2))
        archive.add(dump, _DUMP)
        for kept in _FOLDERS:
            for folder, _, files in os.walk(paths.folder / kept):
                for file in files:
                    _add_file(archive, Path(folder) / file, paths.folder)


def _add_file(archive: tarfile.TarFile, path: Path, base: Path) -> None:
    name = str(path.relative_to(base))
    if name.startswith(_LEFT_OUT) or path.is_symlink() or not path.is_file():
        return
    with suppress(FileNotFoundError):  # a log or report that the running stack was done with meanwhile
        archive.add(path, name)


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    archive.addfile(member, io.BytesIO(data))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
