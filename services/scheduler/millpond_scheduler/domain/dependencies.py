"""What the ends of a job's groups mean for groups that wait for them: which may start, and which never will.

A group has succeeded when the newest attempt of each of its tasks has, so a retry holds back what comes after. A gang
ends as one: whoever waits for a group of it waits for all of it, because all of it starts anew when one task fails.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millpond_contracts.bodies.jobs import TaskState
from millpond_scheduler.domain.states import is_final

States = Mapping[str, int]
"""How many tasks of a group are in which state."""


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """A group of a job, and the groups that it waits for."""

    name: str
    after: tuple[str, ...] = ()
    is_gang: bool = False


@dataclass(slots=True)
class Advance:
    """Groups that may start now, and those that never will, each with the group whose end decided that."""

    ready: list[str] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)


def is_blocked(states: States) -> bool:
    """Whether a group waits for others."""
    return TaskState.BLOCKED.value in states


def list_awaited(group: GroupOrder, groups: Sequence[GroupOrder]) -> list[str]:
    """All groups that a group waits for, the rest of a gang included."""
    gang = {each.name for each in groups if each.is_gang}
    named = set(group.after)
    wanted = named | gang if named & gang else named
    return [each.name for each in groups if each.name in wanted]


def advance(groups: Sequence[GroupOrder], states: Mapping[str, States]) -> Advance:
    """Decide over every group that waits; who waits for a group that never starts does not start either.

    Args:
        groups: all groups of the job.
        states: by group, as its tasks are now.
    """
    found = Advance()
    waiting = [group for group in groups if is_blocked(states[group.name])]
    failed = {name for name, counts in states.items() if _has_failed(counts)}
    is_settled = False
    while not is_settled:
        is_settled = True
        for group in waiting:
            if group.name in found.ended:
                continue
            culprit = next((name for name in list_awaited(group, groups) if name in failed), None)
            if culprit is not None:
                found.ended[group.name] = culprit
                failed.add(group.name)
                is_settled = False
    for group in waiting:
        if group.name not in found.ended and all(
            states[name].keys() == {TaskState.SUCCEEDED.value} for name in list_awaited(group, groups)
        ):
            found.ready.append(group.name)
    return found


def _has_failed(states: States) -> bool:
    ends = {state for state in map(TaskState, states) if is_final(state)}
    return bool(ends - {TaskState.SUCCEEDED})
