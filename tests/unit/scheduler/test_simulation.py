"""`millpond simulate placement`: what it writes, judged by a checker that shares no code with it."""

import csv
import json
import sys
from pathlib import Path

import pytest

from millpond_scheduler.simulation.__main__ import main, parse_seeds
from millpond_scheduler.simulation.fragments import find_typical, measure_fragment_ratio
from millpond_scheduler.simulation.policies import POLICIES
from millpond_scheduler.simulation.pool import build_pool
from millpond_scheduler.simulation.replay import limit_times
from millpond_scheduler.simulation.traces import TraceError, TraceJob, TraceNode, read_jobs, read_nodes
from tests.reference.placements import find_faults

pytestmark = pytest.mark.unit

NODES = """sn,cpu_milli,memory_mib,gpu,model
a-0,16000,65536,2,T4
a-1,16000,65536,2,T4
b-0,96000,393216,8,G2
c-0,64000,262144,0,
"""
JOBS = """cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
2000,8192,1,460,
2000,8192,1,810,
4000,16384,1,1000,T4
4000,16384,1,1000,
2000,4096,1,160,G2|T4
12000,4096,0,0,
24000,98304,4,1000,
"""


class Files:
    """The files of one simulation in a folder."""

    def __init__(self, folder: Path, nodes: str = NODES, jobs: str = JOBS) -> None:
        self.nodes, self.jobs = folder / "nodes.csv", folder / "jobs.csv"
        self.report, self.allocations = folder / "report.json", folder / "allocations.csv"
        self.nodes.write_text(nodes, encoding="utf-8")
        self.jobs.write_text(jobs, encoding="utf-8")

    def simulate(self, *options: str) -> int:
        """Run it; the exit code."""
        given = {
            "--nodes": self.nodes,
            "--jobs": self.jobs,
            "--report": self.report,
            "--allocations": self.allocations,
        }
        return main(["placement", *(f"{name}={path}" for name, path in given.items()), *options])

    def find_faults(self) -> list[str]:
        """What the checker says."""
        return find_faults(self.nodes, self.jobs, self.allocations, self.report)

    def read_allocations(self) -> list[dict[str, str]]:
        """The rows."""
        with self.allocations.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def edit_allocations(self, index: int, **changes: str) -> None:
        """Falsify one row."""
        rows = self.read_allocations()
        rows[index] |= changes
        with self.allocations.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.mark.parametrize("options", [*((f"--policy={policy}",) for policy in POLICIES), ("--history=arrivals",)])
def test_placement_when_simulated_then_an_independent_checker_finds_no_fault(
    files: Files, options: tuple[str, ...]
) -> None:
    assert files.simulate("--seeds=1-3", *options, "--processes=1") == 0
    assert files.find_faults() == []
    seeds = json.loads(files.report.read_text(encoding="utf-8"))["seeds"]
    assert [each["seed"] for each in seeds] == [1, 2, 3]
    assert all(each["placed"] and each["refused"] for each in seeds)


def test_placement_when_simulated_again_then_every_byte_is_the_same(files: Files) -> None:
    texts = []
    for processes in (1, 2):
        assert files.simulate("--seeds=4-5", f"--processes={processes}") == 0
        texts.append((files.report.read_bytes(), files.allocations.read_bytes()))
    assert texts[0] == texts[1]
    assert files.simulate("--seeds=4,6") == 0
    assert files.allocations.read_bytes() != texts[0][1]


def test_checker_when_allocations_are_falsified_then_it_says_what_is_wrong(files: Files) -> None:
    assert files.simulate("--seeds=1") == 0
    rows = files.read_allocations()
    placed = next(index for index, row in enumerate(rows) if row["accepted"] == "true" and row["milli"] == "1000")
    files.edit_allocations(placed, node="", devices="", accepted="false")
    assert any("has room" in fault for fault in files.find_faults())
    files.edit_allocations(placed, node="b-0", devices="9", accepted="true")
    assert any("has no room" in fault or "asked for" in fault for fault in files.find_faults())
    files.edit_allocations(placed, **rows[placed])
    assert files.find_faults() == []


def test_fragments_when_devices_are_idle_then_what_the_typical_job_cannot_use_counts() -> None:
    pool = build_pool([TraceNode("n", 4_000, 1_000, 2, "T4")])
    whole = TraceJob("whole", 1_000, 0, 1, 1000)
    without = TraceJob("without", 1_000, 0, 0, 0)
    large = TraceJob("large", 5_000, 0, 1, 500)
    elsewhere = TraceJob("elsewhere", 1_000, 0, 1, 500, frozenset({"G2"}))
    cases = {whole: 0.0, without: 1.0, large: 1.0, elsewhere: 1.0}
    for job, lost in cases.items():
        assert measure_fragment_ratio(pool.snapshot, find_typical([job])) == lost
    pool.snapshot.columns.device_milli_free[0, 0] = 400
    assert measure_fragment_ratio(pool.snapshot, find_typical([whole])) == pytest.approx(400 / 1400)
    assert measure_fragment_ratio(pool.snapshot, find_typical([whole, without])) == pytest.approx((400 / 1400 + 1) / 2)


