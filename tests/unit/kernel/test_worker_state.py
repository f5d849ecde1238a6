"""What a worker tells of itself: the first reason why a person must look at it, what follows, and what to do."""

import time

import pytest

from millpond_kernel.loops import Loop, Unwell
from millpond_kernel.streams import Consumer
from millpond_kernel.worker import MAX_PASS_SECONDS, _Running, _state

pytestmark = pytest.mark.unit

ILL = Unwell("three nodes are silent", "their work waits", "look at the switch")


def told(running: _Running, unpublished_seconds: float = 0.0, parked: int = 0) -> Unwell | None:
    return _state("billing", running, unpublished_seconds, parked)[1]


def test_state_when_a_loop_that_ran_is_unwell_then_the_worker_tells_why() -> None:
    loop = Loop("watch", 1.0, unwell=lambda: ILL)
    assert told(_Running(loops=[loop])) is None  # another copy holds its lease
    loop.ran = True
    assert told(_Running(loops=[loop])) == ILL


def test_state_when_a_pass_does_not_end_then_the_loop_is_named() -> None:
    loop = Loop("watch", 1.0)
    loop.began_monotonic = time.monotonic() - 1
    assert told(_Running(loops=[loop])) is None
    loop.began_monotonic -= MAX_PASS_SECONDS
    found = told(_Running(loops=[loop]))
    assert found is not None
    assert "the loop watch has not ended its pass for 301 s" in found.reason


def test_state_when_events_wait_or_are_parked_then_the_command_that_shows_them() -> None:
    late, parked = told(_Running(), unpublished_seconds=11.0), told(_Running(), parked=2)
    assert late is not None
    assert parked is not None
    assert "11 s" in late.reason
    assert "Redis" in late.remedy
    assert "2 events" in parked.reason
    assert "millpond dead-letters billing" in parked.remedy


def test_state_when_a_consumer_waits_then_its_publisher_is_named_and_only_after_a_while() -> None:
    consumer = Consumer("tenants", "quota")
    consumer.trouble, consumer.trouble_monotonic = "waits for quota: ServiceAway", time.monotonic()
    assert told(_Running(consumers=[consumer])) is None
    consumer.trouble_monotonic -= 10
    found = told(_Running(consumers=[consumer]))
    assert found is not None
    assert found.reason == "tenants<-quota waits for quota: ServiceAway"
    assert (found.effect, found.remedy) == ("what billing knows of quota is old", "see `millpond status quota`")
    consumer.is_ahead = True
    found = told(_Running(consumers=[consumer]))
    assert found is not None
    assert "millpond rebuild billing tenants" in found.remedy


def test_b4_state_when_events_are_accepted_and_not_applied_then_the_worker_is_not_ready_and_says_how_many() -> None:
    consumer = Consumer("metering", "scheduler", {})
    consumer.lag = 10_000
    state, unwell = _state("billing", _Running(consumers=[consumer]), 0.0, 0)
    assert state["lag"] == {"metering<-scheduler": 10_000}
    assert unwell is not None
    assert unwell.reason == "metering<-scheduler is 10000 events behind"
    consumer.lag = 10
    assert told(_Running(consumers=[consumer])) is None
