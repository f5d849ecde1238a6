"""Two versions: their code with an environment each, and the processes that are started of either on one database."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from millpond.stack.engines import read_tail
from millpond.stack.keys import make_api_key
from millpond.stack.launch import launch
from tests.integration.databases import with_database
from tests.system.stack import Stack, StackFailed

ROOT = Path(__file__).resolve().parents[3]
STALE_STATEMENT = "InvalidCachedStatementError"
_PASSWORD = "of-a-test"
_STEP_SECONDS = 120
_STOP_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Version:
    """Code that can be started: `python` is of its own environment.

    Attributes:
        may_be_behind: Whether its processes start on a database that a later version has migrated.
        asks_again: Whether it answers 503 where a migration changed a table under a statement it had prepared.
    """

    name: str
    python: Path
    services: tuple[str, ...]
    may_be_behind: bool
    asks_again: bool


@contextmanager
def check_out(commit: str, folder: Path, tell: Callable[[str], None]) -> Iterator[Version]:
    """The version of a commit in a working tree of its own below `folder`, which is removed at the end."""
    tree = folder / "earlier"
    git = ("git", "-C", str(ROOT), "worktree")
    subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
    try:
        tell(f"installing {commit}")
        done = subprocess.run(
            ["tools/install"],
            cwd=tree,
            env={**os.environ, "VENV": ".venv"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise StackFailed(f"{commit} cannot be installed:\n{done.stderr[-3000:]}")
        yield describe("old", tree / ".venv" / "bin" / "python")
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=False)
        shutil.rmtree(tree, ignore_errors=True)


def describe(name: str, python: Path) -> Version:
    """What a version says about itself."""
    asked = (
        "import inspect; from millpond_contracts.events import PUBLISHERS; from millpond_kernel import db, revisions;"
        f"print(hasattr(revisions, 'may_serve'), '{STALE_STATEMENT}' in inspect.getsource(db), *PUBLISHERS)"
    )
    said = subprocess.run([str(python), "-P", "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    return Version(name, python, tuple(said[2:]), said[0] == "True", said[1] == "True")


def this_version() -> Version:
    """The code of this tree."""
    return describe("new", Path(sys.executable))


@dataclass(slots=True)
class Installation:
    """One database and Valkey, one set of secrets, and the processes of either version on them.

    Attributes:
        stack: Its folder; what judges a stack finds the database through it.
        internal_url: Where services reach one another, whichever version answers.
    """

    stack: Stack
    owner_url: str
    redis_url: str
    internal_url: str
    operator_key: str = field(default_factory=make_api_key)
    _service_keys: dict[str, str] = field(default_factory=dict)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run_step(self, version: Version, module: str) -> str:
        """Runs a step of a version to its end; what it printed."""
        done = subprocess.run(
            [str(version.python), "-P", "-m", module],
            env=self._environment(version, MILLPOND_OWNER_DATABASE_URL=self.owner_url),
            cwd=self.stack.base,
            capture_output=True,
            text=True,
            check=False,
            timeout=_STEP_SECONDS,
        )
        if done.returncode != 0:
            raise StackFailed(f"{module} of the {version.name} version:\n{done.stdout}{done.stderr}")
        return done.stdout.strip()

    def start(self, version: Version, name: str, module: str, *arguments: str, **more: str) -> int:
        """Starts a process of a version under a name of its own; its process id."""
        key = f"{version.name}-{name}"
        process = launch(
            (str(version.python), "-P", "-m", module, *arguments),
            environment=self._environment(version, **more),
            folder=self.stack.base,
            log_file=self.stack.paths.logs / f"{key}.log",
            death_signal=signal.SIGTERM,
        )
        self._running[key] = process
        return process.pid

    def is_running(self, version: Version, name: str) -> bool:
        """Whether a process that was started has not ended by itself."""
        return self._running[f"{version.name}-{name}"].poll() is None

    def stop(self, version: Version, name: str) -> None:
        """Ends a process cleanly."""
        key = f"{version.name}-{name}"
        process = self._running.pop(key)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise StackFailed(f"{key} did not stop:\n{self.log_of(key)}") from None

    def stop_all(self) -> None:
        """Ends what still runs."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        for process in self._running.values():
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def log_of(self, key: str) -> str:
        """The end of a log."""
        return f"-- {key}\n{read_tail(self.stack.paths.logs / f'{key}.log')}"

    def failed_requests(self, version: Version, name: str, error: str) -> Counter[str]:
        """Request id -> how often a process could not answer it for an error of this kind, as its log tells."""
        lines = (self.stack.paths.logs / f"{version.name}-{name}.log").read_text(encoding="utf-8").splitlines()
        entries = [json.loads(line) for line in lines if error in line and line.startswith("{")]
        return Counter(str(entry["request_id"]) for entry in entries if entry["event"] == "unexpected_error")

    def _environment(self, version: Version, **more: str) -> Mapping[str, str]:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(self.stack.base),
            "TZ": "UTC",
            "PYTHONUNBUFFERED": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MILLPOND_REDIS_URL": self.redis_url,
            "MILLPOND_OPERATOR_KEY": self.operator_key,
        }
        folders = {"SCHEDULER_LOG": "task-logs", "BILLING_EXPORT": "exports", "AUTOSCALER_SIMULATED": "orders"}
        for name, folder in folders.items():
            environment[f"MILLPOND_{name}_FOLDER"] = str(self.stack.paths.work / folder)
        for service in version.services:
            upper = service.upper()
            database = with_database(self.owner_url, "millpond", f"millpond_{service}", _PASSWORD)
            environment[f"MILLPOND_{upper}_DATABASE_URL"] = database
            environment[f"MILLPOND_{upper}_SERVICE_KEY"] = self._service_keys.setdefault(service, make_api_key())
            environment[f"MILLPOND_{upper}_URL"] = self.internal_url
        return environment | more
