"""Starts one process that cannot outlive the process that started it.

The kernel sends the child a signal when the *thread* that forked it ends, so children are started from the main
thread. A change of user clears that wish: `subprocess` changes the user before it calls `preexec_fn`, which is
the order needed.
"""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from io import FileIO
from pathlib import Path

from millpond.stack.users import SystemUser

# <linux/prctl.h>
_PR_SET_PDEATHSIG = 1

_PARENT_GONE_EXIT_CODE = 113
_LOG_KEPT_BYTES = 16 * 1024 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


def launch(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    log_file: Path,
    user: SystemUser | None = None,
    death_signal: signal.Signals = signal.SIGKILL,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Starts `argv` in a session of its own, its output appended to `log_file`.

    Args:
        argv: Program (absolute path) and arguments.
        environment: The whole environment of the child.
        folder: Its working folder.
        log_file: Gets standard output and error; the folder exists.
        user: As whom it runs; None = as this process. Needs root.
        death_signal: What the kernel sends it when this process ends, in whatever way.
        pass_fds: Descriptors that stay open in the child.
    """
    with open_log(log_file, user) as log:
        return subprocess.Popen(
            list(argv),
            env=dict(environment),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=0o077,
            pass_fds=tuple(pass_fds),
            preexec_fn=_tie_to(os.getpid(), death_signal),
            user=user.uid if user else None,
            group=user.gid if user else None,
            extra_groups=[] if user else None,
        )


def run_to_end(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    user: SystemUser | None = None,
    stdin: str = "",
    timeout_seconds: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Runs a short command as `user` and returns its exit code and output (error output merged in)."""
    return subprocess.run(
        list(argv),
        env=dict(environment),
        cwd=folder,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=timeout_seconds,
        umask=0o077,
        preexec_fn=_tie_to(os.getpid(), signal.SIGKILL),
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
    )


def tie_to_parent(parent_pid: int, death_signal: signal.Signals) -> None:
    """Makes the calling process get `death_signal` when its parent ends; ends it if the parent already has.

    Called after any change of user, which would clear the wish.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(_PARENT_GONE_EXIT_CODE)


def open_log(log_file: Path, user: SystemUser | None) -> FileIO:
    """Opens `log_file` for appending; what is longer than 16 MiB is put aside as `<name>.1` first."""
    if log_file.exists() and log_file.stat().st_size > _LOG_KEPT_BYTES:
        log_file.replace(log_file.with_name(f"{log_file.name}.1"))
    log = FileIO(log_file, "a", opener=_open_private)
    if user is not None:
        os.fchown(log.fileno(), user.uid, user.gid)
    return log


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _tie_to(parent_pid: int, death_signal: signal.Signals) -> Callable[[], None]:
    def tie() -> None:
        tie_to_parent(parent_pid, death_signal)

    return tie
