"""Moves that would let a waiting job start: which running tasks would go where, and whether that is worth it."""

from millpond_contracts.bodies.shapes import Outgoing
from millpond_contracts.ids import AllocationId, JobId, NodeId, PoolId
from millpond_contracts.quantities import Instant


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
    not wait, and what the moved tasks lose. `nodes` are where the job's tasks would start.
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
