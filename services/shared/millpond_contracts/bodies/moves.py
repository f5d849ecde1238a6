"""Moves that let a waiting job start: which running tasks go where, whether that is worth it, and carrying it out."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from millpond_contracts.bodies.shapes import Incoming, Outgoing
from millpond_contracts.ids import AllocationId, JobId, MoveOrderId, NodeId, PoolId
from millpond_contracts.quantities import Instant, Seconds


class MovePolicy(Incoming):
    """When the scheduler moves running tasks of a pool by itself, for a job that has waited `wait_seconds` for room.

    Only where at least `threshold_permille` of what is free is of no use to the job, and the moved tasks lose at most
    `max_loss_percent` of what the job gains. At most `moves_per_hour` in the pool, those that operators order included,
    and `max_moves` for one job; of a job of which a task was moved, nothing is moved for `cool_down_seconds`.
    """

    wait_seconds: Seconds = 600
    threshold_permille: int = Field(300, ge=0, le=1000)
    max_loss_percent: int = Field(50, ge=1, le=100)
    moves_per_hour: int = Field(8, ge=1, le=1000)
    max_moves: int = Field(8, ge=1, le=64)
    cool_down_seconds: Seconds = 3600


class MoveView(Outgoing):
    """A running task that would be stopped on one node and start anew on another; `lost_seconds` of work are lost."""

    allocation_id: AllocationId
    job_id: JobId
    job: str
    group: str
    index: int
    from_node_id: NodeId
    from_node: str
    to_node_id: NodeId
    to_node: str
    device_milli: int
    lost_seconds: int


class MovePlanView(Outgoing):
    """What would have to move so that a waiting job starts; nothing is changed and nothing is held.

    `outcome`: `starts_now` (no move is needed), `below_threshold` (too little is fragmented), `no_way` (no moves within
    the budget make room), `not_worth` (the moved tasks lose more than the job gains), `moves`. `gain` and `cost` are
    device milli-seconds (CPU milli-seconds for a job without devices): what the job would get of the time that it need
    not wait, and what the moved tasks lose. `nodes` are where the job's tasks would start. `plan` names these very
    moves to whoever orders them; null where there are none to be carried out.
    """

    as_of: Instant
    job_id: JobId
    pool_id: PoolId
    tasks: int
    outcome: str
    message: str
    largest_free_block: int | None
    fragmentation_permille: int
    threshold_permille: int
    max_moves: int
    moves: list[MoveView]
    nodes: list[str]
    gain: int
    cost: int
    plan: str | None = None


class MoveOrderSpec(Incoming):
    """The moves that somebody has seen, to be carried out: refused once they would be others."""

    plan: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    max_moves: int = Field(8, ge=1, le=64, description="as it was planned with")
    cool_down_seconds: int = Field(600, ge=0, le=86_400, description="as it was planned with")


class MoveOrderState(StrEnum):
    """`requested`: the scheduler has not looked at it yet. `done`: each of its moves has a result."""

    REQUESTED = "requested"
    MOVING = "moving"
    DONE = "done"
    REFUSED = "refused"


class MoveResult(StrEnum):
    """`moved` to its place, `elsewhere` on another node, `ended` by itself, `given_up`: its place was not free."""

    MOVED = "moved"
    ELSEWHERE = "elsewhere"
    ENDED = "ended"
    GIVEN_UP = "given_up"


class MovedView(Outgoing):
    """One move of an order; `result` null = it is under way, and its place is kept for it."""

    allocation_id: AllocationId
    job_id: JobId
    from_node_id: NodeId
    to_node_id: NodeId
    lost_seconds: int
    result: MoveResult | None
    ended_at: Instant | None


class MoveOrderView(Outgoing):
    """Moves ordered for a job, by an operator or (`policy`) by its pool's rules; `message` says why it was refused."""

    move_order_id: MoveOrderId
    job_id: JobId
    pool_id: PoolId
    plan: str
    max_moves: int
    cool_down_seconds: int
    ordered_by: str
    state: MoveOrderState
    message: str | None
    requested_at: Instant
    settled_at: Instant | None
    moves: list[MovedView]
