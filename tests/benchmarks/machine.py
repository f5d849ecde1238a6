"""What figures depend on and no benchmark measures: the machine, its software, the commit, and who ran it how."""

import os
import platform
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from millpond.stack.binaries import Binaries, find_postgres_binaries, find_valkey_binaries

_ROOT = Path(__file__).parents[2]
_GIB = 1024 * 1024  # of KiB


def describe_machine() -> dict[str, str]:
    """Facts by name, in the order in which a page of results tells them."""
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": _find_commit(),
        "cores": f"{os.cpu_count()} ({_find_line('/proc/cpuinfo', 'model name') or platform.machine()})",
        "memory": f"{int((_find_line('/proc/meminfo', 'MemTotal') or '0').split()[0]) / _GIB:.0f} GiB",
        "file system": _find_file_system(Path(tempfile.gettempdir()).resolve()),
        "system": f"{platform.freedesktop_os_release().get('PRETTY_NAME', 'Linux')}, {platform.release()}",
        "Python": platform.python_version(),
        "PostgreSQL": _name_wheel(find_postgres_binaries()),
        "Valkey": _name_wheel(find_valkey_binaries()),
        "user": "root" if os.geteuid() == 0 else "not root",
        "scheduling": f"nice {os.nice(0)}, autogroup {_find_autogroup()}",
    }


def _name_wheel(binaries: Binaries) -> str:
    return f"{binaries.version} (wheel {binaries.distribution})"


def _find_commit() -> str:
    def ask(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=False).stdout.strip()

    commit = ask("rev-parse", "--short", "HEAD") or "not a git checkout"
    # The file that these lines are written to may be one of the results.
    changed = ask("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/benchmarks")
    return f"{commit} with changes" if changed else commit


def _find_line(path: str, key: str) -> str | None:
    for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _find_file_system(folder: Path) -> str:
    """The type of the file system under a folder: the longest mount point that holds it. Source: proc_mounts(5)."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    holding = [(len(point), kind) for point, kind in mounts if folder.is_relative_to(point)]
    return max(holding)[1] if holding else "unknown"


def _find_autogroup() -> str:
    """The weight of the session among the others on this machine. Source: sched(7), the autogroup feature."""
    try:
        return Path("/proc/self/autogroup").read_text(encoding="ascii").partition(" ")[2].strip()
    except OSError:
        return "off"
