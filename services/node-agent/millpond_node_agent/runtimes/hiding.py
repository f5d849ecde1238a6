"""Hides the processes of others from a task: their command lines may tell what another tenant runs.

The task gets a mount namespace of its own with a `/proc` that shows it only what its user may look into (`hidepid`,
proc(5)). Root needs CAP_SYS_ADMIN for this; where that is missing or forbidden, the node says so. The launcher imports
this, so it imports little.
"""

import ctypes
import os
import sys

# linux/sched.h and linux/mount.h
_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 2, 4, 8, 0x4000, 0x80000
# A user that owns nothing; any number but root's does.
_STRANGER = 65_534


def hide_other_processes() -> None:
    """Give the calling process a `/proc` without the processes of other users, whoever it becomes afterwards.

    Raises:
        OSError: this machine does not allow it.
    """
    library = ctypes.CDLL(None, use_errno=True)
    _check(library.unshare(_CLONE_NEWNS))
    # What the machine mounts or unmounts later is still seen here; what is mounted here stays here.
    _check(library.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None))
    _check(library.mount(b"proc", b"/proc", b"proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, b"hidepid=2"))


def probe() -> None:
    """Ends with 0 when a stranger sees itself and not the first process; kernels before 5.8 ignore the option."""
    hide_other_processes()
    os.setgroups([])
    os.setresgid(_STRANGER, _STRANGER, _STRANGER)
    os.setresuid(_STRANGER, _STRANGER, _STRANGER)
    sys.exit(not os.path.exists(f"/proc/{os.getpid()}/stat") or os.path.exists("/proc/1"))


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
