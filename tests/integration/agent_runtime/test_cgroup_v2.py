"""Killing by the real `cgroup.kill` of a v2 tree, also where that tree has no limits to offer."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond_node_agent.runtimes import groups
from millpond_node_agent.runtimes.cgroups import CgroupHost, Limits
from millpond_node_agent.runtimes.process import ProcessRuntime, ProcessSettings
from millpond_node_agent.runtimes.protocol import TaskState
from tests.integration.agent_runtime.task_runs import MakeSpec, is_running, launch, wait_for_text

pytestmark = pytest.mark.integration


class UnlimitedHost(CgroupHost):
    """Makes v2 cgroups without writing limits."""

    __slots__ = ()

    def create(self, name: str, limits: Limits) -> dict[str, str]:
        return CgroupHost.create(self, name, Limits(0, 0, 0))


@pytest.fixture
def parent() -> Iterator[Path]:
    """A v2 cgroup of our own."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        folder = Path(before.split()[4]) / f"millpond-test-{os.getpid()}"
        if after.startswith("cgroup2 ") and os.access(folder.parent, os.W_OK):
            folder.mkdir()
            yield folder
            folder.rmdir()
            return
    pytest.skip("no writable cgroup v2 tree")


async def test_stop_when_the_group_is_a_v2_cgroup_then_stubborn_daemons_are_gone(
    place: Path, parent: Path, make_spec: MakeSpec
) -> None:
    runtime = ProcessRuntime(
        ProcessSettings(place / "state", place / "work", cgroups=UnlimitedHost(2, {"unified": parent}))
    )
    spec = make_spec("trap '' TERM; (setsid sleep 300 & echo $!); echo ready; while :; do sleep 0.1; done")
    status = await launch(runtime, spec)
    daemon = int((await wait_for_text(runtime, spec.allocation_id, "ready")).split()[0])
    members = (parent / spec.allocation_id / "cgroup.procs").read_text().split()
    assert {str(status.pid), str(daemon)} <= set(members)
    stopped = await runtime.stop(spec.allocation_id, 0.1)
    await runtime.remove(spec.allocation_id)

    assert (stopped.state, stopped.signal) == (TaskState.EXITED, 9)
    assert not is_running(daemon)
    assert [path for path in parent.iterdir() if path.is_dir()] == []


def test_kill_when_the_kernel_has_no_cgroup_kill_then_freezing_does_it(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = parent / "old-kernel"
    folder.mkdir()
    child = subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"])
    (folder / "cgroup.procs").write_text(str(child.pid))
    write = groups._write_if_there
    monkeypatch.setattr(
        groups, "_write_if_there", lambda path, text: not path.endswith("cgroup.kill") and write(path, text)
    )
    group = groups.TaskGroup({"folders": {"unified": str(folder)}, "uid": None, "marker": "x"})

    assert group.pids()[0] == child.pid
    assert group.kill(5)
    assert child.wait() == -9
    folder.rmdir()
