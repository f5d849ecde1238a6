"""Thresholds of pools, what is short below them, and the nodes that pools lend one another."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, StrictInt, model_validator

from millpond_contracts.bodies.shapes import Incoming, Outgoing
from millpond_contracts.ids import LoanId, NodeId, PoolId
from millpond_contracts.quantities import Instant, Name, Seconds

Amount = Annotated[
    int, Field(strict=True, ge=1, le=1_000_000_000, description="milli of devices or CPU, MiB of memory")
]


class Threshold(Incoming):
    """How much of one resource a pool wants available, and from whom its nodes come when there is less.

    Below `low` the pool is short: an event says so once. With `donors`, idle nodes of those pools are then borrowed, in
    the order of the list, until `enough` is available (default: `low`), at most `max_nodes` at a time. A donor keeps
    `donor_keeps` available, and what its own threshold asks for. A node returns when enough is available without it, or
    its donor is short; `return_after_seconds` after its arrival it is drained at the latest, and what still runs
    `return_grace_seconds` later is stopped. Else nothing that runs is ever stopped for a loan.
    """

    resource: Literal["device", "cpu", "memory"] = "device"
    flavor: Name | None = Field(None, description="which devices; none for cpu and memory")
    low: Amount
    enough: Amount | None = None
    donors: Annotated[tuple[PoolId, ...], Field(max_length=16)] = ()
    donor_keeps: Annotated[int, Field(strict=True, ge=0, le=1_000_000_000)] = 0
    max_nodes: StrictInt = Field(1, ge=1, le=1000)
    return_after_seconds: Seconds = 14_400
    return_grace_seconds: Seconds = 3600

    @model_validator(mode="after")
    def _consistent(self) -> "Threshold":
        if (self.resource == "device") != (self.flavor is not None):
            raise ValueError("devices need a flavor, cpu and memory have none")
        if self.enough is not None and self.enough < self.low:
            raise ValueError("enough is at least low")
        return self

    @property
    def key(self) -> str:
        """What it watches: `device/<flavor>`, `cpu` or `memory`."""
        return self.resource if self.flavor is None else f"{self.resource}/{self.flavor}"

    @property
    def target(self) -> int:
        """How much shall be available after borrowing."""
        return self.low if self.enough is None else self.enough


class LoanState(StrEnum):
    """moving → lent → returning → returned; a loan that cannot go on is ended."""

    MOVING = "moving"
    LENT = "lent"
    RETURNING = "returning"
    RETURNED = "returned"
    ENDED = "ended"


class LoanView(Outgoing):
    """One node of one pool in another: who lent what, for which threshold, and when it returns.

    `amount` is what the node brings of the threshold's resource. `reason` says in words why it is in this state;
    `due_at`, known from its arrival on, when it is drained at the latest.
    """

    loan_id: LoanId
    node_id: NodeId
    node_name: str
    from_pool_id: PoolId
    to_pool_id: PoolId
    threshold: str = Field(description="`device/<flavor>`, `cpu` or `memory` of the borrowing pool")
    amount: int
    state: LoanState
    state_since: Instant
    reason: str
    asked_at: Instant
    arrived_at: Instant | None = None
    due_at: Instant | None = None
    ended_at: Instant | None = None
    generation: int


class ReturnRequest(Incoming):
    """Send a lent node home; what still runs at the deadline is stopped."""

    deadline_seconds: Seconds = 3600


class ShortageView(Outgoing):
    """A pool has less available than its threshold asks for."""

    pool_id: PoolId
    threshold: str
    low: int
    available: int
    since: Instant
