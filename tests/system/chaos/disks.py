"""Small disks of the engines' own, which can be filled without anybody else's noticing: root alone can make them."""

import ctypes
import errno
import os
import subprocess
from pathlib import Path

from millpond.stack.paths import StackPaths
from millpond.stack.users import find_stack_user

# Room for what a run writes, in MiB; a tmpfs takes only what is in it.
_SIZES = {"postgres": 1024, "valkey": 256}
_SMALLEST_STEP = 65_536
_CLONE_NEWNS = 0x00020000  # <sched.h>


def can_mount() -> bool:
    """Whether this process may give another one a file system of its own."""
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    return tried.returncode == 0


def mount_small_disks(paths: StackPaths) -> None:
    """Puts each engine's folder on a disk of its own, for this process and its children alone."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    paths.prepare(find_stack_user())
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    for engine, size in _SIZES.items():
        folder = paths.folder / engine
        owner = folder.stat()
        options = f"size={size}m,mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


def fill(paths: StackPaths, engine: str, pid: int) -> Path:
    """Fills an engine's small disk in the stack whose supervisor is `pid`; the file that does it."""
    ballast = Path(f"/proc/{pid}/root{paths.folder / engine}/ballast")
    with ballast.open("wb") as file:
        descriptor, taken = file.fileno(), 0
        step = _free_bytes(descriptor)
        while step >= _SMALLEST_STEP:
            try:
                os.posix_fallocate(descriptor, taken, step)
                taken += step
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                step //= 2  # the engine took some of it meanwhile
    return ballast


def _free_bytes(descriptor: int) -> int:
    disk = os.fstatvfs(descriptor)
    return disk.f_bavail * disk.f_frsize
