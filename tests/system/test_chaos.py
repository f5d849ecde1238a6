"""Every kind of fault once against a whole split stack under load: nothing is lost, doubled, over-allocated, misbilled.

MILLPOND_TEST_SEED runs another plan; `make chaos` runs longer, and asks for a rate that a busy machine may not reach.
"""

import os

import pytest

from tests.system.chaos.plan import FaultKind
from tests.system.chaos.running import run

# A round of all kinds takes a minute; a machine that does other things takes thrice as long.
pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SEED = int(os.environ.get("MILLPOND_TEST_SEED", "1"))


def test_split_stack_when_every_kind_of_fault_happens_under_load_then_nothing_is_lost_or_doubled() -> None:
    summary = run(SEED, 0, print, acknowledged_per_second=0)
    assert summary["findings"] == []
    assert summary["faults"].keys() == set(FaultKind) - set(summary["left_out"])
    assert set(summary["left_out"]) <= {FaultKind.FILL_DISK}  # which needs the right to mount
    assert summary["acknowledged"] > 100
