"""The agent's durable journal and its reports."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millpond_node_agent.runtimes.protocol import DeviceGrant, Run, TaskState, TaskStatus, TaskTerms
from millpond_node_agent.spool import Spool, SpoolFull, SpoolLimits

pytestmark = pytest.mark.unit


def make_run(allocation_id: str = "alloc_1", **instants: Any) -> Run:
    grant = DeviceGrant("nvidia/GPU-1", "nvidia", 0, "GPU-1", 500, 8000)
    status = TaskStatus(TaskState.RUNNING, "boot-1", pid=1, **instants)
    return Run(TaskTerms(allocation_id, "job_1", "task_1", "ten_1", 1, 2, 500, 64, (grant,), 1.0), status)


def journal(spool: Spool) -> list[dict[str, object]]:
    return [json.loads(line) for part in spool.journal_parts() for line in part.read_text().splitlines()]


def test_append_when_reopened_then_pending_reports_and_numbering_go_on(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    assert [spool.append({"n": number}) for number in range(4)] == [1, 2, 3, 4]
    spool.acknowledge(2)
    spool.close()
    again = Spool(tmp_path)

    assert [(kept.sequence, kept.report) for kept in again.pending(10)] == [(3, {"n": 2}), (4, {"n": 3})]
    assert again.append({"n": 4}) == 5
    assert [kept.sequence for kept in again.pending(2)] == [3, 4]


def test_append_when_all_is_acknowledged_and_the_file_rewritten_then_numbers_still_rise(tmp_path: Path) -> None:
    spool = Spool(tmp_path, SpoolLimits(dead_bytes=10))
    for number in range(5):
        spool.append({"n": number})
    spool.acknowledge(99)
    assert (tmp_path / "reports.jsonl").stat().st_size == 0
    spool.close()

    assert Spool(tmp_path).append({}) == 6


def test_acknowledge_when_rewriting_with_reports_left_then_they_stay(tmp_path: Path) -> None:
    spool = Spool(tmp_path, SpoolLimits(dead_bytes=10))
    for number in range(5):
        spool.append({"n": number})
    spool.acknowledge(3)
    assert len((tmp_path / "reports.jsonl").read_text().splitlines()) == 2
    spool.append({"n": 5})
    spool.close()

    assert [kept.sequence for kept in Spool(tmp_path).pending(10)] == [4, 5, 6]


def test_open_when_the_last_line_is_torn_then_it_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append({"n": 1})
    spool.append({"n": 2})
    spool.close()
    path = tmp_path / "reports.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    again = Spool(tmp_path)
    again.append({"n": 3})

    assert [kept.report for kept in again.pending(10)] == [{"n": 1}, {"n": 3}]
    assert [json.loads(line)["report"] for line in path.read_text().splitlines()] == [{"n": 1}, {"n": 3}]


def test_append_when_the_bound_is_reached_then_it_refuses_until_something_is_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path, SpoolLimits(pending_reports=2))
    spool.append({})
    spool.append({})
    with pytest.raises(SpoolFull):
        spool.append({})
    spool.acknowledge(1)

    assert spool.append({}) == 3


def test_append_when_the_disk_is_full_then_nothing_of_the_report_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path)
    spool.append({"n": 1})

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with pytest.raises(OSError, match="disk full"):
            spool.append({"n": 2})
    assert spool.append({"n": 3}) == 2
    assert len((tmp_path / "reports.jsonl").read_text().splitlines()) == 2


def test_record_run_when_seen_again_and_again_then_each_instant_is_written_once(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    running = make_run(started_monotonic_ms=10, active_monotonic_ms=20)
    spool.record_run(running)
    spool.record_run(running)
    spool.close()
    again = Spool(tmp_path)
    ended = replace(
        running,
        status=replace(running.status, exit_code=0, ended_monotonic_ms=5020, empty_monotonic_ms=5030),
    )
    again.record_run(ended)
    again.record_run(ended)

    lines = journal(again)
    assert [(line["kind"], line["monotonic_ms"]) for line in lines] == [
        ("start", 10),
        ("active", 20),
        ("exit", 5020),
        ("empty", 5030),
    ]
    assert {line["boot_id"] for line in lines} == {"boot-1"}
    assert lines[2]["exit_code"] == 0
    assert lines[0]["devices"] == [{"identity": "nvidia/GPU-1", "milli": 500, "memory_mib": 8000}]


def test_record_run_when_the_journal_grows_then_only_the_newest_parts_stay(tmp_path: Path) -> None:
    spool = Spool(tmp_path, SpoolLimits(journal_part_bytes=500, journal_parts=3))
    for number in range(40):
        spool.record_run(make_run(f"alloc_{number}", started_monotonic_ms=number))

    assert len(spool.journal_parts()) == 4
    kept = [line["monotonic_ms"] for line in journal(spool)]
    assert kept == list(range(40 - len(kept), 40))
