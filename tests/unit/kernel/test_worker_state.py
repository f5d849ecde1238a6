"""What a worker tells of itself: the first reason why a person must look at it."""

import pytest

from millpond_kernel.loops import Loop
from millpond_kernel.worker import _Running, _state

pytestmark = pytest.mark.unit


def test_state_when_a_loop_that_ran_is_unwell_then_the_worker_tells_why() -> None:
    loop = Loop("watch", 1.0, unwell=lambda: "three nodes are silent")
    assert _state(_Running(loops=[loop]), 0.0, 0)[1] is None  # another copy holds its lease
    loop.ran = True
    assert _state(_Running(loops=[loop]), 0.0, 0)[1] == "three nodes are silent"
