"""The probe: one vendor's answer about its devices, printed as one JSON document by a process that lives for it.

`python -m millpond_node_agent.hardware.probe --vendor nvidia` prints the inventory and ends. With `--signals` it prints
one sample; with `--follow` too, one sample for every line that it reads, until the input ends, so that the library is
initialised once. The agent starts it, sets the deadline and kills it; see `hardware.children`.
"""

import argparse
import ctypes
import os
import signal
import sys

from millpond_node_agent.hardware import nvidia, nvidia_smi
from millpond_node_agent.hardware.bounded import TimeBudget
from millpond_node_agent.hardware.report import ProbeOutcome, ProbeReport

_PR_SET_PDEATHSIG = 1
# After these NVML outcomes the tool can still know something: it may come with a library that the loader does not find.
_TRY_THE_TOOL = frozenset((ProbeOutcome.NO_LIBRARY, ProbeOutcome.FAILED))


def main(arguments: list[str] | None = None) -> None:
    """Answers once, or once per line of input, and ends the process without waiting for calls that hang."""
    parser = argparse.ArgumentParser(prog="millpond-probe", description=__doc__)
    parser.add_argument("--vendor", choices=["nvidia"], required=True)
    parser.add_argument("--signals", action="store_true", help="second-by-second readings in place of the inventory")
    parser.add_argument("--follow", action="store_true", help="with --signals: one sample for every line of input")
    parser.add_argument("--seconds", type=float, default=10.0, help="time for one answer")
    options = parser.parse_args(arguments)
    _die_with_parent()
    if options.signals:
        _sample(options.seconds, follow=options.follow)
    else:
        _print(probe_inventory(TimeBudget(options.seconds)))
    # A call that hangs keeps its thread; an orderly end would wait for it.
    os._exit(0)


def probe_inventory(budget: TimeBudget) -> ProbeReport:
    """NVML's answer, or the tool's where NVML has none.

    When neither answers, NVML's reason is the one that is reported, and the fault stands beside the PCI truth.
    """
    report = nvidia.probe_devices(budget)
    if report.outcome in _TRY_THE_TOOL:
        by_tool = nvidia_smi.probe_tool(budget)
        if by_tool.outcome is not ProbeOutcome.NO_LIBRARY:
            return by_tool
    return report


def _sample(seconds: float, *, follow: bool) -> None:
    sampler = nvidia.NvmlSampler()
    if not follow:
        _print(sampler.sample(seconds))
        return
    for _ in sys.stdin:
        report = sampler.sample(seconds)
        _print(report)
        if report.outcome is not ProbeOutcome.OK:
            return  # the library would not start a second time in this process


def _print(report: ProbeReport) -> None:
    sys.stdout.write(report.model_dump_json(exclude_defaults=True) + "\n")
    sys.stdout.flush()


def _die_with_parent() -> None:
    """Ends this process with the agent that started it, even when a call hangs and the input's end goes unread."""
    # The kernel means the parent's thread, so the agent starts children from threads that live as long as it does.
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (AttributeError, OSError):
        return  # not on this system: the input's end and the deadline remain


if __name__ == "__main__":
    main()
