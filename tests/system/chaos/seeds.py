"""Many runs, one after another: `python -m tests.system.chaos.seeds FILE --last 30` appends one JSON line a run.

It may be stopped and started again at any time: a seed whose newest line is sound is not run again, nor one that
failed at this very commit. Lines of failed runs stay. The page beside the file (`.md`) is made of its lines.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.benchmarks.machine import describe_machine

# Beyond the faults: starting and stopping the stack, waiting until it is quiet, judging.
_MORE_SECONDS = 600
_COUNTED = ("lost", "doubled", "overallocated", "statement_mismatches")

Line = dict[str, Any]


def main() -> int:
    """Runs what is missing; exit status 1 when the newest line of a seed is not sound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="where the lines are kept, such as docs/benchmarks/chaos/NAME.jsonl")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--last", type=int, default=30)
    parser.add_argument("--duration-s", type=float, default=60.0)
    chosen = parser.parse_args()
    file: Path = chosen.file
    file.parent.mkdir(parents=True, exist_ok=True)
    wanted = range(chosen.first, chosen.last + 1)
    commit = describe_machine()["commit"]
    for seed in find_missing(read_lines(file), wanted, commit):
        line = {"commit": commit, "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", **_run(seed, chosen.duration_s)}
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")
        file.with_suffix(".md").write_text(render_page(file.name, read_lines(file)), encoding="utf-8")
        print(json.dumps(line), flush=True)
    newest = {line["seed"]: line for line in read_lines(file)}
    return 0 if all(newest[seed]["is_sound"] for seed in wanted) else 1


def read_lines(file: Path) -> list[Line]:
    """What is there of earlier runs."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def find_missing(lines: Sequence[Line], wanted: Iterable[int], commit: str) -> list[int]:
    """The seeds to run: without a line, or whose newest one failed at another commit."""
    newest = {line["seed"]: line for line in lines}
    return [
        seed
        for seed in wanted
        if seed not in newest or (not newest[seed]["is_sound"] and newest[seed]["commit"] != commit)
    ]


def _run(seed: int, duration_seconds: float) -> Line:
    """The summary of one run in a process of its own; one that ends without a summary is a failure like any other."""
    command = [sys.executable, "-m", "tests.system.chaos", "--seed", str(seed), "--duration-s", str(duration_seconds)]
    try:
        done = subprocess.run(
            [*command, "--quiet"], capture_output=True, text=True, timeout=duration_seconds + _MORE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"seed": seed, "is_sound": False, "findings": ["it did not end"]}
    printed = done.stdout.splitlines()
    if not printed:
        return {
            "seed": seed,
            "is_sound": False,
            "findings": [f"it ended with {done.returncode}: {done.stderr[-2000:]}"],
        }
    summary: Line = json.loads(printed[-1])
    return summary


def render_page(name: str, lines: Sequence[Line]) -> str:
    """The page of a file of lines, as Markdown: what was claimed and found over all runs, then each of them."""
    whole = [line for line in lines if "acknowledged" in line]
    faults = Counter[str]()
    for line in whole:
        faults.update(line["faults"])
    sums = {key: sum(line[key] for line in whole) for key in ("acknowledged", *_COUNTED)}
    failed = sum(not line["is_sound"] for line in lines)
    recovery = max((line["recovery_s_max"] for line in whole), default=0)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
    return "\n".join(
        [
            f"# Faults under load: {len(lines)} runs",
            "",
            f"`make chaos-seeds`; raw lines in [{name}]({name}), of which this page is made.",
            "",
            f"In {len(lines)} runs, of {sums['acknowledged']:,} acknowledged operations {sums['lost']} were lost and"
            f" {sums['doubled']} took effect twice; {sums['overallocated']} times more was given away than there"
            f" is, and {sums['statement_mismatches']} figures of bills differed from the reference model."
            f" {failed} runs failed. After a fault everything was well again within {recovery:g} s.",
            "",
            f"Faults: {sum(faults.values()):,} ({told}).",
            "",
            "| seed | commit | s | acknowledged | faults | lost | doubled | overallocated | bills | recovery | |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *map(_row_of, lines),
            "",
        ]
    )


def _row_of(line: Line) -> str:
    figures = [line.get(key, "") for key in ("ran_s", "acknowledged")]
    figures += [sum(line["faults"].values()) if "faults" in line else ""]
    figures += [line.get(key, "") for key in (*_COUNTED, "recovery_s_max")]
    verdict = (
        "sound" if line["is_sound"] else "**" + line["findings"][0].replace("|", "/").replace("\n", " ")[:160] + "**"
    )
    return "| " + " | ".join(map(str, [line["seed"], line["commit"], *figures, verdict])) + " |"


if __name__ == "__main__":
    sys.exit(main())