def test_typical_jobs_when_found_then_the_most_frequent_make_95_percent() -> None:
    jobs = [TraceJob("a", 1_000, 0, 1, 1000)] * 80 + [TraceJob("b", 2_000, 7, 1, 500)] * 15
    jobs += [TraceJob(f"c{index}", 3_000 + index, 0, 1, 500) for index in range(5)]
    assert [(each.cpu_milli, round(each.share, 4)) for each in find_typical(jobs)] == [(1000, 0.8421), (2000, 0.1579)]


BAD_JOBS = {
    "cpu_milli,memory_mib,gpu_milli\n1,1,1\n": "no column num_gpu or gpus or gpu",
    "cpu_milli,num_gpu\n1,1\n2,x\n": "line 3: expected a whole number from 0 to 1000000 in num_gpu, found 'x'",
    "cpu_milli,num_gpu,gpu_spec\n1,1,T4|H100\n": "line 2: no node has a H100; there are G2, T4",
    "num_gpu,gpu_milli\n2,500\n": "only a job with one device may ask for a part of it",
    "num_gpu,gpu_milli\n1,1001\n": "from 0 to 1000 in gpu_milli",
    "num_gpu\n": "there is no job in it",
    "num_gpu,cpu_milli\n0,1\n": "no job asks for a device",
    "num_gpu,tasks\n8,3\n": "line 2: expected at least 1 in tasks, and a number that divides the devices",
    "num_gpu,tasks\n8,0\n": "line 2: expected at least 1 in tasks",
}


