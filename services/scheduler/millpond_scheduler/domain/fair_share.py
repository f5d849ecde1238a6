"""Who is served next, and who gives back: one comparison for both.

A virtual pool stands before another one if what it asks for is still its own share while the other would borrow; of
two that are alike in this, the one that holds least of the pool for its weight. Admission takes the first that waits.
Whoever gives something back is the last by the same comparison, and only to somebody before it. So what was stopped
waits behind what it was stopped for, and nothing goes to and fro.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import NamedTuple

from millpond_contracts.ids import PoolId, VirtualPoolId
from millpond_scheduler.domain.admission import Resource, VirtualPoolState

# The weight of a virtual pool without any guarantee, in thousandths of the pool: it is served last, not never.
LEAST_WEIGHT_PERMILLE = 1


class Share(NamedTuple):
    """A fraction of integers, `of` > 0; compared by cross-multiplication, so that no rounding decides."""

    held: int
    of: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Share) and self.held * other.of == other.held * self.of

    def __hash__(self) -> int:
        return hash(Fraction(self.held, self.of))

    def __lt__(self, other: object) -> bool:
        return isinstance(other, Share) and self.held * other.of < other.held * self.of


NOTHING = Share(0, 1)


class Standing(NamedTuple):
    """How one virtual pool stands with something that it asks for or holds; the smaller is served first.

    `rough` is the share as a float, which is rounded correctly: what differs in it differs so, and only what does not
    is compared exactly, which takes longer.
    """

    borrows: bool
    rough: float
    share: Share

    @classmethod
    def of(cls, share: Share, *, borrows: bool) -> "Standing":
        """How it stands with such a share."""
        return cls(borrows, share.held / share.of, share)

    def may_take_from(self, holder: "Standing") -> bool:
        """Whether something that stands so may make what stands as `holder` stop."""
        return not self.borrows and holder.borrows


class FairShares:
    """The dominant shares of all virtual pools of a shard (Ghodsi et al., Dominant Resource Fairness, NSDI 2011).

    The dominant share is the largest of what is held by what the pool has, over all resources; divided by the weight,
    which is the largest of what is guaranteed by what the pool has.

    Args:
        total_of: what a pool has in all, asked at most once per pool.
    """

    def __init__(self, total_of: Callable[[PoolId], Mapping[Resource, int]]) -> None:
        self._total_of = total_of
        self._totals: dict[PoolId, Mapping[Resource, int]] = {}
        self._weights: dict[VirtualPoolId, Share] = {}

    def weigh(self, state: VirtualPoolState, used: Mapping[Resource, int]) -> Share:
        """What a virtual pool holds for its weight, if it held so much."""
        most, weight = self.dominant(state.pool, used), self._weights.get(state.id)
        if weight is None:
            own = {resource: state.limit_of(resource).guaranteed for resource in state.list_limited()}
            weight = max(self.dominant(state.pool, own), Share(LEAST_WEIGHT_PERMILLE, 1000))
            self._weights[state.id] = weight
        return Share(most.held * weight.of, most.of * weight.held)

    def dominant(self, pool: PoolId, held: Mapping[Resource, int]) -> Share:
        """The largest fraction of the pool's resources that so much is."""
        totals = self._totals.get(pool)
        if totals is None:
            totals = {each: max(total, 1) for each, total in self._total_of(pool).items()}
            self._totals[pool] = totals
        most, of = NOTHING.held, NOTHING.of
        for each, amount in held.items():
            total = totals.get(each, 1)
            if amount * of > most * total:
                most, of = amount, total
        return Share(most, of)
