"""The curves of a report as a picture; needs matplotlib, which comes with `millpond[plots]`."""

from importlib import import_module
from pathlib import Path
from typing import Any


def check_plots() -> None:
    """Nothing, when pictures can be drawn.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        import_module("matplotlib")
    except ImportError as error:
        raise ValueError('a plot needs matplotlib: pip install "millpond[plots]"') from error


def plot_curves(report: dict[str, Any], path: Path) -> None:
    """Write the mean allocation and fragmentation by arrived load, each seed thin behind it; the suffix is the format.

    Args:
        report: of the protocol openb.

    Raises:
        ValueError: matplotlib is not installed, or does not know the suffix.
    """
    check_plots()
    figure = import_module("matplotlib.figure").Figure(figsize=(8, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, name, title in (
        (left, "allocation_percent", "allocated, % of all devices"),
        (right, "fragment_percent", "fragment, % of what is idle"),
    ):
        for seed in report["seeds"]:
            axes.plot(*_curve(seed[name]), color="tab:blue", alpha=0.2, linewidth=0.8)
        axes.plot(*_curve(report["mean"][name]), color="tab:blue", marker=".")
        axes.set(xlabel="arrived, % of all devices", title=title)
        axes.grid(alpha=0.3)
    figure.suptitle(f"{report['jobs']['file']}, policy {report['policy']}, {len(report['seeds'])} seeds")
    figure.savefig(path)


def _curve(values: dict[str, float]) -> tuple[list[int], list[float]]:
    return [int(load) for load in values], list(values.values())