@pytest.mark.parametrize("jobs", BAD_JOBS)
def test_jobs_when_they_cannot_be_used_then_one_line_says_why(
    tmp_path: Path, jobs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = Files(tmp_path, jobs=jobs)
    assert files.simulate() == 2
    said = capsys.readouterr().err
    assert said.startswith("millpond simulate placement: ")
    assert BAD_JOBS[jobs] in said
    assert said.count("\n") == 1
    assert not files.report.exists()


@pytest.mark.parametrize("seeds", ["", "a", "1-", "5-3", "1,,2", "0-10000", "-1"])
def test_seeds_when_they_make_no_sense_then_refused(files: Files, seeds: str) -> None:
    assert files.simulate(f"--seeds={seeds}") == 2


def test_seeds_when_written_in_parts_then_each_comes_once() -> None:
    assert parse_seeds("3,1-2,2,10") == [3, 1, 2, 10]


def test_lists_when_columns_go_by_the_names_of_other_traces_then_their_units_are_read(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("gpu_model,gpu_capacity_num,cpu_num,mem_gib,nodes\nA10,1,126,4,2\n", encoding="utf-8")
    found = read_nodes(nodes)
    assert [(node.name, node.cpu_milli, node.memory_mib) for node in found] == [
        ("node-0-0", 126_000, 4_096),
        ("node-0-1", 126_000, 4_096),
    ]
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("cpu,gpu,creation_s,deletion_s\n12,1,10,25\n", encoding="utf-8")
    assert read_jobs(jobs, found) == [TraceJob("0", 12_000, 0, 1, 1000, submit_s=10, duration_s=15)]


def test_list_of_nodes_when_it_cannot_be_used_then_the_error_names_the_line(tmp_path: Path) -> None:
    nodes = tmp_path / "nodes.csv"
    header = "sn,cpu_milli,memory_mib,gpu,model\n"
    for text, said in {
        header + "a,1,1,1,\n": "line 2: a node with devices needs a model",
        header + "a,1,1,1,T4\na,1,1,1,T4\n": "line 3: there are two nodes 'a'",
        header + "a,1,,1,T4\n": "line 2: nothing stands in memory_mib or mem_gib",
        header + "a,1,1,0,\n": "no node has devices",
    }.items():
        nodes.write_text(text, encoding="utf-8")
        with pytest.raises(TraceError, match=said):
            read_nodes(nodes)


TRACE = """name,cpu_milli,num_gpu,gpu_milli,submit_s,duration_s
long,1000,8,1000,100,1000
late,1000,8,1000,105,50
half,1000,1,500,130,400
rest,1000,1,500,140,400
gang,0,16,1000,150,30
endless,1000,1,1000,160,
cpu,1000,0,0,4000,1
"""


def test_trace_when_played_then_jobs_wait_for_what_ends(tmp_path: Path) -> None:
    nodes = "sn,cpu_milli,memory_mib,gpu,model\na,96000,1024,8,G2\nb,96000,1024,8,G2\n"
    files = Files(tmp_path, nodes, TRACE)
    assert files.simulate("--protocol=trace", "--step-seconds=1") == 0
    rows = {row["job"]: row for row in files.read_allocations()}
    times = {job: (row["submit_s"], row["start_s"], row["end_s"]) for job, row in rows.items()}
    assert times["long"] == ("0", "0", "1000")
    assert times["late"] == ("5", "5", "55")
    assert times["half"] == ("30", "55", "455")  # when `late` gave its node back
    assert times["rest"] == ("40", "55", "455")
    assert (rows["half"]["node"], rows["half"]["devices"]) == (rows["rest"]["node"], rows["rest"]["devices"])
    assert times["endless"] == ("60", "60", "")
    gang = [row for row in files.read_allocations() if row["job"] == "gang"]
    assert [(row["accepted"], row["start_s"]) for row in gang] == [("false", "")] * 2  # `endless` is in its way
    (seed,) = json.loads(files.report.read_text(encoding="utf-8"))["seeds"]
    assert seed["tasks"]["gang"] == {
        "tasks": 2,
        "started": 0,
        "wait_mean_s": 3850.0,
        "wait_p50_s": 3850,
        "wait_p95_s": 3850,
    }
    assert seed["held_percent"] == pytest.approx(100 * (8 * 1000 + 8 * 50 + 400 + 3840) / (16 * 3900), abs=0.001)


def test_trace_when_a_load_is_wanted_then_arrivals_are_pressed(tmp_path: Path) -> None:
    nodes = "sn,cpu_milli,memory_mib,gpu,model\na,96000,1024,4,G2\n"
    jobs = "num_gpu,submit_s,duration_s\n" + "".join(f"1,{index * 60},100\n" for index in range(101))
    files = Files(tmp_path, nodes, jobs)
    for load in (0.5, 2.0):
        assert files.simulate("--protocol=trace", f"--load={load}") == 0
        (seed,) = json.loads(files.report.read_text(encoding="utf-8"))["seeds"]
        assert seed["offered_percent"] == pytest.approx(100 * load, rel=0.01)
    assert seed["tasks"]["small"]["started"] < 101
    assert files.simulate("--protocol=trace", "--load=0") == 2
    assert files.simulate("--load=1.1") == 2


LIMITED = """name,cpu_milli,num_gpu,gpu_milli,submit_s,duration_s,time_limit_s,tasks
first,1000,7,1000,0,1000,1500,1
beside,1000,1,1000,0,300,450,1
gang,8000,8,1000,10,100,150,8
over,0,1,1000,400,900,50,1
long,0,1,1000,700,750,801,1
short,0,1,1000,700,700,800,1
end,0,0,0,3000,0,1,1
"""


def test_trace_when_time_limits_are_told_then_what_is_kept_is_used_by_those_that_end_in_time_s6(tmp_path: Path) -> None:
    files = Files(tmp_path, "sn,cpu_milli,memory_mib,gpu,model\na,96000,1024,8,G2\n", LIMITED)

    def play(*options: str) -> dict[str, tuple[str, str]]:
        assert files.simulate("--protocol=trace", "--step-seconds=1", *options) == 0
        rows = files.read_allocations()
        assert len({row["start_s"] for row in rows if row["job"] == "gang"}) == 1
        return {row["job"]: (row["start_s"], row["end_s"]) for row in rows}

    kept = play()
    assert kept["over"] == ("400", "450")  # at its limit it is over
    assert kept["short"] == ("700", "1400")  # of the two it alone is gone when the first is for certain: at 1500
    assert (kept["gang"], kept["long"]) == (("1400", "1500"), ("1500", "2250"))
    passed = play("--no-holds")
    assert (passed["long"], passed["gang"][0]) == (("700", "1450"), "1700")  # both passed the gang
    report = json.loads(files.report.read_text(encoding="utf-8"))
    assert (report["holds"], report["time_limits"]) == (False, None)
    assert report["seeds"][0]["tasks"]["gang"]["tasks"] == 8


def test_trace_when_limits_are_a_factor_of_the_durations_then_those_that_have_none_get_one() -> None:
    jobs = [TraceJob("a", 0, 0, 1, 1000, duration_s=101), TraceJob("b", 0, 0, 1, 1000, time_limit_s=7)]
    assert [job.time_limit_s for job in limit_times(jobs, 1.5)] == [152, 7]
    for factor in (0.9, float("nan"), 1e9):
        with pytest.raises(TraceError, match="time limits from 1 to 1000 times"):
            limit_times(jobs, factor)


@pytest.mark.parametrize("option", ["--time-limits=1.5", "--no-holds"])
def test_openb_when_it_is_asked_for_holds_or_limits_then_refused(files: Files, option: str) -> None:
    assert files.simulate(option) == 2


def test_trace_when_the_list_tells_no_arrivals_then_refused(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert files.simulate("--protocol=trace") == 2
    assert "nothing in submit_s, creation_s or creation_time" in capsys.readouterr().err


def test_plot_when_wanted_then_a_picture_is_drawn(files: Files, tmp_path: Path) -> None:
    assert files.simulate("--seeds=1-2", "--processes=1", f"--plot={tmp_path / 'curves.png'}") == 0
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert files.simulate(f"--plot={tmp_path / 'curves.unheard'}") == 2


def test_plot_when_matplotlib_is_absent_then_the_first_line_says_what_to_install(
    files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert files.simulate("--plot=curves.png") == 2
    assert 'pip install "millpond[plots]"' in capsys.readouterr().err
    assert not files.report.exists()
