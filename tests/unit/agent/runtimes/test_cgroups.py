"""Which cgroups a machine offers and what is written into them, on trees of plain files."""

from pathlib import Path

import pytest

from millpond_node_agent.runtimes.cgroups import CgroupHost, Limits, detect_cgroups
from millpond_node_agent.runtimes.groups import TaskGroup

pytestmark = pytest.mark.unit


def make_v2(tmp_path: Path, controllers: str) -> tuple[Path, Path, Path]:
    """A v2 tree with these controllers; returns (its top, a mountinfo file, a membership file)."""
    top = tmp_path / "tree"
    (top / "millpond").mkdir(parents=True)
    for place in (top, top / "millpond"):
        (place / "cgroup.controllers").write_text(controllers)
        (place / "cgroup.subtree_control").write_text("cpu memory pids\n")
    mountinfo, membership = tmp_path / "mountinfo", tmp_path / "cgroup"
    mountinfo.write_text(f"30 24 0:26 / {top} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n")
    membership.write_text("0::/user.slice/agent.service\n")
    return top, mountinfo, membership


def test_detect_when_v2_has_the_controllers_then_one_folder_holds_all_limits(tmp_path: Path) -> None:
    top, mountinfo, membership = make_v2(tmp_path, "cpuset cpu io memory pids\n")
    host = detect_cgroups(mountinfo, membership)
    folders = host.create("alloc_1", Limits(cpu_milli=250, memory_mib=64, pids=100))

    assert (host.version, host.warnings) == (2, ())
    assert folders == {"unified": str(top / "millpond" / "alloc_1")}
    written = {path.name: path.read_text() for path in (top / "millpond" / "alloc_1").iterdir()}
    assert written == {
        "cpu.max": "25000 100000",
        "cpu.weight": "25",
        "memory.max": str(64 << 20),
        "pids.max": "100",
    }


def test_detect_when_v2_lacks_controllers_then_v1_is_used(tmp_path: Path) -> None:
    top, mountinfo, membership = make_v2(tmp_path, "hugetlb\n")
    lines = [mountinfo.read_text()]
    for name in ("memory", "cpu,cpuacct", "freezer"):
        (tmp_path / name).mkdir()
        lines.append(f"31 24 0:27 / {tmp_path / name} rw - cgroup cgroup rw,{name}\n")
    mountinfo.write_text("".join(lines))
    host = detect_cgroups(mountinfo, membership)
    folders = host.create("alloc_1", Limits(cpu_milli=1500, memory_mib=1, pids=100))

    assert host.version == 1
    assert [warning for warning in host.warnings if "'pids'" in warning] == list(host.warnings)
    assert folders["cpu"] == folders["cpuacct"] == str(tmp_path / "cpu,cpuacct" / "millpond" / "alloc_1")
    assert Path(folders["cpu"], "cpu.cfs_quota_us").read_text() == "150000"
    assert Path(folders["memory"], "memory.limit_in_bytes").read_text() == str(1 << 20)
    assert not (top / "millpond" / "alloc_1").exists()


def test_detect_when_nothing_is_mounted_then_the_node_warns(tmp_path: Path) -> None:
    host = detect_cgroups(tmp_path / "missing", tmp_path / "missing")

    assert host.version == 0
    assert len(host.warnings) == 1
    assert host.create("alloc_1", Limits(1000, 64, 10)) == {}


def test_create_when_a_limit_is_zero_then_it_is_not_written(tmp_path: Path) -> None:
    host = CgroupHost(2, {"unified": tmp_path})
    host.create("alloc_1", Limits(0, 0, 0))

    assert list((tmp_path / "alloc_1").iterdir()) == []


@pytest.mark.parametrize(
    ("controller", "files", "kills", "usage"),
    [
        (
            "unified",
            {
                "memory.events": "low 0\noom 3\noom_kill 2\n",
                "cpu.stat": "usage_usec 2500000\n",
                "memory.peak": str(5 << 20),
            },
            2,
            (2500, 5),
        ),
        ("memory", {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"}, 1, (None, None)),
        ("unified", {}, 0, (None, None)),
    ],
)
def test_group_when_counters_are_read_then_they_are_the_kernels(
    tmp_path: Path, controller: str, files: dict[str, str], kills: int, usage: tuple[int | None, int | None]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    group = TaskGroup({"folders": {controller: str(tmp_path)}, "uid": None, "marker": "x"})

    assert group.oom_kills() == kills
    assert group.usage() == usage
