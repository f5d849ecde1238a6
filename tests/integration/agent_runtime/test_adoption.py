"""The agent dies and comes back: its tasks run on, and nothing about them is forgotten."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import millpond_node_agent
from millpond_node_agent.runtimes.process import ProcessRuntime, ProcessSettings
from millpond_node_agent.runtimes.protocol import TaskState
from tests.integration.agent_runtime.task_runs import (
    MakeSpec,
    is_running,
    launch,
    log_text,
    wait_for_text,
    wait_until_over,
)

pytestmark = pytest.mark.integration

_AGENT = """
import asyncio, signal, sys
from pathlib import Path
from millpond_node_agent.runtimes.process import ProcessRuntime, ProcessSettings
from millpond_node_agent.runtimes.protocol import TaskSpec, TaskTerms

async def main(place, script):
    runtime = ProcessRuntime(ProcessSettings(place / "state", place / "work"))
    terms = TaskTerms("adopted", "job", "task", "ten", 2, 9, 500, 64, (), 1.0)
    spec = TaskSpec(terms, ("/bin/sh", "-c", script), {}, None, None)
    await runtime.prepare(spec)
    print((await runtime.start(spec)).pid, flush=True)
    signal.pause()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


def start_then_kill_an_agent(place: Path, script: str) -> int:
    """Let another process start the task `adopted` and die without a word; returns the task's pid."""
    agent = subprocess.Popen(
        [sys.executable, "-c", _AGENT, str(place), script], stdout=subprocess.PIPE, start_new_session=True
    )
    assert agent.stdout is not None
    with agent, agent.stdout:
        pid = int(agent.stdout.readline())
        os.killpg(agent.pid, signal.SIGKILL)
    return pid


async def test_list_runs_when_the_agent_was_killed_then_running_work_is_found_and_its_log_grows(
    runtime: ProcessRuntime, place: Path
) -> None:
    pid = start_then_kill_an_agent(place, "while [ ! -e go ]; do sleep 0.05; done; echo finished; exit 5")
    [run] = await runtime.list_runs()

    assert (run.allocation_id, run.terms.attempt, run.terms.epoch, run.terms.cpu_milli) == ("adopted", 2, 9, 500)
    assert (run.status.state, run.status.pid) == (TaskState.RUNNING, pid)
    (place / "work" / "adopted" / "work" / "go").touch()
    status = await wait_until_over(runtime, "adopted")
    assert status.exit_code == 5
    assert await log_text(runtime, "adopted") == "finished\n"


async def test_list_runs_when_work_ended_meanwhile_then_its_exit_is_learnt(
    runtime: ProcessRuntime, place: Path
) -> None:
    start_then_kill_an_agent(place, "echo bye; sleep 0.2; exit 6")
    status = await wait_until_over(runtime, "adopted")

    assert (status.exit_code, await log_text(runtime, "adopted")) == (6, "bye\n")


async def test_status_when_the_launchers_pid_belongs_to_another_process_then_the_run_is_unknown(
    runtime: ProcessRuntime, settings: ProcessSettings, make_spec: MakeSpec
) -> None:
    spec = make_spec("sleep 300")
    await launch(runtime, spec)
    path = settings.state_dir / "runs" / spec.allocation_id / "launcher.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "start_ticks": document["start_ticks"] - 1}))

    assert (await runtime.status(spec.allocation_id)).state is TaskState.UNKNOWN


async def test_status_when_the_machine_restarted_then_the_run_is_unknown_and_can_be_closed(
    runtime: ProcessRuntime, settings: ProcessSettings, make_spec: MakeSpec
) -> None:
    spec = make_spec("sleep 300")
    await launch(runtime, spec)
    await runtime.stop(spec.allocation_id, 0)
    folder = settings.state_dir / "runs" / spec.allocation_id
    (folder / "exit.json").unlink()
    for name in ("launcher.json", "started.json"):
        document = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**document, "boot_id": "an-earlier-boot"}))

    lost = await runtime.status(spec.allocation_id)
    closed = await runtime.stop(spec.allocation_id, 0)
    assert (lost.state, lost.boot_id) == (TaskState.UNKNOWN, "an-earlier-boot")
    assert (closed.state, closed.active_monotonic_ms) == (TaskState.EXITED, None)


@pytest.mark.skipif(os.geteuid() != 0, reason="this already is an ordinary user")
def test_runtime_when_the_agent_is_an_ordinary_user_then_tasks_run_stop_and_leave_nothing(place: Path) -> None:
    python = Path("/usr/bin/python3")
    root = Path(millpond_node_agent.__file__).parent.parent
    setpriv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    probe = "import sys, millpond_node_agent.runtimes.process; assert sys.version_info >= (3, 11)"
    usable = subprocess.run([*setpriv, str(python), "-c", probe], env={"PYTHONPATH": str(root)}, capture_output=True)
    if usable.returncode != 0:
        pytest.skip("no Python 3.11 that an ordinary user can run beside this checkout")
    place.chmod(0o777)
    script = Path(__file__).with_name("ordinary_user.py").read_text()
    done = subprocess.run(
        [*setpriv, str(python), "-c", script, str(place)],
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["isolation"] == "none"
    assert found["exit_code"] == 4
    assert found["uid"] == "65534"
    assert found["stopped"] == "exited"
    assert not is_running(found["daemon"])
    assert found["left"] == []


async def test_log_when_the_agent_is_away_then_nothing_of_it_is_lost(runtime: ProcessRuntime, place: Path) -> None:
    start_then_kill_an_agent(place, "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; sleep 300")
    log = await wait_for_text(runtime, "adopted", "line 1999\n")

    assert log.splitlines() == [f"line {number}" for number in range(2000)]
