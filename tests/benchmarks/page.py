"""Makes the page of a run from its raw lines: `python -m tests.benchmarks.page docs/benchmarks/NAME.jsonl`.

Writes NAME.md beside it: the machine, every figure, and what explains them. What a person wrote into an earlier page
behind the line `BY_HAND` stays.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from itertools import chain
from operator import eq, ge, le
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import shorten

BY_HAND = "<!-- Everything above is made by tests/benchmarks/page.py; what follows is written by hand. -->"
_TOLD = ("name", "value", "unit", "runs", "load", "values", "bar")
_COMPARISONS = {">=": ge, "<=": le, "=": eq}
# Of more runs than this the page shows the range; each value is in the raw lines.
_SHOWN_RUNS = 3


def main() -> int:
    """Writes the page beside the raw lines."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.page", description=__doc__)
    parser.add_argument("lines", type=Path, help="what `make bench` printed")
    source: Path = parser.parse_args().lines
    page = source.with_suffix(".md")
    former = page.read_text(encoding="utf-8") if page.exists() else ""
    by_hand = former.partition(BY_HAND)[2] or "\n"
    page.write_text(f"{render_page(source)}{BY_HAND}{by_hand}", encoding="utf-8")
    return 0


def render_page(source: Path) -> str:
    """What is made of raw lines, as Markdown: the machine comes first, then figures as `figures.tell` prints them."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    facts, figures = lines[0]["facts"], lines[1:]
    explained = [(figure["name"], text) for figure in figures if (text := _explain(figure))]
    return "\n".join(
        [
            f"# {facts['date'].partition(' ')[0]}, {facts['cores'].partition(' ')[0]} cores",
            "",
            f"`make bench` on one machine for everything; raw lines in [{source.name}]({source.name}).",
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {fact} |" for name, fact in facts.items()),
            "",
            "| figure | median | runs | n | load | bar |",
            "|---|---|---|---|---|---|",
            *map(_row_of, figures),
            "",
            "## What explains them",
            "",
            "| figure | |",
            "|---|---|",
            *(f"| `{name}` | {text} |" for name, text in explained),
            "",
            "",
        ]
    )


def judge_bar(bar: str, value: float) -> str:
    """The bar with whether the value reaches it; a bar without a comparison, such as `about 1000`, judges nothing."""
    sign, _, number = bar.partition(" ")
    if sign not in _COMPARISONS:
        return bar
    return f"{bar} {'met' if _COMPARISONS[sign](value, float(number)) else '**missed**'}"


def _row_of(figure: Mapping[str, Any]) -> str:
    values = figure.get("values", [])
    runs = ", ".join(map(_number, values))
    if len(values) > _SHOWN_RUNS:
        runs = f"{_number(min(values))} to {_number(max(values))}"
    bar = judge_bar(figure["bar"], figure["value"]) if "bar" in figure else ""
    median = f"{_number(figure['value'])} {figure['unit']}"
    return f"| `{figure['name']}` | {median} | {runs} | {figure['runs']} | {figure['load']} | {bar} |"


def _explain(figure: Mapping[str, Any]) -> str:
    """What stands beside a figure, each detail with its parts; of several runs the medians."""
    details = {name: detail for name, detail in figure.items() if name not in _TOLD}
    return "; ".join(f"{name}: {_tell_detail(detail)}" for name, detail in details.items())


def _tell_detail(detail: Any) -> str:
    if isinstance(detail, list):
        detail = (
            {name: statistics.median(one.get(name, 0.0) for one in detail) for name in dict.fromkeys(chain(*detail))}
            if isinstance(detail[0], dict)
            else statistics.median(detail)
        )
    if isinstance(detail, dict):
        return ", ".join(f"{name.removeprefix('millpond: ')} {_number(value)}" for name, value in detail.items())
    return _number(detail)


def _number(value: float) -> str:
    return f"{shorten(value):g}"


if __name__ == "__main__":
    sys.exit(main())
