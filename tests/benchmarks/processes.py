"""What a tree of processes uses, read from /proc: CPU time and memory as the sum of proportional set sizes."""

import os
from collections import defaultdict
from pathlib import Path

from millpond.stack.lock import find_supervisor
from tests.benchmarks.figures import shorten_all
from tests.system.stack import Stack

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def list_tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children[int(fields[1])].append(int(entry.name))
    found, left = [], [root]
    while left:
        pid = left.pop()
        found.append(pid)
        left += children[pid]
    return found


def cpu_seconds(pids: list[int], *, with_ended: bool = False) -> dict[int, float]:
    """User and system time of each process that still runs; with that of its ended children when asked."""
    columns = slice(11, 15) if with_ended else slice(11, 13)
    return {
        pid: sum(int(ticks) for ticks in fields[columns]) / _TICKS_PER_SECOND
        for pid in pids
        if (fields := _stat(pid)) is not None
    }


def pss_mb(pids: list[int]) -> dict[int, float]:
    """Proportional set size of each process, in MB of 10^6 bytes: shared pages count once over all of them."""
    found = {}
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        except OSError:
            continue  # gone meanwhile
        found[pid] = sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6
    return found


def title_of(pid: int) -> str:
    """What `ps` shows, short: the titles of forked processes and of PostgreSQL's, else the program."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return "gone"
    title = words[0].decode(errors="replace")
    if title.startswith(("millpond:", "postgres:")):
        return title if title.startswith("millpond:") else "postgres"
    program = Path(title.partition(" ")[0]).name
    arguments = [Path(word.decode(errors="replace")).name for word in words[1:4] if not word.startswith(b"-")]
    return " ".join([program, *arguments[:2]]) if program.startswith("python") else program


def tree_of(stack: Stack) -> list[int]:
    """All processes of a stack that runs."""
    supervisor = find_supervisor(stack.paths.lock_file)
    assert supervisor is not None, stack.describe()
    return list_tree(supervisor)


def cpu_ms_each(before: dict[int, float], after: dict[int, float], count: int) -> dict[str, float]:
    """Milliseconds of CPU per thing done, by title; what neighbours on the machine take shows in it least."""
    spent = {pid: (seconds - before.get(pid, 0.0)) * 1000 / max(1, count) for pid, seconds in after.items()}
    return shorten_all({title: each for title, each in sum_by_title(spent).items() if each >= 0.01})


def sum_by_title(values: dict[int, float]) -> dict[str, float]:
    """Values of processes with one title added up, largest first."""
    sums: dict[str, float] = defaultdict(float)
    for pid, value in values.items():
        sums[title_of(pid)] += value
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on. Source: proc_pid_stat(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
