"""When silence is nobody's fault: too many nodes of one pool at once."""

import pytest

from millpond_scheduler.domain.freezing import FreezeRules

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("silent", "nodes", "freezes"),
    [(0, 0, False), (1, 1, False), (2, 2, False), (2, 3, False), (3, 3, True), (3, 6, True), (3, 7, False)],
)
def test_k3_freezes_when_share_and_number_are_reached(silent: int, nodes: int, freezes: bool) -> None:
    assert FreezeRules(percent=50, nodes=3).freezes(silent, nodes) is freezes


def test_k3_freezes_when_turned_off_then_never() -> None:
    assert not FreezeRules(percent=101).freezes(1000, 1000)
