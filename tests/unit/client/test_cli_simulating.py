"""`millpond simulate placement`: hands the files to the scheduler's code on this machine."""

import json
from pathlib import Path

import pytest

from tests.unit.client.commands import run

pytestmark = pytest.mark.unit


def test_placement_when_simulated_then_files_are_written_without_a_stack(tmp_path: Path) -> None:
    nodes, jobs, report = tmp_path / "nodes.csv", tmp_path / "jobs.csv", tmp_path / "report.json"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn,8000,1024,2,T4\n", encoding="utf-8")
    jobs.write_text("cpu_milli,memory_mib,num_gpu,gpu_milli\n1000,100,1,500\n", encoding="utf-8")
    ran = run(None, "simulate", "placement", f"--nodes={nodes}", f"--jobs={jobs}", f"--report={report}")
    assert ran.code == 0, ran.err
    assert json.loads(report.read_text(encoding="utf-8"))["mean"]["allocation_percent"]["130"] == 100.0
    assert run(None, "simulate", "placement", f"--nodes={nodes}", f"--jobs={jobs}", "--seeds=x").code == 2
    assert run(None, "simulate", "placement", f"--nodes={tmp_path / 'none'}", f"--jobs={jobs}").code == 2


def test_placement_help_when_asked_for_then_names_the_extra_that_plots() -> None:
    assert "millpond[plots]" in run(None, "simulate", "placement", "--help").out
