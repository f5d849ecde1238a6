"""What `millpond doctor` finds: on a stack that does not run, that is well, and that is not."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from millpond.client.answers import HealthPart, ServiceHealth
from millpond.stack.examining import Check, Finding, examine
from millpond.stack.keys import SERVICES, operator_key_file
from millpond.stack.lock import StackLock
from millpond.stack.paths import StackPaths
from millpond.stack.processes import ProcessState
from millpond.stack.status import ProcessStatus, StackStatus, write_status
from millpond_contracts.bodies.nodes import NodeState
from millpond_contracts.errors import ErrorCode
from tests.unit.client.fake_api import URL, FakeApi, page, problem
from tests.unit.client.things import node

pytestmark = pytest.mark.unit

NOW = datetime(2026, 11, 29, tzinfo=UTC)


@pytest.fixture
def paths(tmp_path: Path) -> StackPaths:
    """The folders of a stack, prepared."""
    paths = StackPaths(folder=tmp_path / "stack", runtime=tmp_path / "run")
    paths.runtime.mkdir()
    paths.secrets.mkdir(parents=True)
    operator_key_file(paths).write_text("mp_key\n")
    return paths


@pytest.fixture
def running(paths: StackPaths) -> Iterator[StackPaths]:
    """As seen while a supervisor has it."""
    with StackLock(paths.lock_file):
        yield paths


def tell(paths: StackPaths, state: ProcessState, restarts: int = 0, pid: int = 17) -> None:
    process = ProcessStatus("worker", state, pid, NOW, restarts, -9, paths.logs / "worker.log")
    write_status(StackStatus(12, NOW, (process,)), paths.status_file)


def well() -> FakeApi:
    api = FakeApi()
    for service in SERVICES:
        api.on("GET", f"/healthz/{service}", ServiceHealth(service=service, status="ok", ready=True))
    return api.on("GET", "/v1/nodes", page([node()]))


def look(paths: StackPaths, api: FakeApi | None) -> dict[str, Check]:
    """The checks by subject."""
    url, transport = (None, None) if api is None else (URL, api.transport())
    return {check.subject: check for check in examine(paths, url, transport=transport)}


def test_doctor_when_no_stack_runs_then_its_services_are_skipped_and_never_good(paths: StackPaths) -> None:
    checks = look(paths, well())
    assert checks["services"].finding is Finding.SKIPPED
    assert not {*SERVICES, "nodes", "processes"} & checks.keys()


def test_doctor_when_all_is_well_then_each_service_and_node_is_good(running: StackPaths) -> None:
    tell(running, ProcessState.READY)
    api = well()
    checks = look(running, api)
    assert {checks[name].finding for name in (*SERVICES, "nodes", "processes")} == {Finding.GOOD}
    assert {request.headers["Authorization"] for request in api.requests} == {"Bearer mp_key"}


def test_doctor_when_not_root_then_it_says_what_tasks_can_read(
    paths: StackPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = look(paths, None)["isolation"]
    assert found.finding is Finding.ATTENTION
    assert "keys and data" in found.found


@pytest.mark.parametrize(
    ("state", "restarts", "subject", "finding"),
    [
        (ProcessState.BACKING_OFF, 4, "worker", Finding.BAD),
        (ProcessState.READY, 2, "restarts", Finding.ATTENTION),
    ],
)
def test_doctor_when_a_process_ends_then_it_is_named_with_its_log(
    running: StackPaths, state: ProcessState, restarts: int, subject: str, finding: Finding
) -> None:
    tell(running, state, restarts)
    checks = look(running, well())
    assert checks[subject].finding is finding
    assert str(running.logs) in checks[subject].remedy
    assert "processes" not in checks


def test_doctor_when_a_process_is_stopped_by_a_signal_then_it_is_named_with_what_ends_it(running: StackPaths) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        tell(running, ProcessState.READY, pid=child.pid)
        found = look(running, well())["worker"]
    finally:
        child.kill()
        child.wait()
    assert found.finding is Finding.BAD
    assert f"kill -CONT {child.pid}" in found.remedy


def test_doctor_when_the_clock_was_moved_then_it_says_by_how_much(running: StackPaths) -> None:
    booted = time.clock_gettime(time.CLOCK_BOOTTIME)
    write_status(StackStatus(12, datetime.now(UTC), (), booted), running.status_file)
    assert "clock" not in look(running, well())
    write_status(StackStatus(12, datetime.now(UTC) - timedelta(hours=1), (), booted), running.status_file)
    assert "was moved by +3600 s" in look(running, well())["clock"].found


def test_doctor_when_the_disk_is_nearly_full_then_what_follows(
    paths: StackPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 10**12, 0))
    found = look(paths, None)["disk"]
    assert (found.finding, "nothing is lost" in found.remedy) == (Finding.BAD, True)


def test_doctor_when_services_are_not_well_then_each_is_found_with_its_reason(running: StackPaths) -> None:
    tell(running, ProcessState.READY)
    api = well()
    ill = HealthPart(ok=False, reason="silent", since=NOW, effect="bills come later", remedy="see its log")
    parts = {"worker": ill, "database": HealthPart(ok=True)}
    api.on("GET", "/healthz/quota", ServiceHealth(service="quota", status="degraded", ready=True, parts=parts))
    api.on("GET", "/healthz/billing", ServiceHealth(service="billing", status="down", ready=False))
    # As a gateway answers for a service whose process is away.
    api.on("GET", "/healthz/scheduler", problem(ErrorCode.DEPENDENCY_AWAY, "The scheduler does not answer."))
    api.on("GET", "/v1/nodes", page([node().model_copy(update={"state": NodeState.UNREACHABLE})]))
    checks = look(running, api)
    assert (checks["quota"].finding, checks["quota"].remedy) == (Finding.ATTENTION, "see its log")
    assert checks["quota"].found.startswith("degraded: worker: silent (since 2026-11-29 00:00:00 UTC, ")
    assert checks["quota"].found.endswith("; bills come later")
    assert checks["billing"].finding is Finding.BAD
    assert checks["scheduler"].finding is Finding.BAD
    assert "The scheduler does not answer." in checks["scheduler"].found
    assert checks["nodes"].finding is Finding.ATTENTION
    assert checks["nodes"].found.startswith("not ready: vm (unreachable since ")


def test_doctor_when_no_node_has_joined_then_it_says_how(running: StackPaths) -> None:
    tell(running, ProcessState.READY)
    checks = look(running, well().on("GET", "/v1/nodes", page([])))
    assert checks["nodes"].finding is Finding.ATTENTION
    assert "join-token create" in checks["nodes"].remedy
