"""Recomputes billed seconds from a node's own journal and compares them with a bill. Imports nothing of Millpond.

    python recompute.py JOURNAL_FOLDER CHARGES.json

`JOURNAL_FOLDER` holds the agent's `journal*.jsonl`; `CHARGES.json` is the list that `GET /v1/charges` answers. For
every allocation on the bill: the journal says how long its process group lived (`active` to `empty`, milliseconds of
the machine's monotonic clock); a bill counts whole begun seconds. Prints one JSON object; exits 1 when a difference
has no name. What the journal cannot tell, such as the end of a task that a restart of its machine cut off, is listed as
missing and compared with nothing.

A difference of one second has a name: the bill starts a second when the server's clock places `active`, and both
clocks round at the same border. Anything beyond is a defect.
"""

import json
import math
import sys
from pathlib import Path

CLOCK_BORDER_SECONDS = 1


def read_lives(folder: Path) -> dict[str, dict[str, dict[str, object]]]:
    """allocation id -> kind -> journal line."""
    lives: dict[str, dict[str, dict[str, object]]] = {}
    for path in sorted(folder.glob("journal*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            lives.setdefault(line["allocation_id"], {}).setdefault(line["kind"], line)
    return lives


def journal_milliseconds(life: dict[str, dict[str, object]]) -> int | None:
    """How long an allocation was active by the journal, or None when the journal cannot tell."""
    active, empty = life.get("active"), life.get("empty")
    if active is None or empty is None or active["boot_id"] != empty["boot_id"]:
        return None
    return int(str(empty["monotonic_ms"])) - int(str(active["monotonic_ms"]))


def billed_seconds(charges: list[dict[str, object]]) -> dict[str, tuple[int, int]]:
    """allocation id -> (whole seconds of use, seconds added by the minimum), counted on the CPU line."""
    found: dict[str, tuple[int, int]] = {}
    for charge in charges:
        if not str(charge["sku"]).startswith("cpu/") or charge["kind"] not in ("usage", "minimum"):
            continue
        allocation = str(charge["allocation_id"])
        usage, minimum = found.get(allocation, (0, 0))
        seconds = int(str(charge["seconds"]))
        found[allocation] = (usage + seconds, minimum) if charge["kind"] == "usage" else (usage, minimum + seconds)
    return found


def compare(folder: Path, charges: list[dict[str, object]]) -> dict[str, object]:
    """The comparison, allocation by allocation, and totals."""
    lives = read_lives(folder)
    rows: list[dict[str, object]] = []
    for allocation, (usage, minimum) in sorted(billed_seconds(charges).items()):
        milliseconds = journal_milliseconds(lives.get(allocation, {}))
        expected = None if milliseconds is None else math.ceil(milliseconds / 1000)
        difference = None if expected is None else usage - expected
        rows.append(
            {
                "allocation": allocation,
                "journal_ms": milliseconds,
                "journal_seconds": expected,
                "billed_seconds": usage,
                "difference": difference,
                "difference_is": name_of(difference),
                "minimum_seconds": minimum,
            }
        )
    return {
        "allocations": len(rows),
        "journal_seconds": sum(int(str(row["journal_seconds"] or 0)) for row in rows),
        "billed_seconds": sum(int(str(row["billed_seconds"])) for row in rows),
        "minimum_seconds": sum(int(str(row["minimum_seconds"])) for row in rows),
        "missing": [row["allocation"] for row in rows if row["difference_is"] == "not in the journal"],
        "unexplained": [row["allocation"] for row in rows if row["difference_is"] == "unexplained"],
        "rows": rows,
    }


def name_of(difference: int | None) -> str:
    """What a difference in seconds is."""
    if difference is None:
        return "not in the journal"
    if difference == 0:
        return "none"
    return "clock border" if abs(difference) <= CLOCK_BORDER_SECONDS else "unexplained"


def main(arguments: list[str]) -> int:
    """Prints the comparison; 0 when every difference has a name."""
    folder, charges = Path(arguments[0]), json.loads(Path(arguments[1]).read_text(encoding="utf-8"))
    result = compare(folder, charges)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    return 1 if result["unexplained"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
