"""The unprivileged user that a stack's processes run as when it is started by root."""

import os
import pwd
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from millpond.stack.errors import FolderUnreachable, StackError

# An operator may create `millpond`; the other two exist on every Linux. A user is never created here.
_CANDIDATES = ("millpond", "nobody", "daemon")


@dataclass(frozen=True, slots=True)
class SystemUser:
    """A user of this machine, with the primary group that its processes get."""

    name: str
    uid: int
    gid: int


def find_stack_user() -> SystemUser | None:
    """Says as whom the stack's processes run.

    Returns:
        None for an ordinary user: processes then run as that user. For root: an existing unprivileged user.

    Raises:
        StackError: root, and no unprivileged user exists.
    """
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return SystemUser(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    raise StackError(f"none of the users {', '.join(_CANDIDATES)} exists: PostgreSQL refuses to run as root")


def find_blocking_folder(path: Path, user: SystemUser | None) -> Path | None:
    """Finds the first folder on the way to `path` that `user` may not enter; None if the way is free.

    Only existing folders are looked at, by owner, group and mode. With `user` None the current user is meant.
    """
    if user is None:
        existing = (folder for folder in _way_to(path) if folder.exists())
        return next((folder for folder in existing if not os.access(folder, os.X_OK)), None)
    for folder in _way_to(path):
        try:
            status = folder.stat()
        except FileNotFoundError:
            return None
        if not _may_enter(status, user):
            return folder
    return None


def require_reachable(path: Path, user: SystemUser | None) -> None:
    """Raises FolderUnreachable when `user` may not enter a folder on the way to `path`."""
    blocked_by = find_blocking_folder(path.parent, user)
    if blocked_by is not None:
        name = user.name if user is not None else pwd.getpwuid(os.geteuid()).pw_name
        raise FolderUnreachable(path, blocked_by, name)


def find_closed_python_folder(user: SystemUser | None) -> Path | None:
    """Finds a folder that keeps `user` from running this Python with its packages; None if nothing does.

    With Python or the checkout below root's home, Python processes have to run as root although the engines, whose
    binaries are copied, do not.
    """
    needed = [Path(sys.executable), Path(sys.base_prefix), *(Path(entry) for entry in sys.path if entry)]
    blocking = (find_blocking_folder(path, user) for path in needed if path.is_dir() or path.parent.is_dir())
    return next((folder for folder in blocking if folder is not None and folder.is_dir()), None)


def make_private_folder(path: Path, user: SystemUser | None) -> Path:
    """Makes `path` (its parent exists) a folder that only `user` can read, and returns it."""
    path.mkdir(mode=0o700, exist_ok=True)
    path.chmod(0o700)
    if user is not None:
        os.chown(path, user.uid, user.gid)
    return path


def make_open_folder(path: Path) -> None:
    """Makes the folders on the way to `path` that are missing, each one open to all users to enter and read.

    The mode is set explicitly: under a umask of 077 a folder made by root would be closed to the stack's user.
    """
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o755)


def write_private_file(path: Path, text: str, user: SystemUser | None) -> None:
    """Replaces the file at `path` in one step by `text`, readable by `user` only."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        if user is not None:
            os.fchown(file.fileno(), user.uid, user.gid)
    draft.replace(path)


def _way_to(path: Path) -> list[Path]:
    absolute = path.resolve()
    return [*reversed(absolute.parents), absolute]


def _may_enter(status: os.stat_result, user: SystemUser) -> bool:
    if status.st_uid == user.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == user.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)
