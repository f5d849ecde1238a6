"""The supervisor with real processes: order, restart, stop, and nothing left when it is killed."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from millpond.stack.engines import is_running, read_tail
from millpond.stack.errors import StackAlreadyRunning, StackError
from millpond.stack.launchers import ForkLauncher, ProgramLauncher
from millpond.stack.lock import StackLock, find_supervisor, stop_supervisor
from millpond.stack.paths import locate_stack
from millpond.stack.ports import find_free_port
from millpond.stack.postgres import PostgresEngine
from millpond.stack.processes import (
    ProcessSpec,
    ProcessState,
    RestartPolicy,
    engine_process,
    http_ready,
    python_command,
)
from millpond.stack.status import ProcessStatus, read_status
from millpond.stack.supervisor import ProcessFailed, Supervisor
from millpond.stack.users import find_stack_user
from millpond.stack.valkey import ValkeyEngine
from tests.integration.stack.programs import start_python
from tests.waiting import eventually

pytestmark = pytest.mark.integration

SLEEPER = "import time; time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
)

# Run by a second interpreter, so that it can be killed: a supervisor of three processes, one of them forked.
STACK = """
import asyncio, os, sys
from pathlib import Path
from millpond.stack.launchers import ForkLauncher
from millpond.stack.lock import StackLock
from millpond.stack.processes import ProcessSpec, python_command
from millpond.stack.supervisor import Supervisor

folder = Path(sys.argv[1])
common = {"environment": {"PYTHONPATH": str(folder)}, "folder": folder}

def spec(name, **more):
    argv = python_command("sleeper", name)
    return ProcessSpec(name=name, argv=argv, log_file=folder / f"{name}.log", **common, **more)

