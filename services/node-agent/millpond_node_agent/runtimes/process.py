"""Runs tasks as plain processes of this machine: each with a launcher, a group, a user and folders of its own.

Two places: `state_dir` (0700, ours: run folders with documents and logs) and `work_dir` (0711, tasks pass through it
to their private folder). Nothing is kept in memory; every answer comes from the run folder, so a new agent knows all
that the old one knew.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import millpond_node_agent
from millpond_node_agent.runtimes import logfile, runfolder
from millpond_node_agent.runtimes.boottime import boot_id, monotonic_ms
from millpond_node_agent.runtimes.cgroups import CgroupHost, Limits, detect_cgroups, remove_cgroup
from millpond_node_agent.runtimes.groups import TaskGroup
from millpond_node_agent.runtimes.isolation import (
    TaskFolders,
    UserPool,
    UserRange,
    can_hide_processes,
    detect_user_range,
    task_environment,
    unreachable_parent,
)
from millpond_node_agent.runtimes.launcher import STOP_SIGNAL
from millpond_node_agent.runtimes.protocol import (
    Collected,
    GroupNotEmpty,
    LogChunk,
    RefusalCode,
    RefusedTask,
    Run,
    RunNotFound,
    RuntimeReport,
    TaskSpec,
    TaskState,
    TaskStatus,
)
from millpond_node_agent.runtimes.records import is_alive, lost_exit, parse_run, read_status, run_document
from millpond_node_agent.runtimes.runfolder import Document
from millpond_node_agent.runtimes.visibility import device_groups
from millpond_node_agent.runtimes.watching import ExitWatch

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}\Z")
_POLL_SECONDS = 0.02
_LAUNCH_SECONDS = 30.0
_LAUNCHER_PATIENCE_MS = 3_000  # after the grace, before the agent kills by itself
_KILL_PATIENCE_SECONDS = 10.0
_NO_USERS = "not root, or without the capabilities to change users: all tasks run as the agent's own user"
_PROCESSES_SEEN = "no mount namespaces (CAP_SYS_ADMIN, Linux 5.8): tasks see one another's command lines in /proc"


class UnreachableWorkFolder(ValueError):
    """Tasks run as users of their own could not reach their folders."""


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Where and how the process runtime works. `users` and `cgroups` None = detect."""

    state_dir: Path
    work_dir: Path
    python: str = sys.executable
    pids_limit: int = 4096
    minimum_free_mib: int = 256
    users: UserRange | None = None
    cgroups: CgroupHost | None = None


