"""What the end of a task says of its node, how many nodes may be closed for it, and where the retry goes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from millpond_contracts.bodies.allocations import EndReason
from millpond_scheduler.domain.quarantine import QuarantineRules, Sign
from tests.unit.scheduler.world import World, node, placed_tasks, request

pytestmark = pytest.mark.unit

ACTIVE = datetime(2030, 1, 1, tzinfo=UTC)
RULES = QuarantineRules(failures=5, seconds=10, percent=25)


@pytest.mark.parametrize(
    ("reason", "lasted_seconds", "sign"),
    [
        (EndReason.EXIT_CODE, 3, Sign.FAILS),
        (EndReason.SIGNAL, 9, Sign.FAILS),
        (EndReason.START_FAILED, None, Sign.FAILS),
        (EndReason.REFUSED, None, Sign.FAILS),
        (EndReason.EXIT_CODE, 10, Sign.WORKS),  # the node ran it for a while
        (EndReason.COMPLETED, 0, Sign.WORKS),
        (EndReason.CANCELLED, 60, Sign.WORKS),
        (EndReason.CANCELLED, None, Sign.NOTHING),
        (EndReason.OUT_OF_MEMORY, 1, Sign.NOTHING),
        (EndReason.DRAINED, 1, Sign.NOTHING),
        (EndReason.GANG_STOPPED, None, Sign.NOTHING),
        (EndReason.NODE_LOST, 3600, Sign.NOTHING),
    ],
)
def test_h11_read_end_when_reasons_and_durations_differ(
    reason: EndReason, lasted_seconds: int | None, sign: Sign
) -> None:
    if lasted_seconds is None:
        assert RULES.read_end(reason, None, ACTIVE) is sign
    else:
        assert RULES.read_end(reason, ACTIVE, ACTIVE + timedelta(seconds=lasted_seconds)) is sign


@pytest.mark.parametrize(
    ("closed", "nodes", "others_open", "may"),
    [(0, 1, 0, False), (0, 2, 1, True), (1, 4, 3, False), (1, 8, 6, True), (2, 8, 6, False), (1, 12, 0, False)],
)
def test_h11_may_close_when_others_stay_open_and_few_are_closed(
    closed: int, nodes: int, others_open: int, may: bool
) -> None:
    assert RULES.may_close(closed, nodes, others_open) is may


def test_h11_retry_when_another_node_is_free_then_it_goes_there_else_back() -> None:
    crowded, roomy = node(1, cpu=8000), node(2, cpu=64_000)
    world = World.of(crowded, roomy)
    (task,) = world.submit(request(cpu=4000))
    world.queue[0] = replace(world.queue[0], failed_on=crowded.id)
    assert [each.holding.node for each in world.run().placements] == [roomy.id]

    alone = World.of(crowded)
    (task,) = alone.submit(request(cpu=4000))
    alone.queue[0] = replace(alone.queue[0], failed_on=crowded.id)
    assert placed_tasks(alone.run()) == [task]
