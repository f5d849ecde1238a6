"""The machine's own clock and the identity of a process that a reused pid cannot imitate."""

import time

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_GONE = ("Z", "X")


def monotonic_ms() -> int:
    """Milliseconds since this boot, time asleep included: a suspended machine still holds its devices."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def boot_id() -> str:
    """The kernel's name for this boot; instants of `monotonic_ms` compare only within one."""
    with open(_BOOT_ID, encoding="ascii") as file:
        return file.read().strip()


def read_stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the state on (state, parent, group, session, …); None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command between the parentheses may itself hold blanks and parentheses.
    return line[line.rfind(b")") + 2 :].decode("ascii", "replace").split()


def start_ticks(pid: int) -> int | None:
    """When the process began, in clock ticks since boot; None when it is gone or only a zombie."""
    fields = read_stat(pid)
    if fields is None or fields[0] in _GONE:
        return None
    return int(fields[19])
