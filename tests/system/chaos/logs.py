"""How fast the processes of a stack complain: an outage is told by whoever meets it, not in a loop."""

import json
from collections import Counter
from datetime import datetime
from pathlib import Path

MOST_PER_SECOND = 10
_WINDOW_SECONDS = 10
_COMPLAINTS = frozenset({"warning", "error", "critical"})


def find_error_loops(folder: Path) -> list[str]:
    """A finding for every log that held more complaints a second than MOST_PER_SECOND, over ten seconds."""
    findings = []
    for log in sorted(folder.glob("*.log")):
        windows: dict[int, Counter[str]] = {}
        for line in log.read_text(errors="replace").splitlines():
            complaint = _read_complaint(line)
            if complaint is not None:
                at, event = complaint
                windows.setdefault(int(at.timestamp()) // _WINDOW_SECONDS, Counter())[event] += 1
        worst = max(windows.values(), key=Counter.total, default=Counter[str]())
        if worst.total() > MOST_PER_SECOND * _WINDOW_SECONDS:
            findings.append(f"{log.name}: {worst.total()} complaints in {_WINDOW_SECONDS} s: {worst.most_common(3)}")
    return findings


def _read_complaint(line: str) -> tuple[datetime, str] | None:
    if not line.startswith("{"):
        return None  # an engine's own log
    told = json.loads(line)
    if told.get("level") not in _COMPLAINTS:
        return None
    return datetime.fromisoformat(told["timestamp"]), str(told["event"])
