"""A split stack as `millpond up` starts it, whose processes look into a folder for fail points; run by `running`."""

import argparse
import asyncio
from pathlib import Path

from millpond.stack.options import StackOptions
from millpond.stack.running import RunningStack, run_stack
from tests.system.stack import READY_LINE


async def _tell_ready(stack: RunningStack) -> None:
    print(f"{READY_LINE} after {stack.seconds_to_ready:.1f} s", flush=True)


def main() -> None:
    """Runs until it is told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fail-points", type=Path, required=True)
    chosen = parser.parse_args()
    options = StackOptions(
        data_folder=chosen.data_dir,
        port=chosen.port,
        split=True,
        stop_tasks=True,
        settings={"MILLPOND_FAIL_POINTS": str(chosen.fail_points)},
    )
    asyncio.run(run_stack(options, _tell_ready, lambda line: print(line, flush=True)))


if __name__ == "__main__":
    main()
