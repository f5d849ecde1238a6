"""Where a stack lies: one folder for everything it keeps, and a short one for its sockets."""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millpond.stack.errors import FolderNotOurs, StackError
from millpond.stack.users import SystemUser, make_open_folder, make_private_folder, require_reachable

ROOT_BASE = Path("/var/lib/millpond")
_ROOT_RUNTIME_BASE = Path("/run/millpond")
_MARKER = "millpond-stack"

# The kernel allows 107 bytes (sun_path); PostgreSQL exits beyond. Room is left for a suffix.
SOCKET_PATH_BYTES = 100
_LONGEST_SOCKET_NAME = ".s.PGSQL.65535"


@dataclass(frozen=True, slots=True)
class StackPaths:
    """The folders of one stack.

    Attributes:
        folder: Everything that a stop and a start must keep.
        runtime: Sockets, the lock and the status file; a short path, mode 0700.
    """

    folder: Path
    runtime: Path

    @property
    def postgres(self) -> Path:
        """Data of PostgreSQL."""
        return self.folder / "postgres"

    @property
    def valkey(self) -> Path:
        """Data of Valkey."""
        return self.folder / "valkey"

    @property
    def logs(self) -> Path:
        """One log file per process."""
        return self.folder / "logs"

    @property
    def secrets(self) -> Path:
        """Passwords and keys, one 0600 file each."""
        return self.folder / "secrets"

    @property
    def work(self) -> Path:
        """Working folder of the processes, and where the node agent keeps its journal."""
        return self.folder / "work"

    @property
    def fleet(self) -> Path:
        """What simulated nodes there are (`orders`), and who they are (`state`)."""
        return self.folder / "fleet"

    @property
    def status_file(self) -> Path:
        """What the supervisor says about its processes, JSON."""
        return self.runtime / "status.json"

    @property
    def lock_file(self) -> Path:
        """Held by the supervisor as long as it lives."""
        return self.folder / "lock"

    def prepare(self, user: SystemUser | None) -> None:
        """Makes the folders, private to `user` (None = the current one).

        Raises:
            FolderUnreachable: `user` may not enter a folder above; permissions of existing folders stay as they are.
            FolderNotOurs: the folder holds something else.
        """
        require_reachable(self.folder, user)
        if user is not None:
            make_open_folder(self.folder.parent)
        else:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
        marker = self.folder / _MARKER
        if self.folder.exists() and not marker.exists() and any(self.folder.iterdir()):
            raise FolderNotOurs(self.folder)
        make_private_folder(self.folder, user)
        marker.touch()
        for folder in (self.postgres, self.valkey, self.logs, self.secrets, self.work):
            make_private_folder(folder, user)
        self._prepare_runtime(user)

    def _prepare_runtime(self, user: SystemUser | None) -> None:
        require_reachable(self.runtime, user)
        base = self.runtime.parent
        if user is not None:
            make_open_folder(base)
        else:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = base.lstat()
        if base != self.folder and (not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid()):
            raise StackError(f"{base} belongs to another user; it may not hold the stack's sockets")
        make_private_folder(self.runtime, user)


def locate_stack(
    *,
    name: str = "default",
    data_folder: Path | None = None,
    user: SystemUser | None = None,
    environment: Mapping[str, str] = os.environ,
) -> StackPaths:
    """Says where a stack lies; makes nothing.

    Args:
        name: Tells stacks of one user apart; part of the folder's name unless `data_folder` is given.
        data_folder: The folder to use instead of the usual one.
        user: As whom the processes run; None = the current user, whose XDG data folder is then the usual place.
            For root the usual place is /var/lib/millpond, because root's home cannot be entered by others.
        environment: Read for XDG_DATA_HOME, XDG_RUNTIME_DIR and HOME.
    """
    if data_folder is not None:
        folder = data_folder.expanduser().absolute()
    elif user is not None:
        folder = ROOT_BASE / name
    else:
        folder = _xdg_data_folder(environment) / "millpond" / name
    return StackPaths(folder=folder, runtime=_choose_runtime(folder, user, environment))


def _choose_runtime(folder: Path, user: SystemUser | None, environment: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    candidates = [folder / "run"]
    if user is not None:
        candidates.append(_ROOT_RUNTIME_BASE / digest)
    elif "XDG_RUNTIME_DIR" in environment:
        candidates.append(Path(environment["XDG_RUNTIME_DIR"]) / "millpond" / digest)
    candidates.append(Path(f"/tmp/millpond-{os.geteuid()}") / digest)
    return next(path for path in candidates if fits_a_socket(path) or path == candidates[-1])


def fits_a_socket(folder: Path) -> bool:
    """Says whether the longest socket name used in `folder` stays within what the kernel allows."""
    return len(os.fsencode(folder / _LONGEST_SOCKET_NAME)) <= SOCKET_PATH_BYTES


def _xdg_data_folder(environment: Mapping[str, str]) -> Path:
    given = environment.get("XDG_DATA_HOME", "")
    if given.startswith("/"):
        return Path(given)
    return Path(environment.get("HOME") or Path.home()) / ".local" / "share"
