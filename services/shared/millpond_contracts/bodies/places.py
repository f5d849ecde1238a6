"""Where the tasks of a group may stand: on which nodes, and beside which other tasks."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StrictInt, model_validator

from millpond_contracts.bodies.shapes import Incoming
from millpond_contracts.quantities import Label, LabelKey, Labels
from millpond_contracts.resources import TopologyLevel


class LabelOperator(StrEnum):
    IN = "in"
    NOT_IN = "not_in"


class NodeAffinity(Incoming):
    """Only nodes whose label has one of these values; `not_in` = none of them, or no such label.

    Where a node stands counts as labels: `region`, `zone`, `rack`, `interconnect_domain`.
    """

    label: LabelKey
    operator: LabelOperator = LabelOperator.IN
    values: Annotated[tuple[Label, ...], Field(min_length=1, max_length=64)]


class AntiAffinityScope(StrEnum):
    GROUP = "group"
    JOB = "job"


class AntiAffinity(Incoming):
    """No two tasks of the group in one domain of the level; with `scope` job no two of the whole job.

    With `labels` instead no task of the group beside one whose job, of the same tenant, has all these labels. It binds
    the tasks of this group when they are placed; others that are to keep away from them say so themselves.
    """

    level: TopologyLevel = TopologyLevel.NODE
    scope: AntiAffinityScope = AntiAffinityScope.GROUP
    labels: Labels = Field(default_factory=dict)


class TopologySpread(Incoming):
    """The tasks of the group over the domains of a level: at most `max_tasks` in each, or `max_skew` more than in the
    domain with fewest, of those with a node that could take such a task if it were empty (of a packed gang, where it
    stands)."""

    level: TopologyLevel
    max_tasks: StrictInt | None = Field(None, ge=1, le=10_000)
    max_skew: StrictInt | None = Field(None, ge=1, le=10_000)

    @model_validator(mode="after")
    def _one_bound(self) -> "TopologySpread":
        if (self.max_tasks is None) == (self.max_skew is None):
            raise ValueError("give max_tasks or max_skew, one of them")
        return self