class ProcessRuntime:
    """The process runtime; see `protocol.Runtime` for what each operation promises."""

    def __init__(self, settings: ProcessSettings) -> None:
        """Set up the two folders and find out what this machine allows.

        Raises:
            UnreachableWorkFolder: `work_dir` lies below a folder that task users may not pass.
        """
        self._settings = settings
        self._runs = settings.state_dir / "runs"
        self._fence = settings.state_dir / "fence.json"
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._runs.mkdir(mode=0o700, exist_ok=True)
        settings.work_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._cgroups = settings.cgroups or detect_cgroups()
        users = settings.users or detect_user_range()
        self._users = UserPool(users, settings.state_dir / "next_user") if users else None
        self._hides_processes = users is not None and can_hide_processes(settings.python)
        if self._users:
            settings.work_dir.chmod(0o711)
            self._require_reachable()
        self._sweep()

    def report(self) -> RuntimeReport:
        warnings = (*self._cgroups.warnings, *(() if self._users else (_NO_USERS,)))
        if self._users and not self._hides_processes:
            warnings += (_PROCESSES_SEEN,)
        limits = {0: "none", 1: "v1", 2: "v2"}[self._cgroups.version]
        return RuntimeReport("process", "user" if self._users else "none", limits, warnings)

    async def prepare(self, spec: TaskSpec) -> None:
        _check(spec)
        task_environment(spec, self._folders(spec.allocation_id))  # refuses what it cannot express
        await asyncio.to_thread(self._prepare, spec)

    async def start(self, spec: TaskSpec) -> TaskStatus:
        document = self._load(spec.allocation_id)
        folder = self._runs / spec.allocation_id
        if read_status(folder).state is TaskState.PREPARED:
            await asyncio.to_thread(self._launch, folder, self._plan(spec, document))
        return read_status(folder)

    async def status(self, allocation_id: str) -> TaskStatus:
        self._load(allocation_id)
        return read_status(self._runs / allocation_id)

    def watch(self, allocation_id: str, status: TaskStatus, event: asyncio.Event) -> ExitWatch | None:
        return None if status.pid is None else ExitWatch(status.pid, event)

    async def signal(self, allocation_id: str, number: int) -> bool:
        self._load(allocation_id)
        started = runfolder.read_document(str(self._runs / allocation_id / runfolder.STARTED))
        return started is not None and _send(started, number)

    async def stop(self, allocation_id: str, grace_seconds: float) -> TaskStatus:
        document = self._load(allocation_id)
        folder = self._runs / allocation_id
        kill_ms = self._ask_to_stop(folder, grace_seconds)
        launcher = runfolder.read_document(str(folder / runfolder.LAUNCHER))
        if launcher is not None and _send(launcher, STOP_SIGNAL):
            await _wait_for_exit(folder, launcher, kill_ms + _LAUNCHER_PATIENCE_MS)
        known = read_status(folder)
        if known.state is TaskState.EXITED:
            return known
        return await self._stop_without_launcher(folder, document, known, kill_ms)

    async def collect(self, allocation_id: str) -> Collected:
        self._load(allocation_id)
        folder = str(self._runs / allocation_id)
        pieces = logfile.log_pieces(folder)
        ended = runfolder.read_document(os.path.join(folder, runfolder.EXIT)) or {}
        total = max((first + length for first, length, _ in pieces), default=0)
        kept = sum(length for _, length, _ in pieces)
        status = read_status(Path(folder))
        return Collected(status, ended.get("cpu_ms"), ended.get("peak_memory_mib"), total, total - kept)

    async def read_log(self, allocation_id: str, offset: int, limit: int) -> LogChunk:
        self._load(allocation_id)
        start, data = await asyncio.to_thread(logfile.read_log, str(self._runs / allocation_id), offset, limit)
        return LogChunk(start, data, cut=start > offset)

    async def remove(self, allocation_id: str) -> None:
        document = self._load(allocation_id)
        folder = self._runs / allocation_id
        if read_status(folder).state not in (TaskState.EXITED, TaskState.PREPARED):
            raise GroupNotEmpty(f"{allocation_id} has not ended")
        await asyncio.to_thread(self._remove, document, folder)

    async def list_runs(self) -> list[Run]:
        documents = [document for document in self._documents() if document is not None]
        documents.sort(key=lambda document: (document["boot_id"] == boot_id(), document["prepared_monotonic_ms"]))
        return [parse_run(document, read_status(self._runs / document["allocation_id"])) for document in documents]

    async def extend_lease(self, deadline_monotonic_ms: int, kill_monotonic_ms: int) -> None:
        document = {
            "boot_id": boot_id(),
            "deadline_monotonic_ms": deadline_monotonic_ms,
            "kill_monotonic_ms": kill_monotonic_ms,
        }
        runfolder.write_document(str(self._fence), document)

    # Preparing and starting

    def _sweep(self) -> None:
        """Remove what an agent left that died while it prepared or removed a run."""
        for folder in self._runs.iterdir():
            if not (folder / runfolder.RUN).exists():
                remove_cgroup({name: str(parent / folder.name) for name, parent in self._cgroups.parents.items()})
                self._folders(folder.name).remove()
                shutil.rmtree(folder)

    def _require_reachable(self) -> None:
        closed = unreachable_parent(self._settings.work_dir)
        if closed is not None:
            raise UnreachableWorkFolder(
                f"task users cannot pass {closed} on the way to {self._settings.work_dir}: "
                "choose a work folder below folders that everybody may pass (mode 0711 or 0755), such as /var/lib"
            )

    def _prepare(self, spec: TaskSpec) -> None:
        folder = self._runs / spec.allocation_id
        if (folder / runfolder.RUN).exists():
            return
        self._require_space()
        folder.mkdir(mode=0o700, exist_ok=True)
        uid = self._users.take(self._used_users()) if self._users else None
        limits = Limits(spec.terms.cpu_milli, spec.terms.memory_mib, self._settings.pids_limit)
        try:
            self._folders(spec.allocation_id).make(uid)
            cgroup = self._cgroups.create(spec.allocation_id, limits)
        except OSError as error:
            self._folders(spec.allocation_id).remove()
            shutil.rmtree(folder)
            raise RefusedTask(RefusalCode.GROUP_UNAVAILABLE, f"{error.strerror}: {error.filename}") from error
        group = {"folders": cgroup, "uid": uid, "marker": spec.allocation_id}
        document = run_document(spec.terms, group, monotonic_ms())
        runfolder.write_document(str(folder / runfolder.RUN), document, durable=True)

    def _require_space(self) -> None:
        for place in (self._settings.state_dir, self._settings.work_dir):
            free = shutil.disk_usage(place).free >> 20
            if free < self._settings.minimum_free_mib:
                detail = f"{free} MiB free, {self._settings.minimum_free_mib} MiB needed"
                raise RefusedTask(RefusalCode.NO_SPACE, detail)

    def _plan(self, spec: TaskSpec, document: Document) -> Document:
        folders = self._folders(spec.allocation_id)
        return {
            "argv": list(spec.command),
            "env": task_environment(spec, folders),
            "cwd": str(folders.work),
            "uid": document["group"]["uid"],
            "hide_processes": self._hides_processes,
            "gids": list(device_groups(spec.terms.devices)),
            "group": document["group"],
            "grace_seconds": spec.terms.stop_grace_seconds,
            "time_limit_seconds": spec.time_limit_seconds,
            "fence": str(self._fence),
        }

    def _launch(self, folder: Path, plan: Document) -> None:
        """Run the launcher until it says that the task started, or failed to."""
        imports = str(Path(millpond_node_agent.__file__).parent.parent)
        code = f"import sys; sys.path.append({imports!r}); from millpond_node_agent.runtimes.launcher import main; "
        # Without site packages and user settings: quick, small, and deaf to the agent's environment.
        command = [self._settings.python, "-E", "-s", "-S", "-c", code + "main(sys.argv[1])", str(folder)]
        env = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        errors = folder / "launcher.err"
        try:
            with errors.open("ab") as stderr:
                subprocess.run(
                    command,
                    input=json.dumps(plan).encode(),
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env={"PATH": os.defpath, "LANG": "C.UTF-8", **env},
                    start_new_session=True,
                    timeout=_LAUNCH_SECONDS,
                    check=True,
                )
        except (OSError, subprocess.SubprocessError) as error:
            detail = errors.read_text(errors="replace").strip().splitlines()[-1:] or [str(error)]
            raise RefusedTask(RefusalCode.START_FAILED, detail[0]) from error

    # Stopping and removing

    def _ask_to_stop(self, folder: Path, grace_seconds: float) -> int:
        """Write down when the grace ends, never later than an earlier stop said; returns that instant."""
        kill_ms = monotonic_ms() + int(grace_seconds * 1000)
        path = str(folder / runfolder.STOP)
        earlier = runfolder.read_document(path)
        if earlier is not None and earlier["boot_id"] == boot_id():
            kill_ms = min(kill_ms, earlier["kill_monotonic_ms"])
        runfolder.write_document(path, {"boot_id": boot_id(), "kill_monotonic_ms": kill_ms})
        # A run that was never launched must not be launched from now on.
        runfolder.claim_document(str(folder / runfolder.LAUNCHER), {"pid": 0, "start_ticks": None, "boot_id": ""})
        return kill_ms

    async def _stop_without_launcher(
        self, folder: Path, document: Document, known: TaskStatus, kill_ms: int
    ) -> TaskStatus:
        group = TaskGroup(document["group"])
        group.send(signal.SIGTERM)
        await _wait(lambda: not group.pids(), kill_ms)
        if not await asyncio.to_thread(group.kill, _KILL_PATIENCE_SECONDS):
            raise GroupNotEmpty(f"{document['allocation_id']}: processes {group.pids()} cannot be killed")
        launcher = runfolder.read_document(str(folder / runfolder.LAUNCHER))
        if launcher is not None and is_alive(launcher):
            await _wait_for_exit(folder, launcher, monotonic_ms() + _LAUNCHER_PATIENCE_MS)
        exit_path = str(folder / runfolder.EXIT)
        runfolder.claim_document(exit_path, lost_exit(known, monotonic_ms()))
        return read_status(folder)

    def _remove(self, document: Document, folder: Path) -> None:
        remove_cgroup(document["group"]["folders"])
        self._folders(document["allocation_id"]).remove()
        shutil.rmtree(folder)

    # Reading

    def _folders(self, allocation_id: str) -> TaskFolders:
        return TaskFolders(self._settings.work_dir / allocation_id)

    def _load(self, allocation_id: str) -> Document:
        if _NAME.match(allocation_id):
            document = runfolder.read_document(str(self._runs / allocation_id / runfolder.RUN))
            if document is not None:
                return document
        raise RunNotFound(allocation_id)

    def _documents(self) -> list[Document | None]:
        return [runfolder.read_document(str(folder / runfolder.RUN)) for folder in self._runs.iterdir()]

    def _used_users(self) -> set[int]:
        return {document["group"]["uid"] for document in self._documents() if document is not None}


