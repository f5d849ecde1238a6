"""Which Python a task of the demo can run: tasks have users of their own and cannot enter closed folders."""

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from millpond.stack.users import SystemUser, find_blocking_folder, find_stack_user, make_open_folder

_CANDIDATES = ("/usr/bin/python3", "/usr/local/bin/python3", f"/usr/bin/python3.{sys.version_info.minor}")


@dataclass(frozen=True, slots=True)
class TaskPython:
    """A Python that any user may run. `packages` is put on its path and holds NumPy; None = plain Python only."""

    program: str
    packages: Path | None

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the task."""
        return {} if self.packages is None else {"PYTHONPATH": str(self.packages)}


def choose_python(shared_folder: Path) -> TaskPython | None:
    """The best Python for tasks on this machine; None when there is none that tasks may run.

    Args:
        shared_folder: Where NumPy is copied to when the place it is installed in is closed to tasks.
    """
    user = find_stack_user()
    own = Path(sys.executable)
    if user is None:
        return TaskPython(str(own), _numpy_folder())
    if find_blocking_folder(Path(sys.base_prefix), user) is None and find_blocking_folder(own, user) is None:
        return TaskPython(str(own), _open_packages(shared_folder, user))
    for program in _CANDIDATES:
        version = _version_of(program)
        if version is not None:
            same = version == sys.version_info[:2]
            return TaskPython(program, _open_packages(shared_folder, user) if same else None)
    return None


def _version_of(program: str) -> tuple[int, ...] | None:
    if not os.access(program, os.X_OK):
        return None
    done = subprocess.run(
        [program, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False
    )
    return tuple(int(part) for part in done.stdout.split()) if done.returncode == 0 else None


def _numpy_folder() -> Path | None:
    spec = importlib.util.find_spec("numpy")
    return None if spec is None or spec.origin is None else Path(spec.origin).parents[1]


def _open_packages(shared_folder: Path, user: SystemUser) -> Path | None:
    """A folder with NumPy that every user may read: where it is installed, or a copy."""
    installed = _numpy_folder()
    if installed is None or find_blocking_folder(installed / "numpy", user) is None:
        return installed
    make_open_folder(shared_folder)
    for name in ("numpy", "numpy.libs"):
        if (installed / name).is_dir() and not (shared_folder / name).exists():
            shutil.copytree(installed / name, shared_folder / name, ignore=shutil.ignore_patterns("tests", "*.pyi"))
    for folder, _, files in os.walk(shared_folder):
        Path(folder).chmod(0o755)
        for file in files:
            (Path(folder) / file).chmod(0o644)
    return shared_folder
