"""The plan of faults: the same for the same seed, every kind in each round, every target in its turn."""

from itertools import islice

import pytest

from tests.system.chaos.faults import DOING
from tests.system.chaos.plan import TARGETS, FaultKind, plan_faults

pytestmark = pytest.mark.unit

ROUND = len(FaultKind)


def test_plan_when_the_seed_is_the_same_then_so_are_the_faults() -> None:
    one, same, other = (list(islice(plan_faults(seed), 3 * ROUND)) for seed in (7, 7, 8))
    assert one == same
    assert one != other


def test_plan_when_a_round_is_over_then_every_kind_was_in_it() -> None:
    faults = list(islice(plan_faults(3), 2 * ROUND))
    for drawn in (faults[:ROUND], faults[ROUND:]):
        assert sorted(fault.kind for fault in drawn) == sorted(FaultKind)


def test_plan_when_it_goes_on_then_each_kind_comes_to_all_its_targets() -> None:
    rounds = max(len(names) for names, _ in TARGETS.values())
    seen: dict[FaultKind, set[str]] = {}
    for fault in islice(plan_faults(4), rounds * ROUND):
        seen.setdefault(fault.kind, set()).add(fault.target)
    assert seen == {kind: set(names) for kind, (names, _) in TARGETS.items()}
    assert DOING.keys() == TARGETS.keys() == set(FaultKind)
