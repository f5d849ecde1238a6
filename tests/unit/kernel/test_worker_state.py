"""What a worker tells of itself: the first reason why a person must look at it."""

import pytest

from millpond_kernel.loops import Loop
from millpond_kernel.streams import Consumer
from millpond_kernel.worker import _Running, _state

pytestmark = pytest.mark.unit


def test_state_when_a_loop_that_ran_is_unwell_then_the_worker_tells_why() -> None:
    loop = Loop("watch", 1.0, unwell=lambda: "three nodes are silent")
    assert _state(_Running(loops=[loop]), 0.0, 0)[1] is None  # another copy holds its lease
    loop.ran = True
    assert _state(_Running(loops=[loop]), 0.0, 0)[1] == "three nodes are silent"


def test_b4_state_when_events_are_accepted_and_not_applied_then_the_worker_is_not_ready_and_says_how_many() -> None:
    consumer = Consumer("metering", "scheduler", {})
    consumer.lag = 10_000
    state, reason = _state(_Running(consumers=[consumer]), 0.0, 0)
    assert state["lag"] == {"metering<-scheduler": 10_000}
    assert reason == "metering<-scheduler is 10000 events behind"
    consumer.lag = 10
    assert _state(_Running(consumers=[consumer]), 0.0, 0)[1] is None
    assert _state(_Running(consumers=[consumer]), 30.0, 0)[1] == "the oldest unpublished event waits for 30 s"
    assert "3 events are parked" in str(_state(_Running(consumers=[consumer]), 0.0, 3)[1])
