"""A figure is one JSON object on a line of its own: name, value, unit, runs, and what helps to read it."""

import json
import os
import statistics
from collections.abc import Mapping, Sequence


def tell(name: str, values: Sequence[float], unit: str, *, bar: str | None = None, **details: object) -> None:
    """Prints the median of the values; `bar` names what it should reach. `load` is the machine's at that moment."""
    figure: dict[str, object] = {
        "name": name,
        "value": shorten(statistics.median(values)),
        "unit": unit,
        "runs": len(values),
        "load": round(os.getloadavg()[0], 1),
    }
    if len(values) > 1:
        figure["values"] = [shorten(value) for value in values]
    if bar is not None:
        figure["bar"] = bar
    figure.update(details)
    print(json.dumps(figure), flush=True)


def tell_check(name: str, findings: Sequence[str]) -> None:
    """Prints how many invariants are broken and fails the benchmark when any is.

    Raises:
        AssertionError: with every finding.
    """
    tell(f"{name}.invariant_findings", [len(findings)], "findings", bar="= 0")
    assert not findings, "\n".join(findings)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def shorten(value: float) -> float:
    """Four significant digits are more than a machine repeats."""
    return float(f"{value:.4g}")


def shorten_all(values: Mapping[str, float]) -> dict[str, float]:
    """The same for named values."""
    return {name: shorten(value) for name, value in values.items()}
