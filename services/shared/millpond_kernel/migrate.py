"""`python -m millpond_kernel.migrate`: creates roles and schemas and brings the database to this code's head revision.

The only thing that migrates. It connects with the owner's URL, takes an advisory lock, and does nothing when the
database is already at head or ahead of it, so any number of copies may start together. It runs beside services that
work: each revision is a transaction of its own, which gives a lock up that it does not get at once (`env.py`), before
others wait behind it for long, and tries again later. Service passwords come from the services' own URLs.
"""

import asyncio
import os
import sys
import time
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import asyncpg

from millpond_contracts.events import PUBLISHERS
from millpond_kernel.revisions import code_head, list_pending, may_serve, migrations_folder

OWNER = "millpond_owner"
LOCK = 7_077_001
LOCK_WAIT_SECONDS = 120
_TRIES = 10
# Between two tries at a lock that others hold: their queue gets through meanwhile.
_PAUSE_SECONDS = 1.0
_LOCK_NOT_AVAILABLE, _DEADLOCK = "55P03", "40P01"


def service_role(service: str) -> str:
    """The login role of a service."""
    return f"millpond_{service}"


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


async def create_roles(connection: asyncpg.Connection, passwords: Mapping[str, str]) -> None:
    """Creates the owner, and per service a login role without rights and its two scopes; sets the passwords."""
    database = await connection.fetchval("SELECT quote_ident(current_database())")
    statements = [_create_role(OWNER, "NOLOGIN")]
    for service in PUBLISHERS:
        login = service_role(service)
        password = passwords.get(service)
        statements += [
            _create_role(f"{login}_tenant", "NOLOGIN"),
            _create_role(f"{login}_system", "NOLOGIN"),
            _create_role(login, "LOGIN NOINHERIT"),
            f"GRANT {login}_tenant, {login}_system TO {login}",
            f"ALTER ROLE {login} SET search_path = {service}",
        ]
        if password is not None:
            statements.append(f"ALTER ROLE {login} WITH PASSWORD {_quote(password)}")
    statements += [
        f"DO $$ BEGIN IF current_user <> '{OWNER}' THEN GRANT {OWNER} TO current_user; END IF; END $$",
        f"GRANT CREATE, CONNECT ON DATABASE {database} TO {OWNER}",
        f"GRANT CREATE, USAGE ON SCHEMA public TO {OWNER}",
    ]
    for statement in statements:
        await _execute_shared(connection, statement)


async def _execute_shared(connection: asyncpg.Connection, statement: str) -> None:
    """Runs a statement on roles, which all databases of a server share; another database may be migrated just now."""
    for attempt in range(1, _TRIES + 1):
        try:
            await connection.execute(statement)
            return
        except (asyncpg.InternalServerError, asyncpg.UniqueViolationError, asyncpg.DuplicateObjectError):
            if attempt == _TRIES:
                raise
            await asyncio.sleep(0.05 * attempt)


def _create_role(name: str, options: str) -> str:
    return (
        f"DO $$ BEGIN IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = '{name}') THEN"
        f" CREATE ROLE {name} {options}; END IF; END $$"
    )


async def migrate(owner_url: str, passwords: Mapping[str, str]) -> bool:
    """Brings the database to head; True when something had to be done.

    Args:
        owner_url: URL of a role that may create roles, in the database to migrate.
        passwords: service -> password of its login role.
    """
    connection = await asyncpg.connect(owner_url, timeout=10)
    try:
        await connection.execute(f"SET lock_timeout = '{LOCK_WAIT_SECONDS}s'")
        await connection.execute(f"SELECT pg_advisory_lock({LOCK})")
        await create_roles(connection, passwords)
        if may_serve(await _revision(connection)):
            return False
        await asyncio.to_thread(_upgrade, owner_url)
        return True
    finally:
        await connection.close()


async def find_pending(owner_url: str) -> list[str]:
    """What `migrate` would run, oldest first; changes nothing."""
    connection = await asyncpg.connect(owner_url, timeout=10)
    try:
        return list_pending(await _revision(connection))
    finally:
        await connection.close()


async def make_roles(owner_url: str, passwords: Mapping[str, str]) -> None:
    """Creates the roles alone, for a database that is about to be restored from a backup."""
    connection = await asyncpg.connect(owner_url, timeout=10)
    try:
        await create_roles(connection, passwords)
    finally:
        await connection.close()


async def _revision(connection: asyncpg.Connection) -> str | None:
    if await connection.fetchval("SELECT to_regclass('public.alembic_version')") is None:
        return None
    value = await connection.fetchval("SELECT version_num FROM public.alembic_version")
    return None if value is None else str(value)


def _upgrade(owner_url: str) -> None:
    from alembic import command  # noqa: PLC0415 - slow to import, needed only when the database is behind
    from alembic.config import Config  # noqa: PLC0415 - the same
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415 - the same

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    config.attributes["owner_url"] = owner_url
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            return command.upgrade(config, "head")
        except DBAPIError as error:
            is_busy = getattr(error.orig, "sqlstate", None) in (_LOCK_NOT_AVAILABLE, _DEADLOCK)
            if not is_busy:
                raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"a table stayed locked for {LOCK_WAIT_SECONDS} s; run it again") from error
        time.sleep(_PAUSE_SECONDS)


def passwords_from(environment: Mapping[str, str]) -> dict[str, str]:
    """service -> password, from the services' database URLs."""
    found = {}
    for service in PUBLISHERS:
        url = environment.get(f"MILLPOND_{service.upper()}_DATABASE_URL")
        password = urlsplit(url).password if url else None
        if password:
            found[service] = unquote(password)
    return found


def main() -> None:
    """Migrates the database of `MILLPOND_OWNER_DATABASE_URL`."""
    owner_url = os.environ.get("MILLPOND_OWNER_DATABASE_URL")
    if not owner_url:
        sys.exit("millpond migrate: set MILLPOND_OWNER_DATABASE_URL to the URL of the database's owner")
    try:
        if "--roles-only" in sys.argv[1:]:
            asyncio.run(make_roles(owner_url, passwords_from(os.environ)))
            return
        if "--check" in sys.argv[1:]:
            _tell_pending(asyncio.run(find_pending(owner_url)))
            return
        changed = asyncio.run(migrate(owner_url, passwords_from(os.environ)))
    except (OSError, asyncpg.PostgresError) as error:
        place = urlsplit(owner_url).netloc.rpartition("@")[2]
        sys.exit(f"millpond migrate: {place} does not answer or refuses: {type(error).__name__}: {error}")
    sys.stdout.write(f"database {f'migrated to {code_head()}' if changed else f'already at {code_head()} or later'}\n")


def _tell_pending(pending: list[str]) -> None:
    if pending:
        sys.exit(f"{len(pending)} revisions to run: {', '.join(pending)}")
    sys.stdout.write(f"database at {code_head()} or later: nothing to run\n")


if __name__ == "__main__":
    main()
