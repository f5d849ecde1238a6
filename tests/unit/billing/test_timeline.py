"""The timeline of an allocation from facts in any order, and seconds that telescope."""

from datetime import UTC, datetime
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond_billing.domain.facts import Activated, Fact, Holding, Released
from millpond_billing.domain.timeline import AnomalyKind, find_timeline, instant_of, moment_of
from millpond_contracts.ids import AllocationId
from millpond_contracts.prices import Sku
from tests.factories.billing import CPU, GPU, SECOND, START, allocation_events, facts_of, named, timeline

pytestmark = pytest.mark.unit

A1 = named(AllocationId, "a1")


@given(st.lists(st.integers(0, 40 * SECOND), min_size=2, max_size=8, unique=True))
def test_seconds_when_time_is_divided_anyhow_then_the_parts_sum_to_the_whole(offsets: list[int]) -> None:
    points = sorted(START + offset for offset in offsets)
    life = timeline(active=points[0], released=points[-1])

    parts = [life.seconds_between(first, last) for first, last in pairwise(points)]

    assert sum(parts) == -((points[0] - points[-1]) // SECOND)
    assert min(parts) >= 0


@pytest.mark.parametrize(
    ("microseconds", "seconds"), [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (60_000_000, 60)]
)
def test_seconds_when_a_second_has_begun_then_it_counts(microseconds: int, seconds: int) -> None:
    assert timeline().seconds_until(START + microseconds) == seconds


def test_seconds_when_before_activation_then_none() -> None:
    assert timeline(active=START + SECOND).seconds_until(START) == 0
    assert timeline(active=None).seconds_until(START + SECOND) == 0


def test_timeline_when_facts_come_in_any_order_and_twice_then_is_the_same() -> None:
    facts = facts_of(allocation_events(released=START + 5 * SECOND, resizes=[(START + SECOND, {GPU: 500})]))
    expected = find_timeline(facts)

    assert all(find_timeline(order) == expected for order in permutations(facts))
    assert find_timeline([*facts, *facts]) == expected


def test_timeline_when_only_the_release_is_known_then_waits_for_the_bind() -> None:
    facts = facts_of(allocation_events(released=START + SECOND))

    assert find_timeline(facts[1:]) is None


def test_timeline_when_a_later_event_repeats_a_fact_then_it_is_no_conflict() -> None:
    facts = facts_of(allocation_events())

    life = find_timeline([*facts, Activated(A1, 9, START)])

    assert life is not None
    assert life.anomalies == ()


def test_timeline_when_facts_conflict_then_the_lower_generation_holds_and_it_is_told() -> None:
    facts: list[Fact] = [*facts_of(allocation_events(released=START + SECOND)), Released(A1, 9, START + 7, "later")]

    life = find_timeline(reversed(facts))

    assert life is not None
    assert life.released_at == START + SECOND
    assert [anomaly.kind for anomaly in life.anomalies] == [AnomalyKind.CONFLICT]


def test_timeline_when_the_clock_steps_back_then_no_part_is_negative() -> None:
    life = timeline(bound=START, active=START - 5, released=START - 10)

    assert (life.bound_at, life.active_at, life.released_at) == (START, START, START)
    assert [anomaly.kind for anomaly in life.anomalies] == [AnomalyKind.OUT_OF_ORDER] * 2


def test_timeline_when_resizes_step_back_then_their_generation_orders_them() -> None:
    life = timeline(resizes=[(START + 9, {GPU: 500}), (START + 4, {CPU: 100})])

    assert life.steps[1:] == ((START + 9, Holding.of({Sku.parse(CPU): 100})),)


def test_timeline_when_a_resize_follows_the_release_then_it_changes_nothing() -> None:
    life = timeline(released=START + 5, resizes=[(START + 6, {GPU: 500})])

    assert len(life.steps) == 1
    assert [anomaly.kind for anomaly in life.anomalies] == [AnomalyKind.AFTER_RELEASE]


def test_timeline_when_the_stop_precedes_activation_then_all_active_time_is_waived() -> None:
    assert timeline(bound=START, active=START + 5, stop=START + 2, released=START + 9).waived_from == START + 5


def test_timeline_when_facts_are_of_two_allocations_then_refuses() -> None:
    with pytest.raises(ValueError, match="one allocation"):
        find_timeline([*facts_of(allocation_events("a1")), *facts_of(allocation_events("a2"))])


def test_holding_when_negative_then_refuses() -> None:
    with pytest.raises(ValueError, match="zero or more"):
        Holding.of({Sku.parse(GPU): -1})


@given(st.datetimes(timezones=st.just(UTC)))
def test_instant_when_converted_back_then_is_the_same_moment(moment: datetime) -> None:
    assert moment_of(instant_of(moment)) == moment
