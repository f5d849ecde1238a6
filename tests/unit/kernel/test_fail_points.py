"""Fail points: a process that is not armed passes them, and an armed one ends at its own point and no other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

# Arms itself at the point that it is told, as a test would from outside, then passes another one and that one.
PROGRAM = """
import os, pathlib, sys
from millpond_kernel.fail_points import FailPoint, pass_point
pathlib.Path(sys.argv[1], f"{os.getpid()}.after_commit").touch()
pass_point(FailPoint.BEFORE_COMMIT)
print("passed one", flush=True)
pass_point(FailPoint.AFTER_COMMIT)
print("passed both", flush=True)
"""


@pytest.mark.parametrize(
    ("is_armed", "code", "printed"),
    [(True, -signal.SIGKILL, ["passed one"]), (False, 0, ["passed one", "passed both"])],
)
def test_process_when_armed_or_not_then_ends_at_its_point_alone(
    tmp_path: Path, is_armed: bool, code: int, printed: list[str]
) -> None:
    environment = {**os.environ, **({"MILLPOND_FAIL_POINTS": str(tmp_path)} if is_armed else {})}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.splitlines()) == (code, printed), done.stderr
