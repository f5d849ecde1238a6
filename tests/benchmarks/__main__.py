"""Runs the benchmarks: `python -m tests.benchmarks [NAME ...]`; a name is a benchmark's, or one of its figures'.

Everything runs on this machine's loopback, with fsync on, and whatever is started is stopped. The first line that is
printed tells of the machine, each other one is a figure; `tests.benchmarks.page` makes a page of them.
"""

import argparse
import importlib
import json
import sys
import time
import traceback

import structlog

from tests.benchmarks.figures import tell
from tests.benchmarks.machine import describe_machine

BENCHMARKS = (
    "planner",
    "decisions",
    "scheduler",
    "http",
    "billing",
    "stack",
    "load",
    "recovery",
    "openb",
    "openb_tuned",
    "churn",
    "peers",
)
LONG = ("load", "recovery", "openb", "openb_tuned", "churn", "peers")  # minutes; only when named


def main() -> int:
    """Runs the benchmarks named, or all; the exit code tells whether all of them came to their end."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        help=f"of {', '.join(BENCHMARKS)}, or figures of theirs; without any all but {', '.join(LONG)}",
    )
    wanted = [name.partition(".")[0] for name in parser.parse_args().names] or [
        name for name in BENCHMARKS if name not in LONG
    ]
    unknown = sorted(set(wanted) - set(BENCHMARKS))
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    # Standard output holds figures and nothing else.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    print(json.dumps({"name": "machine", "facts": describe_machine()}), flush=True)
    failed, began = [], time.monotonic()
    for name in BENCHMARKS:
        if name not in wanted:
            continue
        try:
            importlib.import_module(f"tests.benchmarks.{name}").measure()
        except Exception:
            traceback.print_exc()
            failed.append(name)
    tell("bench.wall_s", [time.monotonic() - began], "s", failed=len(failed))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