async def _wait_for_exit(folder: Path, launcher: Document, until_ms: int) -> None:
    exit_path = folder / runfolder.EXIT
    await _wait(lambda: exit_path.exists() or not is_alive(launcher), until_ms)


async def _wait(done: Callable[[], bool], until_ms: int) -> None:
    while not done() and monotonic_ms() < until_ms:  # noqa: ASYNC110 - another process does it, no event tells
        await asyncio.sleep(_POLL_SECONDS)


def _send(process: Document, number: int) -> bool:
    """Signal exactly this process, never another one that got its pid since."""
    try:
        descriptor = os.pidfd_open(process["pid"])
    except (OSError, ValueError):
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def _check(spec: TaskSpec) -> None:
    """Refuse what no run could be made of."""
    if not _NAME.match(spec.allocation_id):
        raise RefusedTask(RefusalCode.BAD_IDENTITY, f"{spec.allocation_id[:80]!r} cannot name a folder")
    if spec.simulation is not None:
        raise RefusedTask(RefusalCode.SIMULATED, "the task is a simulation, and this is a real machine")
    if spec.image is not None:
        detail = f"image {spec.image[:80]!r}: this node has no container runtime"
        raise RefusedTask(RefusalCode.IMAGE_WITHOUT_RUNTIME, detail)
    if not spec.command or not spec.command[0] or any("\0" in word for word in spec.command):
        raise RefusedTask(RefusalCode.BAD_COMMAND, "a command needs a program and no NUL byte")
    if (
        min(spec.terms.cpu_milli, spec.terms.memory_mib, spec.terms.stop_grace_seconds, spec.time_limit_seconds or 0)
        < 0
    ):
        raise RefusedTask(RefusalCode.BAD_LIMITS, "a limit is negative")
