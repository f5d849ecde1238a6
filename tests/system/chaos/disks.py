"""A small disk of PostgreSQL's own, which can be filled without anybody else's noticing: root alone can make one."""

import contextlib
import ctypes
import errno
import os
import subprocess
from pathlib import Path

from millpond.stack.paths import StackPaths
from millpond.stack.users import find_stack_user

# Room for what a run writes; a tmpfs takes only what is in it.
_SIZE_MIB = 1024
_CLONE_NEWNS = 0x00020000  # <sched.h>
_BLOCK = bytes(1 << 20)


def can_mount() -> bool:
    """Whether this process may give another one a file system of its own."""
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    return tried.returncode == 0


def mount_small_disk(paths: StackPaths) -> None:
    """Puts PostgreSQL's folder on a disk of its own, for this process and its children alone."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    paths.prepare(find_stack_user())
    owner = paths.postgres.stat()
    options = f"size={_SIZE_MIB}m,mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(paths.postgres)], check=True)


def fill(paths: StackPaths, pid: int) -> Path:
    """Fills the small disk of the stack whose supervisor is `pid`; the file that does it."""
    ballast = Path(f"/proc/{pid}/root{paths.postgres}/ballast")
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(_Full):
        while True:
            _write(file.fileno())
    return ballast


class _Full(Exception):
    """Nothing more goes in."""


def _write(descriptor: int) -> None:
    try:
        if os.write(descriptor, _BLOCK) < len(_BLOCK):
            raise _Full
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _Full from error
