"""Every kind of fault against a whole split stack under load: nothing is lost, doubled, over-allocated, misbilled.

Three seeds share the kinds. MILLPOND_TEST_SEED runs other plans; `make chaos` does every kind in one run, longer, and
asks for a rate that a busy machine may not reach.
"""

import os

import pytest

from tests.system.chaos.plan import FaultKind
from tests.system.chaos.running import run

# A third of the kinds takes half a minute; a machine that does other things takes thrice as long.
pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]

FIRST_SEED = int(os.environ.get("MILLPOND_TEST_SEED", "1"))
RUNS = 3


@pytest.mark.parametrize("part", range(RUNS))
def test_split_stack_when_faults_happen_under_load_then_nothing_is_lost_or_doubled(part: int) -> None:
    kinds = list(FaultKind)[part::RUNS]
    summary = run(FIRST_SEED + part, 0, print, acknowledged_per_second=0, kinds=kinds)
    assert summary["findings"] == []
    assert summary["faults"].keys() | {FaultKind.FILL_DISK} >= set(kinds)
    assert set(kinds) - summary["faults"].keys() <= set(summary["left_out"])  # a disk needs the right to mount
    assert summary["acknowledged"] > 50
