"""Whether a node that fails task after task is ill, or whether it was given tasks that cannot work anywhere."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from millpond_contracts.bodies.allocations import EndReason


class Sign(Enum):
    """What the end of a task says of its node."""

    WORKS = "works"
    FAILS = "fails"
    NOTHING = "nothing"


# Ends that may be the node's fault. Out of memory is the job's own limit, a time limit its own wish.
NODE_SUSPECT = frozenset({EndReason.EXIT_CODE, EndReason.SIGNAL, EndReason.START_FAILED, EndReason.REFUSED})
_NODE_GONE = frozenset({EndReason.NODE_LOST, EndReason.NODE_RESTARTED})


@dataclass(frozen=True, slots=True)
class QuarantineRules:
    """When a node takes no more work until a person lets it.

    `failures`: so many different jobs in a row failed there within `seconds` of their start, 0 = never. `percent`: of a
    pool's nodes at most so many are closed so, but one at least where others stay open: bad jobs close no pool.
    """

    failures: int = 5
    seconds: int = 10
    percent: int = 25

    def read_end(self, reason: EndReason, active_at: datetime | None, released_at: datetime) -> Sign:
        """What an end says of the node: a start that was never confirmed failed at once."""
        is_short = active_at is None or released_at - active_at < timedelta(seconds=self.seconds)
        if reason is EndReason.COMPLETED:
            return Sign.WORKS
        if is_short:
            return Sign.FAILS if reason in NODE_SUSPECT else Sign.NOTHING
        return Sign.NOTHING if reason in _NODE_GONE else Sign.WORKS

    def may_close(self, closed: int, nodes: int, others_open: int) -> bool:
        """Whether one more node of a pool may be closed, of which `closed` are already."""
        return others_open > 0 and closed + 1 <= max(1, nodes * self.percent // 100)
