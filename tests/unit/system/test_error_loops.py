"""What counts as a process that complains in a loop."""

import json
from pathlib import Path

import pytest

from tests.system.chaos.logs import MOST_PER_SECOND, find_error_loops

pytestmark = pytest.mark.unit


def test_find_error_loops_when_a_log_complains_too_often_then_names_it_and_its_event(tmp_path: Path) -> None:
    _write(tmp_path / "worker-quota.log", 10 * MOST_PER_SECOND + 1, "warning")
    (finding,) = find_error_loops(tmp_path)
    assert finding.startswith("worker-quota.log: 101 complaints in 10 s")
    assert "redis_away" in finding


def test_find_error_loops_when_lines_are_few_or_no_complaints_then_finds_nothing(tmp_path: Path) -> None:
    _write(tmp_path / "worker-quota.log", 10 * MOST_PER_SECOND, "error")
    _write(tmp_path / "http-quota.log", 1000, "info")
    (tmp_path / "postgres.log").write_text("LOG: checkpoint\n" * 1000)
    assert find_error_loops(tmp_path) == []


def _write(log: Path, lines: int, level: str) -> None:
    at = "2026-11-30T10:20:01.5Z"
    log.write_text(f"{json.dumps({'event': 'redis_away', 'level': level, 'timestamp': at})}\n" * lines)
