"""The script that holds a bill against a node's journal: it must find what is wrong, and name what is not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from millpond.demo import recompute

pytestmark = pytest.mark.unit


def journal_line(allocation: str, kind: str, monotonic_ms: int, boot_id: str = "boot") -> str:
    return json.dumps({"allocation_id": allocation, "kind": kind, "boot_id": boot_id, "monotonic_ms": monotonic_ms})


def charge(allocation: str, seconds: int, kind: str = "usage", sku: str = "cpu/std/on_demand") -> dict[str, Any]:
    return {"allocation_id": allocation, "sku": sku, "kind": kind, "seconds": seconds}


def run(folder: Path, charges: list[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    """Runs the script as a person does, with nothing of Millpond on its path."""
    bill = folder / "charges.json"
    bill.write_text(json.dumps(charges))
    done = subprocess.run(
        [sys.executable, "-I", "-S", recompute.__file__, str(folder), str(bill)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def write_journal(folder: Path, *lines: str, part: str = "journal.jsonl") -> None:
    (folder / part).write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("billed", "name", "code"),
    [
        (5, "none", 0),
        (6, "clock border", 0),
        (4, "clock border", 0),
        (7, "unexplained", 1),
        (3, "unexplained", 1),
    ],
)
def test_bill_when_held_against_the_journal_then_a_difference_without_a_name_fails(
    tmp_path: Path, billed: int, name: str, code: int
) -> None:
    # 4.001 s are five begun seconds.
    write_journal(tmp_path, journal_line("a", "active", 1_000), journal_line("a", "empty", 5_001))
    exit_code, result = run(tmp_path, [charge("a", billed)])
    (row,) = result["rows"]
    assert (exit_code, row["difference"], row["difference_is"]) == (code, billed - 5, name)
    assert result["unexplained"] == (["a"] if code else [])


def test_bill_when_it_has_other_lines_and_parts_then_seconds_are_summed_and_counted_once(tmp_path: Path) -> None:
    write_journal(tmp_path, journal_line("a", "active", 0), part="journal.1.jsonl")
    # A line may be repeated when a part of the journal begins.
    write_journal(tmp_path, journal_line("a", "active", 0), journal_line("a", "empty", 7_000))
    charges = [
        charge("a", 3),
        charge("a", 4),
        charge("a", 53, kind="minimum"),
        charge("a", 7, sku="memory/std/on_demand"),
        charge("a", 9, kind="correction"),
    ]
    code, result = run(tmp_path, charges)
    assert code == 0
    assert (result["journal_seconds"], result["billed_seconds"], result["minimum_seconds"]) == (7, 7, 53)
    assert (result["allocations"], result["missing"]) == (1, [])


def test_bill_when_the_journal_cannot_tell_then_the_allocation_is_named_as_missing(tmp_path: Path) -> None:
    write_journal(
        tmp_path,
        journal_line("cut", "active", 1_000),
        journal_line("rebooted", "active", 1_000),
        journal_line("rebooted", "empty", 500, boot_id="next"),
    )
    code, result = run(tmp_path, [charge("cut", 3), charge("rebooted", 3), charge("never", 3)])
    assert (code, result["missing"]) == (0, ["cut", "never", "rebooted"])
    assert {row["difference_is"] for row in result["rows"]} == {"not in the journal"}
