"""What the scheduler's worker tells of a leader that fails or stands still."""

import pytest

from millpond_kernel.db import Database
from millpond_kernel.doorbell import DoorListener, connect_redis
from millpond_scheduler.loops.leader import Leader
from millpond_scheduler.providers.bells import NodeBell
from millpond_scheduler.worker import MAX_FAILURES, MAX_STEP_SECONDS, why_unwell

pytestmark = pytest.mark.unit


def test_leader_when_it_fails_or_stands_still_then_why_in_words_and_never_what_an_error_says() -> None:
    redis = connect_redis("redis://127.0.0.1:1/0")
    leader = Leader(Database("scheduler", "postgresql://nowhere"), NodeBell(redis, "mp"), DoorListener(redis, "mp"))
    assert why_unwell(leader) is None
    leader.failures, leader.last_error = MAX_FAILURES, "ValueError: secret"
    failing = why_unwell(leader)
    assert failing is not None
    assert failing.reason == "the leader does not plan: ValueError"
    leader.failures = 0
    leader.stepped_monotonic -= MAX_STEP_SECONDS + 1
    stuck = why_unwell(leader)
    assert stuck is not None
    assert "has not ended its step for 46 s" in stuck.reason
    assert "nothing new is placed" in stuck.effect
