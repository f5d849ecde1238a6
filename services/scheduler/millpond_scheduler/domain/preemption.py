"""What may be stopped for somebody else, and what is spared though it could be.

Two things may be: what is borrowed, for a virtual pool's own share; and, where a virtual pool says so, its own work of
lower priority. Nothing is stopped before it has run for its virtual pool's minimum, nor again and again: a task (with
its gang) at most so often in an hour, never twice for the same claimant, and never in a circle: who made room for
another one, itself or through others, takes nothing from it.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from millpond_contracts.ids import TaskId
from millpond_scheduler.domain.admission import Balance
from millpond_scheduler.domain.fair_share import Standing
from millpond_scheduler.domain.plans import Halted, Spared
from millpond_scheduler.domain.requests import QueuedTask

HOUR_US = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Eviction:
    """A task was ordered to stop for a waiting one (of a gang its first)."""

    victim: TaskId
    claimant: TaskId
    at_us: int


@dataclass(frozen=True, slots=True)
class Evictions:
    """What was stopped for others in the last hour, and how often is too often; 0 = there is no bound."""

    most_per_hour: int = 0
    counts: Mapping[TaskId, int] = field(default_factory=dict)
    victims_of: Mapping[TaskId, Collection[TaskId]] = field(default_factory=dict)

    @classmethod
    def of(cls, found: Iterable[Eviction], most_per_hour: int, now_us: int) -> "Evictions":
        """Of what was stopped, what lies within the hour."""
        recent = [one for one in found if now_us - one.at_us < HOUR_US]
        victims_of: defaultdict[TaskId, list[TaskId]] = defaultdict(list)
        for one in recent:
            victims_of[one.claimant].append(one.victim)
        return cls(most_per_hour, Counter(one.victim for one in recent), dict(victims_of))

    def judge(self, victims: Collection[TaskId], claimant: TaskId) -> Spared | None:
        """Whether stopping these tasks together for the claimant would be once too often."""
        if not self.victims_of.keys().isdisjoint({claimant, *victims}) and self._would_close_a_circle(
            victims, claimant
        ):
            return Spared.LOOP
        if self.most_per_hour and any(self.counts.get(victim, 0) >= self.most_per_hour for victim in victims):
            return Spared.STOPPED_TOO_OFTEN
        return None

    def _would_close_a_circle(self, victims: Collection[TaskId], claimant: TaskId) -> bool:
        if not set(victims).isdisjoint(self.victims_of.get(claimant, ())):
            return True
        seen, left = set(victims), list(victims)
        while left:
            new = {made_room for made_room in self.victims_of.get(left.pop(), ()) if made_room not in seen}
            seen |= new
            left += new
        return claimant in seen


@dataclass(slots=True)
class Claimant:
    """A waiting task, or a gang by its first task, for which something might stop; what was spared is noted here."""

    task: QueuedTask
    balance: Balance
    standing: Standing
    spared: dict[TaskId, Spared] = field(default_factory=dict)

    @property
    def may_stop_own(self) -> bool:
        """Whether its virtual pool lets it stop the work of lower priority beside it."""
        return self.balance.state.stops_lower

    @property
    def may_stop_any(self) -> bool:
        return not self.standing.borrows or self.may_stop_own

    def list_halted(self) -> list[Halted]:
        """The stops that were not ordered because they would go on for ever."""
        return [
            Halted(self.task.id, victim, why)
            for victim, why in self.spared.items()
            if why is not Spared.MINIMUM_RUNTIME
        ]