async def main():
    fork = lambda programs: ForkLauncher(programs, ["json"], log_file=folder / "forks.log",
        folder=folder, environment={"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])})
    supervisor = Supervisor(status_file=folder / "status.json", fork=fork)
    with StackLock(folder / "lock"):
        await supervisor.run([spec("first"), spec("second", needs=("first",)), spec("forked", preloaded=True)])

asyncio.run(main())
"""


def make_spec(folder: Path, name: str, code: str, **more: Any) -> ProcessSpec:
    argv = (sys.executable, "-S", "-c", code)
    common: dict[str, Any] = {"environment": {}, "folder": folder, "log_file": folder / f"{name}.log"}
    return ProcessSpec(name=name, argv=argv, **{**common, **more})


def find(supervisor: Supervisor, name: str) -> ProcessStatus:
    process = supervisor.status.find(name)
    assert process is not None
    return process


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


async def test_supervisor_when_a_process_is_killed_then_starts_it_again(tmp_path: Path) -> None:
    supervisor = Supervisor(status_file=tmp_path / "status.json")
    supervisor.add([make_spec(tmp_path, "victim", SLEEPER), make_spec(tmp_path, "bystander", SLEEPER)])
    await supervisor.wait_ready(10)
    victim, bystander = find(supervisor, "victim"), find(supervisor, "bystander")
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    await eventually(lambda: find(supervisor, "victim").restarts == 1)
    await eventually(lambda: find(supervisor, "victim").state is ProcessState.READY)
    after = find(supervisor, "victim")
    assert after.pid != victim.pid
    assert after.last_exit == -signal.SIGKILL
    assert find(supervisor, "bystander").pid == bystander.pid
    await eventually(lambda: read_status(tmp_path / "status.json") == supervisor.status)
    await supervisor.stop()
    assert {process.state for process in supervisor.status.processes} == {ProcessState.STOPPED}
    assert bystander.pid is not None
    assert not is_running(bystander.pid)


async def test_supervisor_when_processes_need_others_then_starts_in_order_and_stops_in_reverse(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    code = (
        "import pathlib, signal, sys, time\n"
        f"note = lambda word: pathlib.Path({str(journal)!r}).open('a').write(word + '\\n')\n"
        "signal.signal(signal.SIGTERM, lambda *_: (note('stop ' + '{name}'), sys.exit(0)))\n"
        "time.sleep(0.1)\n"
        "note('start ' + '{name}')\n"
        "time.sleep(60)\n"
    )

    def spec(name: str, *needs: str) -> ProcessSpec:
        async def ready(_pid: int) -> bool:
            return journal.exists() and f"start {name}\n" in journal.read_text()

        return make_spec(tmp_path, name, code.replace("{name}", name), needs=needs, ready=ready)

    supervisor = Supervisor()
    supervisor.add([spec("top", "middle"), spec("bottom"), spec("middle", "bottom")])
    await supervisor.wait_ready(15)
    await supervisor.stop()
    expected = ["start bottom", "start middle", "start top", "stop top", "stop middle", "stop bottom"]
    assert journal.read_text().splitlines() == expected


async def test_step_when_it_ends_well_then_lets_others_start_and_runs_once(tmp_path: Path) -> None:
    done = tmp_path / "done"
    code = f"import pathlib; pathlib.Path({str(done)!r}).open('a').write('x')"
    supervisor = Supervisor()
    step = make_spec(tmp_path, "step", code, restart=RestartPolicy.ONCE)
    check = f"import pathlib; assert pathlib.Path({str(done)!r}).exists(); {SLEEPER}"
    supervisor.add([make_spec(tmp_path, "after", check, needs=("step",)), step])
    await supervisor.wait_ready(10)
    assert find(supervisor, "step").state is ProcessState.DONE
    assert find(supervisor, "after").restarts == 0
    await supervisor.stop()
    assert done.read_text() == "x"


async def test_step_when_it_fails_then_the_start_fails_with_the_end_of_its_log(tmp_path: Path) -> None:
    step = make_spec(tmp_path, "step", "raise SystemExit('no such table')", restart=RestartPolicy.ONCE)
    later = make_spec(tmp_path, "later", SLEEPER, needs=("step",))
    with pytest.raises(ProcessFailed, match="no such table"):
        await Supervisor().run([step, later])
    assert not (tmp_path / "later.log").exists()


async def test_process_when_it_never_gets_ready_then_the_start_names_it_and_leaves_nothing(tmp_path: Path) -> None:
    supervisor = Supervisor()
    with pytest.raises(ProcessFailed, match=r"hopeless keeps failing[\s\S]*broken wheel"):
        await supervisor.run(
            [make_spec(tmp_path, "hopeless", "raise SystemExit('broken wheel')", ready=http_ready(""))]
        )
    assert all(process.pid is None for process in supervisor.status.processes)


async def test_stop_when_a_process_ignores_it_then_its_group_is_killed(tmp_path: Path) -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {SLEEPER!r}]); {STUBBORN}"

    async def is_deaf(_pid: int) -> bool:
        return "deaf" in read_tail(tmp_path / "stubborn.log")

    supervisor = Supervisor()
    supervisor.add([make_spec(tmp_path, "stubborn", code, ready=is_deaf, stop_timeout_seconds=0.2)])
    await supervisor.wait_ready(10)
    pid = find(supervisor, "stubborn").pid
    assert pid is not None
    (grandchild,) = children_of(pid)
    await supervisor.stop()
    assert find(supervisor, "stubborn").last_exit == -signal.SIGKILL
    await eventually(lambda: not is_running(grandchild))


@pytest.mark.parametrize(
    ("names_and_needs", "message"),
    [
        ([("one", ()), ("one", ())], "taken twice"),
        ([("one", ("nothing",))], "unknown"),
        ([("one", ("two",)), ("two", ("one",))], "circle"),
    ],
)
async def test_add_when_names_or_needs_are_wrong_then_refuses(
    tmp_path: Path, names_and_needs: list[tuple[str, tuple[str, ...]]], message: str
) -> None:
    supervisor = Supervisor()
    with pytest.raises(StackError, match=message):
        supervisor.add([make_spec(tmp_path, name, SLEEPER, needs=needs) for name, needs in names_and_needs])
    await supervisor.stop()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that the stack's user can enter, which pytest's own is not under root."""
    folder = Path(tempfile.mkdtemp(prefix="millpond-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def stack_folder(tmp_path: Path) -> Path:
    (tmp_path / "sleeper.py").write_text("import sys, time; print('run', sys.argv[1], flush=True); time.sleep(60)")
    return tmp_path


@pytest.fixture
async def stack(stack_folder: Path) -> AsyncIterator[subprocess.Popen[str]]:
    """The supervisor of `STACK`, all of its processes ready; gone with them afterwards, whatever happened."""

    def all_ready() -> bool:
        status = read_status(stack_folder / "status.json")
        return status is not None and {entry.state for entry in status.processes} == {ProcessState.READY}

    with start_python(STACK, str(stack_folder)) as process:
        try:
            await eventually(all_ready)
            yield process
        finally:
            process.kill()


def pids_of(folder: Path) -> list[int]:
    status = read_status(folder / "status.json")
    assert status is not None
    return [entry.pid for entry in status.processes if entry.pid is not None]


async def test_supervisor_when_killed_then_nothing_is_left_running(
    stack_folder: Path, stack: subprocess.Popen[str]
) -> None:
    pids = {*pids_of(stack_folder), *children_of(stack.pid)}
    assert len(pids) == 4  # first, second, forked and the fork server
    stack.kill()
    stack.wait()
    await eventually(lambda: not any(is_running(pid) for pid in pids))
    assert find_supervisor(stack_folder / "lock") is None


async def test_stack_when_it_runs_then_is_found_refuses_a_second_one_and_stops_cleanly(
    stack_folder: Path, stack: subprocess.Popen[str]
) -> None:
    lock = stack_folder / "lock"
    pids = {*pids_of(stack_folder), *children_of(stack.pid)}
    assert find_supervisor(lock) == stack.pid
    with pytest.raises(StackAlreadyRunning, match=str(stack.pid)), StackLock(lock):
        pass
    stopping = asyncio.create_task(asyncio.to_thread(stop_supervisor, lock, 20))
    assert await asyncio.to_thread(stack.wait, 20) == 0
    assert await stopping
    assert not any(is_running(pid) for pid in pids)
    assert not stop_supervisor(lock)


def make_fork_supervisor(folder: Path, modules: list[str]) -> tuple[Supervisor, list[ForkLauncher]]:
    launchers: list[ForkLauncher] = []

    def make(programs: ProgramLauncher) -> ForkLauncher:
        path = os.pathsep.join([str(folder), *sys.path])
        launcher = ForkLauncher(
            programs, modules, environment={"PYTHONPATH": path}, folder=folder, log_file=folder / "forks.log"
        )
        launchers.append(launcher)
        return launcher

    return Supervisor(fork=make), launchers


def forked_spec(folder: Path, name: str, module: str, *arguments: str) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        argv=python_command(module, *arguments),
        environment={"OWN": name},
        folder=folder,
        log_file=folder / f"{name}.log",
        preloaded=True,
    )


async def test_forked_process_when_killed_then_is_forked_again_from_the_same_server(stack_folder: Path) -> None:
    supervisor, (launcher,) = make_fork_supervisor(stack_folder, ["json"])
    supervisor.add([forked_spec(stack_folder, name, "sleeper", name) for name in ("left", "right")])
    await supervisor.wait_ready(10)
    before, server = find(supervisor, "left"), launcher.server_pid
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    await eventually(lambda: find(supervisor, "left").restarts == 1)
    await eventually(lambda: find(supervisor, "left").state is ProcessState.READY)
    assert find(supervisor, "left").last_exit == -signal.SIGKILL
    assert launcher.server_pid == server
    await supervisor.stop()
    assert find(supervisor, "right").last_exit == -signal.SIGTERM
    assert server is not None
    assert not is_running(server)


async def test_fork_server_when_killed_then_all_it_forked_is_started_again(stack_folder: Path) -> None:
    supervisor, (launcher,) = make_fork_supervisor(stack_folder, ["json"])
    supervisor.add([forked_spec(stack_folder, name, "sleeper", name) for name in ("left", "right")])
    await supervisor.wait_ready(10)
    before = [process.pid for process in supervisor.status.processes]
    server = launcher.server_pid
    assert server is not None
    os.kill(server, signal.SIGKILL)
    await eventually(lambda: all(process.restarts >= 1 for process in supervisor.status.processes))
    await eventually(lambda: all(process.state is ProcessState.READY for process in supervisor.status.processes))
    assert not any(pid is not None and is_running(pid) for pid in (*before, server))
    assert launcher.server_pid != server
    await supervisor.stop()


async def test_forked_process_when_it_runs_then_has_its_own_name_log_and_environment(tmp_path: Path) -> None:
    (tmp_path / "teller.py").write_text(
        "import json, os, sys, time\n"
        "if __name__ == '__main__':\n"
        "    print(json.dumps({'argv': sys.argv[1:], 'own': dict(os.environ), 'folder': os.getcwd(),\n"
        "        'preloaded': 'wave' in sys.modules, 'leader': os.getsid(0) == os.getpid()}), flush=True)\n"
        "    time.sleep(60)\n"
    )
    supervisor, _ = make_fork_supervisor(tmp_path, ["wave"])
    supervisor.add([forked_spec(tmp_path, "registry-http", "teller", "--port", "7")])
    await supervisor.wait_ready(10)
    await eventually(lambda: "}" in read_tail(tmp_path / "registry-http.log"))
    told = (tmp_path / "registry-http.log").read_text()
    pid = find(supervisor, "registry-http").pid
    shown = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0")
    short = Path(f"/proc/{pid}/comm").read_text().strip()
    await supervisor.stop()
    assert '"argv": ["--port", "7"]' in told
    assert '"own": {"OWN": "registry-http"}' in told
    assert '"preloaded": true, "leader": true' in told
    assert shown == b"millpond: registry-http"
    assert short == "registry-http"


async def test_forked_process_when_its_module_fails_then_the_traceback_is_in_its_log(tmp_path: Path) -> None:
    (tmp_path / "breaker.py").write_text("raise RuntimeError('no configuration')")
    supervisor, _ = make_fork_supervisor(tmp_path, ["no_such_module"])
    step = replace(forked_spec(tmp_path, "breaker", "breaker"), restart=RestartPolicy.ONCE)
    with pytest.raises(ProcessFailed, match="no configuration"):
        await supervisor.run([step])
    assert "cannot import no_such_module" in (tmp_path / "forks.log").read_text()


async def test_forked_process_when_a_user_is_given_then_runs_as_that_user_and_still_dies_with_the_server(
    open_folder: Path,
) -> None:
    (open_folder / "teller.py").write_text("import os, time\nprint(os.getresuid(), os.getgroups())\ntime.sleep(60)")
    user = find_stack_user()
    supervisor, (launcher,) = make_fork_supervisor(open_folder, ["json"])
    supervisor.add([replace(forked_spec(open_folder, "teller", "teller"), user=user)])
    await supervisor.wait_ready(10)
    log = open_folder / "teller.log"
    await eventually(lambda: "]" in read_tail(log))
    uid = user.uid if user is not None else os.getuid()
    assert log.read_text().startswith(f"({uid}, {uid}, {uid})")
    assert user is None or log.read_text().endswith("[]\n")
    pid, server = find(supervisor, "teller").pid, launcher.server_pid
    assert pid is not None
    assert server is not None
    os.kill(server, signal.SIGKILL)
    await eventually(lambda: not is_running(pid))
    await supervisor.stop()


async def test_engines_when_killed_under_the_supervisor_then_come_back_at_the_same_url(open_folder: Path) -> None:
    user = find_stack_user()
    paths = locate_stack(data_folder=open_folder / "stack", user=user)
    paths.prepare(user)
    engines = (
        PostgresEngine(paths, find_free_port(), user, durable=False),
        ValkeyEngine(paths, find_free_port(), user, durable=False),
    )
    for engine in engines:
        engine.prepare()
    supervisor = Supervisor(status_file=paths.status_file)
    supervisor.add([engine_process(engine, paths.logs / f"{engine.name}.log") for engine in engines])
    await supervisor.wait_ready(30)
    for engine in engines:
        pid = find(supervisor, engine.name).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    await eventually(lambda: all(process.restarts >= 1 for process in supervisor.status.processes))
    await eventually(lambda: all(process.state is ProcessState.READY for process in supervisor.status.processes))
    connection = await asyncpg.connect(engines[0].url)
    assert await connection.fetchval("select 1") == 1
    await connection.close()
    await supervisor.stop()
    assert [process.last_exit for process in supervisor.status.processes] == [0, 0]
