"""A split stack as `millpond up` starts it, whose processes look for fail points and go by a clock that can jump.

Run by `running`.
"""

import argparse
import asyncio
from pathlib import Path

from millpond.stack.options import StackOptions
from millpond.stack.paths import locate_stack
from millpond.stack.running import RunningStack, run_stack
from millpond.stack.users import find_stack_user
from tests.system.chaos.clocks import Clock
from tests.system.chaos.disks import mount_small_disks
from tests.system.stack import READY_LINE


async def _tell_ready(stack: RunningStack) -> None:
    print(f"{READY_LINE} after {stack.seconds_to_ready:.1f} s", flush=True)


def main() -> None:
    """Runs until it is told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fail-points", type=Path, required=True)
    parser.add_argument("--clock-library", type=Path, required=True)
    parser.add_argument("--clock-file", type=Path, required=True)
    parser.add_argument("--small-disks", action="store_true")
    chosen = parser.parse_args()
    if chosen.small_disks:
        mount_small_disks(locate_stack(data_folder=chosen.data_dir, user=find_stack_user()))
    clock = Clock(chosen.clock_library, chosen.clock_file)
    options = StackOptions(
        data_folder=chosen.data_dir,
        port=chosen.port,
        split=True,
        stop_tasks=True,
        settings={
            "MILLPOND_FAIL_POINTS": str(chosen.fail_points),
            # A fleet stands still as a whole here, and what it held has to be given up all the same.
            "MILLPOND_SCHEDULER_FREEZE_PERCENT": "101",
            **clock.environment,
        },
    )
    asyncio.run(run_stack(options, _tell_ready, lambda line: print(line, flush=True)))


if __name__ == "__main__":
    main()
