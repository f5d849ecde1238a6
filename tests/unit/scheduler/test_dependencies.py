"""Groups that wait for groups: stages and what is refused, and what the ends of groups mean for those behind them."""

import pytest
from pydantic import ValidationError

from millpond_contracts.bodies.groups import GroupSpec, Resources, RunSpec
from millpond_contracts.bodies.jobs import JobSpec
from millpond_contracts.dependencies import MAX_STAGES, find_stages
from millpond_contracts.ids import VirtualPoolId
from millpond_scheduler.domain.dependencies import Advance, GroupOrder, advance, list_awaited

pytestmark = pytest.mark.unit

DIAMOND = [
    GroupOrder("prepare"),
    GroupOrder("left", ("prepare",)),
    GroupOrder("right", ("prepare",)),
    GroupOrder("join", ("left", "right")),
]


def group(name: str, *after: str, gang: bool = False) -> GroupSpec:
    return GroupSpec(
        name=name,
        gang=gang,
        after=after,
        resources=Resources(cpu_milli=100, memory_mib=64),
        run=RunSpec(command=("true",)),
    )


def refusal(*groups: GroupSpec) -> str:
    with pytest.raises(ValidationError) as refused:
        JobSpec(name="graph", virtual_pool=VirtualPoolId.new(), groups=groups)
    (error,) = refused.value.errors()
    assert error["loc"] == ("groups",)
    return str(error["msg"])


def test_stages_when_groups_wait_for_several_then_the_longest_way_counts() -> None:
    after = {"join": ("prepare", "left"), "left": ("prepare",), "prepare": (), "alone": ()}
    assert find_stages(after) == {"prepare": 0, "alone": 0, "left": 1, "join": 2}


def test_graph_when_it_cannot_be_run_then_refused_by_group_and_field() -> None:
    assert "group 'b': after: there is no group 'c'" in refusal(group("a"), group("b", "c"))
    assert "group 'a': after: in the end it waits for itself" in refusal(group("a", "b"), group("b", "a"), group("c"))
    assert "waits for itself" in refusal(group("a", "a"))
    chain = [group(f"g{n}", *([f"g{n - 1}"] if n else [])) for n in range(MAX_STAGES + 1)]
    assert f"group 'g{MAX_STAGES}': after: at most {MAX_STAGES} groups" in refusal(*chain)
    JobSpec(name="graph", virtual_pool=VirtualPoolId.new(), groups=tuple(chain[:MAX_STAGES]))


def test_gang_when_its_groups_wait_for_different_ones_then_refused() -> None:
    assert "start together" in refusal(group("a"), group("b", "a", gang=True), group("c", gang=True))
    assert "start together" in refusal(group("b", gang=True), group("c", "b", gang=True))


def test_advance_when_a_group_has_succeeded_then_all_that_waited_for_it_alone_are_ready_at_once() -> None:
    blocked = {"blocked": 1}
    states = {"prepare": {"succeeded": 2}, "left": blocked, "right": blocked, "join": blocked}
    assert advance(DIAMOND, states) == Advance(["left", "right"])
    states |= {"left": {"succeeded": 1}, "right": {"running": 1}}
    assert advance(DIAMOND, states) == Advance()
    states |= {"right": {"succeeded": 1}}
    assert advance(DIAMOND, states) == Advance(["join"])


@pytest.mark.parametrize("state", ["failed", "cancelled", "preempted", "lost"])
def test_advance_when_a_task_has_ended_otherwise_then_all_behind_it_end_at_once_whatever_still_runs(state: str) -> None:
    states = {
        "prepare": {"running": 1, state: 1},
        "left": {"blocked": 1},
        "right": {"blocked": 1},
        "join": {"blocked": 1},
    }
    assert advance(DIAMOND, states).ended == {"left": "prepare", "right": "prepare", "join": "left"}


def test_advance_when_a_task_waits_for_its_next_attempt_then_nothing_behind_it_moves() -> None:
    states = {"prepare": {"succeeded": 1, "pending": 1}} | {name: {"blocked": 1} for name in ("left", "right", "join")}
    assert advance(DIAMOND, states) == Advance()


def test_advance_when_a_group_of_a_gang_has_succeeded_then_the_whole_gang_is_awaited() -> None:
    groups = [
        GroupOrder("driver", is_gang=True),
        GroupOrder("workers", is_gang=True),
        GroupOrder("report", ("driver",)),
    ]
    assert list_awaited(groups[2], groups) == ["driver", "workers"]
    states = {"driver": {"succeeded": 1}, "workers": {"running": 4}, "report": {"blocked": 1}}
    assert advance(groups, states) == Advance()
    assert advance(groups, states | {"workers": {"succeeded": 4}}) == Advance(["report"])
    assert advance(groups, states | {"workers": {"failed": 4}}).ended == {"report": "workers"}
